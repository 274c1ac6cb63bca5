"""Loops as users write them: each trains with zen bitwise as with a dense sum in worker order."""

import harness
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import PartitionSpec

import zen_jax as zen

pytestmark = pytest.mark.promoting  # optax.adam promotes dtypes

N, STEPS, ROWS, WIDTH = 4, 3, 203, 8
AXIS = harness.AXIS
RNG = np.random.default_rng(0)
TOKENS = jnp.asarray(RNG.integers(0, ROWS, (STEPS, N, 2, 6)).astype(np.int32))  # two examples per worker and step
PARAMS = {
    "table": jnp.asarray(RNG.normal(size=(ROWS, WIDTH)).astype(np.float32)),
    "w": jnp.asarray(RNG.normal(size=(WIDTH,)).astype(np.float32)),
}
PER_WORKER, SHARED = PartitionSpec(AXIS), PartitionSpec()


def loss(params, tokens):
    hidden = jnp.mean(params["table"][tokens], axis=1)
    return jnp.mean((hidden @ params["w"] - jnp.ones((), hidden.dtype)) ** 2)


def optimizer_of(scheme):
    return optax.chain(zen.synchronize(AXIS, scheme=scheme, dense_below=100), optax.adam(0.1))


def on_workers(step, out_specs=(SHARED, SHARED)):
    """step(params, state, tokens of one worker) on N devices."""
    mapped = lambda params, state, tokens: step(params, state, tokens[0])
    specs = {"in_specs": (SHARED, SHARED, PER_WORKER), "out_specs": out_specs}
    return jax.shard_map(mapped, mesh=harness.mesh(N), check_vma=False, **specs)


GRADIENT = jax.grad(loss)


def stepper(optimizer, gradients=GRADIENT):
    def step(params, state, tokens):
        updates, state = optimizer.update(gradients(params, tokens), state, params)
        return optax.apply_updates(params, updates), state

    return step


def run(step, optimizer, params=PARAMS):
    params = jax.tree.map(jnp.array, params)  # a copy, for loops that donate it
    state = optimizer.init(params)
    for tokens in TOKENS:
        params, state = step(params, state, tokens)
    return params


def plain(optimizer):
    return run(jax.jit(on_workers(stepper(optimizer))), optimizer)


def donated(optimizer):
    return run(jax.jit(on_workers(stepper(optimizer)), donate_argnums=(0, 1)), optimizer)


def rematerialised(optimizer):
    return run(jax.jit(on_workers(stepper(optimizer, jax.grad(jax.checkpoint(loss))))), optimizer)


def scanned(optimizer):
    """All steps are one program: lax.scan carries parameters, optimizer and info."""

    def loop(params, state, tokens):
        body = lambda carry, tokens: (stepper(optimizer)(*carry, tokens), None)
        return lax.scan(body, (params, state), tokens)[0]

    return jax.jit(on_workers(loop))(PARAMS, optimizer.init(PARAMS), jnp.swapaxes(TOKENS, 0, 1))[0]


def accumulated(optimizer):
    """Gradients are summed one example at a time before they are synchronised."""

    def gradients(params, tokens):
        add = lambda total, example: (jax.tree.map(jnp.add, total, jax.grad(loss)(params, example[None])), None)
        total, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, params), tokens)
        return jax.tree.map(lambda g: g / len(tokens), total)

    return run(jax.jit(on_workers(stepper(optimizer, gradients))), optimizer)


def mixed_precision(optimizer):
    """bfloat16 in the model, float32 in the parameters, and a loss scale that is undone before synchronising."""
    scale = 1024.0

    def scaled_loss(params, tokens):
        narrow = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        return scale * loss(narrow, tokens).astype(jnp.float32)

    def gradients(params, tokens):
        return jax.tree.map(lambda g: g / scale, jax.grad(scaled_loss)(params, tokens))

    return run(jax.jit(on_workers(stepper(optimizer, gradients))), optimizer)


def bfloat16_throughout(optimizer):
    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), PARAMS)
    return run(jax.jit(on_workers(stepper(optimizer))), optimizer, params)


def tensor_parallel(optimizer):
    """Tables split by columns over a model axis: shards are synchronised only over the workers."""
    mesh = harness.mesh((N, 2), (AXIS, "model"))
    shards = {"table": PartitionSpec(None, "model"), "w": PartitionSpec("model")}
    state_specs = jax.tree.map(
        lambda leaf: {(ROWS, WIDTH): shards["table"], (WIDTH,): shards["w"]}.get(leaf.shape, SHARED),
        optimizer.init(PARAMS),
    )

    def shard_loss(params, tokens):
        hidden = jnp.mean(params["table"][tokens], axis=1)
        return jnp.mean((lax.psum(hidden @ params["w"], "model") - 1) ** 2)

    def gradients(params, tokens):
        # Without check_vma the transpose of psum is psum: each shard's gradient is scaled by the number of shards.
        return jax.tree.map(lambda g: g / 2, jax.grad(shard_loss)(params, tokens))

    mapped = lambda params, state, tokens: stepper(optimizer, gradients)(params, state, tokens[0])
    specs = {"in_specs": (shards, state_specs, PER_WORKER), "out_specs": (shards, state_specs)}
    return run(jax.jit(jax.shard_map(mapped, mesh=mesh, check_vma=False, **specs)), optimizer)


LOOPS = [plain, donated, rematerialised, scanned, accumulated, mixed_precision, bfloat16_throughout, tensor_parallel]


@pytest.fixture(scope="module")
def expected():
    """The same steps on one device, with the gradient of the whole batch."""
    optimizer = optax.adam(0.1)
    params, state = PARAMS, optimizer.init(PARAMS)
    for tokens in TOKENS:
        updates, state = optimizer.update(jax.grad(loss)(params, tokens.reshape(2 * N, -1)), state, params)
        params = optax.apply_updates(params, updates)
    return params


@pytest.mark.parametrize("loop", LOOPS)
def test_zen_changes_no_bit(loop, expected):
    actual, dense = (loop(optimizer_of(scheme)) for scheme in ("zen", "dense_ordered"))
    for name, leaf in actual.items():
        assert (np.asarray(leaf) == np.asarray(dense[name])).all(), name
        if loop in (mixed_precision, bfloat16_throughout):
            # Adam turns the last bit of a small gradient into a whole step: 16-bit loops only move the same way.
            moved, right = ((np.asarray(end, np.float32) - PARAMS[name]).ravel() for end in (leaf, expected[name]))
            assert moved @ right > 0.9 * np.linalg.norm(moved) * np.linalg.norm(right), name
        else:
            np.testing.assert_allclose(leaf, expected[name], atol=1e-3)


@pytest.mark.parametrize("check_vma", [True, False])
def test_sparcml_beside_an_axis_whose_devices_would_branch_differently(check_vma):
    """All devices of a program take one branch, because a permute waits for all of them."""
    mesh = harness.mesh((N, 2), (AXIS, "model"))
    gradients = RNG.integers(-3, 4, (N, 2, ROWS, WIDTH)).astype(np.float32)
    gradients[:, 1] *= RNG.random((N, ROWS, 1)) < 0.01  # one shard of the model is dense, the other sparse
    reduce = lambda x: zen.all_reduce(x[0, 0], AXIS, scheme="sparcml", op="sum", return_info=True)
    own = lambda x: jax.tree.map(lambda leaf: leaf[None], reduce(x))
    specs = {"in_specs": PartitionSpec(AXIS, "model"), "out_specs": PartitionSpec("model")}
    reduced, info = jax.jit(jax.shard_map(own, mesh=mesh, check_vma=check_vma, **specs))(gradients)
    np.testing.assert_array_equal(reduced, gradients.sum(axis=0))
    assert info.dense_taken.tolist() == [1, 1] and info.density[1] < info.density[0]


def test_dynamic_loss_scaling_skips_a_step_on_all_workers():
    """One worker overflows in float16; after synchronize all see it, halve the scale and keep their parameters."""

    def step(params, state, tokens):
        inner, scale = state
        overflows = (lax.axis_index(AXIS) == 1) & (scale > 2**10)
        grads = jax.grad(lambda p: scale * loss(p, tokens))(params)
        grads = jax.tree.map(lambda g: jnp.where(overflows, jnp.inf, g).astype(jnp.float16), grads)
        reduced, _ = zen.synchronize(AXIS, scheme="zen", dense_below=100).update(grads, None)
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(reduced)]))
        reduced = jax.tree.map(lambda g: jnp.where(finite, g.astype(jnp.float32) / scale, 0), reduced)
        updates, after = optax.sgd(0.1).update(reduced, inner, params)
        params = jax.tree.map(lambda p, u: jnp.where(finite, p + u, p), params, updates)
        return params, (after, jnp.where(finite, scale, scale / 2)), finite

    run_step = jax.jit(on_workers(step, out_specs=(SHARED, SHARED, SHARED)))
    state = (optax.sgd(0.1).init(PARAMS), jnp.float32(2**11))
    params, state, finite = run_step(PARAMS, state, TOKENS[0])
    assert not finite and float(state[1]) == 2**10
    assert all((params[name] == PARAMS[name]).all() for name in PARAMS)
    params, state, finite = run_step(params, state, TOKENS[0])
    assert finite and not (params["table"] == PARAMS["table"]).all()
