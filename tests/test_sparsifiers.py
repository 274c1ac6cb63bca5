"""Sparsifiers: nothing is lost, as many elements go as were asked for, and models train as they do dense."""

import functools
import io
import math

import harness
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import FLOATS, assert_same_bits
from jax.sharding import AxisType, PartitionSpec

import zen_jax as zen
from zen_jax import selection

SPARSIFIERS = {
    "dgc": zen.dgc(0.1),
    "top_k": zen.top_k(0.1),
    "random_k": zen.random_k(0.1),
    "threshold": zen.threshold(1.5),
}
every_sparsifier = pytest.mark.parametrize("name", SPARSIFIERS)

pytestmark = pytest.mark.promoting  # optax's own arithmetic relies on promotion


@functools.cache
def update(name):
    return jax.jit(SPARSIFIERS[name].update)


def incoming(gradient, state):
    """What the update must split, computed as float arithmetic does it: last residual + gradient (or velocity)."""
    kind = state.residual.dtype.type
    gradient = np.asarray(gradient).astype(kind)
    if isinstance(state, zen.DgcState):
        gradient = np.asarray(jax.jit(lambda u, g: kind(0.9) * u + g)(state.velocity, gradient))
    with np.errstate(invalid="ignore"):
        return gradient + np.asarray(state.residual)


def normal(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


# --- nothing is lost --------------------------------------------------------------------------------------------


@every_sparsifier
@pytest.mark.parametrize("kind", FLOATS)
def test_sent_and_residual_are_what_came_in(name, kind):
    """To the bit, over several steps, for every dtype."""
    with jax.enable_x64(kind == "float64"):
        state = SPARSIFIERS[name].init(jnp.zeros((40, 9), FLOATS[kind]))
        assert state.residual.dtype == (np.float64 if kind == "float64" else np.float32)
        for step in range(4):
            gradient = jnp.asarray(normal((40, 9), step, FLOATS[kind]))
            total = incoming(gradient, state)
            sent, state = update(name)(gradient, state)
            assert sent.dtype == gradient.dtype
            assert 0 < np.count_nonzero(sent) < sent.size
            assert_same_bits(np.asarray(sent).astype(total.dtype) + np.asarray(state.residual), total)


VALUES = st.one_of(
    st.floats(width=32, allow_subnormal=False, min_value=-(2.0**60), max_value=2.0**60),
    st.sampled_from([0.0, -0.0, 1.0, -1.0]),
)


@every_sparsifier
@hypothesis.given(st.lists(VALUES, min_size=60, max_size=60), st.lists(VALUES, min_size=60, max_size=60))
def test_nothing_is_lost_whatever_comes(name, first, second):
    """Ties, zeros and any magnitudes: every element is either sent or kept, as it came."""
    state = SPARSIFIERS[name].init(jnp.zeros((6, 10)))
    for values in (first, second):
        gradient = np.array(values, np.float32).reshape(6, 10)
        total = incoming(gradient, state)
        sent, state = update(name)(gradient, state)
        sent, residual = np.asarray(sent), np.asarray(state.residual)
        assert ((sent == 0) | (residual == 0)).all()
        np.testing.assert_array_equal(np.where(sent != 0, sent, residual), total)


@every_sparsifier
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_sent_at_once(name, poison):
    """It shows in the update of its step, and no state remembers it."""
    state = SPARSIFIERS[name].init(jnp.zeros((40, 9)))
    gradient = normal((40, 9))
    poisoned = gradient.copy()
    poisoned[::3] = poison
    sent, state = update(name)(poisoned, state)
    np.testing.assert_array_equal(np.asarray(sent)[::3], poisoned[::3])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
    sent, _ = update(name)(gradient, state)
    assert np.isfinite(sent).all()


@every_sparsifier
def test_float16_overflow_stays_in_the_residual(name):
    """What is too large to be sent in 16 bits is sent in as many steps as it takes."""
    state = SPARSIFIERS[name].init(jnp.zeros((2, 1), jnp.float16))
    state = state._replace(residual=jnp.full((2, 1), 1e5, jnp.float32))
    if name == "random_k":
        state = state._replace(residual=jnp.full((2, 1), 1e5, jnp.float32).at[1].set(0))
    sent, new = update(name)(jnp.zeros((2, 1), jnp.float16), state)
    assert np.isfinite(sent).all()
    assert np.isfinite(new.residual).all()
    np.testing.assert_array_equal(np.asarray(sent, np.float32) + np.asarray(new.residual), state.residual)


@every_sparsifier
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (1, 1), (127,), (129, 1), (5, 3, 2)])
def test_shapes(name, shape):
    gradient = 4 * np.ones(shape, np.float32)
    state = SPARSIFIERS[name].init(jnp.zeros(shape))
    sent, state = SPARSIFIERS[name].update(gradient, state)
    residual = 0 if name == "dgc" and len(shape) < 2 else np.asarray(state.residual)
    assert sent.shape == shape
    np.testing.assert_array_equal(np.asarray(sent) + residual, gradient)
    assert not gradient.size or np.count_nonzero(sent)


@every_sparsifier
def test_zeros_send_zeros(name):
    sent, state = update(name)(jnp.zeros((40, 9)), SPARSIFIERS[name].init(jnp.zeros((40, 9))))
    assert not np.any(sent)
    assert not np.any(state.residual)


@every_sparsifier
def test_trees_with_none_and_masked_nodes(name):
    params = {"a": jnp.zeros((4, 5)), "b": None, "c": (optax.MaskedNode(), jnp.zeros(3)), "d": {}}
    gradients = {"a": jnp.ones((4, 5)), "b": None, "c": (optax.MaskedNode(), jnp.ones(3)), "d": {}}
    sent, state = SPARSIFIERS[name].update(gradients, SPARSIFIERS[name].init(params))
    assert jax.tree.structure(sent) == jax.tree.structure(gradients)
    assert jax.tree.structure(state) == jax.tree.structure(SPARSIFIERS[name].init(params))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
    empty, _ = SPARSIFIERS[name].update({}, SPARSIFIERS[name].init({}))
    assert empty == {}


@every_sparsifier
def test_state_survives_a_checkpoint(name):
    """Saved and loaded as plain NumPy arrays, it goes on with the same bits."""
    state = SPARSIFIERS[name].init(jnp.zeros((40, 9)))
    for step in range(2):
        _, state = update(name)(normal((40, 9), step), state)
    leaves, treedef = jax.tree.flatten(state)
    file = io.BytesIO()
    np.savez(file, *leaves)
    file.seek(0)
    loaded = treedef.unflatten([jnp.asarray(leaf) for leaf in np.load(file).values()])
    for actual, expected in zip(
        jax.tree.leaves(update(name)(normal((40, 9), 2), loaded)),
        jax.tree.leaves(update(name)(normal((40, 9), 2), state)),
        strict=True,
    ):
        assert_same_bits(actual, expected)


# --- how many are sent, and which ---------------------------------------------------------------------------------


def expected_top(x, k):
    """The k largest magnitudes of x, of equal ones those of lowest index, by a stable sort."""
    mask = np.zeros(x.size, bool)
    mask[np.argsort(-np.abs(x), kind="stable")[:k]] = True
    return mask


@functools.cache
def largest(size):
    return jax.jit(selection.largest)


@hypothesis.given(st.lists(st.integers(-4, 4), min_size=150, max_size=150), st.integers(1, 150))
def test_exactly_k_with_the_first_of_equals(values, k):
    x = np.array(values, np.float32)
    marked = np.asarray(largest(150)(x, k, k))
    np.testing.assert_array_equal(marked & (x != 0), expected_top(x, k) & (x != 0))


@pytest.mark.parametrize("kind", FLOATS)
def test_exactly_k_of_every_dtype(kind):
    with jax.enable_x64(kind == "float64"):
        x = normal(1000, dtype=FLOATS[kind])
        for k in (1, 2, 128, 999, 1000):
            marked = largest(1000)(jnp.asarray(x), k, k)
            np.testing.assert_array_equal(marked, expected_top(x.astype(np.float64), k))


LARGE = selection.SAMPLED + 77


@pytest.mark.parametrize(
    "spread",
    {
        "normal": lambda x: x,
        "equal": lambda x: np.ones_like(x),
        "few values": lambda x: np.round(x),
        "heavy tail": lambda x: x**9,
        "mostly zero": lambda x: np.where(np.arange(x.size) % 500 == 0, x, 0).astype(np.float32),
        "in one place": lambda x: np.where(np.arange(x.size) // 50 == 700, x, 0).astype(np.float32),
        "sorted": np.sort,
    }.items(),
    ids=lambda spread: spread[0],
)
def test_a_sample_misleads_nobody(spread):
    """Above the size from which a sample is taken, the answer is the same; with slack, it is within it."""
    x = spread[1](normal(LARGE))
    for k in (1, 66, 6561, LARGE):
        marked = np.asarray(largest(LARGE)(x, k, k))
        np.testing.assert_array_equal(marked & (x != 0), expected_top(x, k) & (x != 0))
        most = min(int(1.3 * k), LARGE)
        marked = np.asarray(largest(LARGE)(x, k, most)) & (x != 0)
        assert min(k, np.count_nonzero(x)) <= marked.sum() <= most
        np.testing.assert_array_equal(marked, expected_top(x, marked.sum()) & (x != 0))


@pytest.mark.parametrize("density", [0.001, 0.07, 0.5, 1, 1.0])
def test_k_is_the_density_as_written(density):
    x = 1 + np.abs(normal(300))
    k = {0.001: 1, 0.07: 21, 0.5: 150, 1: 300}[density]
    for sparsifier in (zen.top_k(density), zen.random_k(density)):
        sent, _ = sparsifier.update(x, sparsifier.init(jnp.zeros(300)))
        assert np.count_nonzero(sent) == k


def test_random_k_chooses_alike_on_every_worker_and_anew_each_step():
    sparsifier = zen.random_k(0.05, seed=7)
    worker = lambda gradient: sparsifier.update(gradient, sparsifier.init(jnp.zeros((40, 50))))[0]  # noqa: E731
    sent = np.asarray(harness.spmd(worker, "vmap", 4)(1 + np.abs(normal((4, 40, 50)))))
    assert ((sent != 0) == (sent != 0)[0]).all()
    state, seen, step = sparsifier.init(jnp.zeros((40, 50))), np.zeros((40, 50)), jax.jit(sparsifier.update)
    for _ in range(60):
        sent, state = step(jnp.ones((40, 50)), state)
        seen += np.asarray(sent) != 0
    assert seen.sum() == 60 * 100
    # Sixty draws at 5 % are 3 on average; no element is left out or favoured beyond chance.
    assert abs(seen.std() - math.sqrt(60 * 0.05 * 0.95)) < 0.2
    other = zen.random_k(0.05, seed=8)
    assert np.any(
        np.asarray(other.update(jnp.ones((40, 50)), other.init(jnp.zeros((40, 50))))[0]) != worker(jnp.ones((40, 50)))
    )


# --- dgc ----------------------------------------------------------------------------------------------------------


def oracle_dgc(gradients, density, momentum, clip):
    """Lin et al., algorithm 4 with its equations, in float64; yields (sent, velocity, residual) a step."""
    velocity = residual = np.zeros(gradients[0].shape)
    for gradient in gradients:
        gradient = gradient.astype(np.float64)
        gradient *= min(1, clip / np.linalg.norm(gradient))
        velocity = momentum * velocity + gradient
        residual = residual + velocity
        mask = expected_top(residual.ravel(), math.ceil(density * gradient.size)).reshape(gradient.shape)
        sent = np.where(mask, residual, 0)
        velocity, residual = np.where(mask, 0, velocity), np.where(mask, 0, residual)
        yield sent, velocity, residual


def test_dgc_follows_the_paper():
    """Small enough that 1.3 k is k, so that the choice is the paper's too; the norm is a fourth worker's share."""
    gradients = [normal((6, 5), step) for step in range(8)]
    sparsifier = zen.dgc(0.1, momentum=0.7, clip_norm=6.0, axis_name=harness.AXIS)
    state = jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), sparsifier.init(jnp.zeros((6, 5))))
    run = jax.jit(jax.vmap(sparsifier.update, axis_name=harness.AXIS))
    for gradient, expected in zip(gradients, oracle_dgc(gradients, 0.1, 0.7, clip=6.0 / math.sqrt(4)), strict=True):
        sent, state = run(jnp.stack([gradient] * 4), state)
        for actual, wanted in zip((sent, state.velocity, state.residual), expected, strict=True):
            np.testing.assert_allclose(actual[3], wanted, 1e-5, 1e-6)


def test_dgc_leaves_vectors_to_momentum():
    sparsifier, plain = zen.dgc(0.1, momentum=0.8), optax.trace(0.8)
    state, expected_state = sparsifier.init(jnp.zeros(9)), plain.init(jnp.zeros(9))
    for step in range(3):
        sent, state = sparsifier.update(jnp.asarray(normal(9, step)), state)
        expected, expected_state = plain.update(jnp.asarray(normal(9, step)), expected_state)
        np.testing.assert_allclose(sent, expected, 1e-6)


def test_dgc_warms_up():
    sparsifier = zen.dgc(zen.warmup_density(0.01, steps=10, stages=5))
    state, step = sparsifier.init(jnp.zeros((100, 100))), jax.jit(sparsifier.update)
    counts = []
    for i in range(12):
        sent, state = step(normal((100, 100), i), state)
        counts.append(np.count_nonzero(sent))
    densities = [0.01 ** (stage / 6) for stage in (1, 2, 3, 4, 5, 6) for _ in range(2)]
    for count, density in zip(counts, densities, strict=True):
        assert math.ceil(1e4 * density) <= count <= 1.3 * 1e4 * density + 1


@pytest.mark.parametrize(("mode", "columns"), [("vmap", 8), ("shard_map", 8), ("shard_map_unchecked", 20000)])
def test_dgc_shares_a_threshold_over_the_model_axis(mode, columns):
    """The shards of a leaf send what is largest in the whole leaf, however uneven they are."""
    scale = np.array([1, 4, 0.1, 2], np.float32)[:, None, None]
    shards = normal((4, 12, columns)) * scale
    whole = zen.dgc(0.1)
    expected, _ = whole.update(jnp.asarray(shards.reshape(48, columns)), whole.init(jnp.zeros((48, columns))))
    sharded = zen.dgc(0.1, model_axis=harness.AXIS)
    worker = lambda g: sharded.update(g, sharded.init(jnp.zeros((12, columns))))[0]  # noqa: E731
    sent = np.asarray(harness.spmd(worker, mode, 4)(shards))
    count = np.count_nonzero(sent)
    assert math.ceil(0.1 * shards.size) <= count <= 1.3 * 0.1 * shards.size + 1
    np.testing.assert_array_equal((sent != 0).ravel(), expected_top(shards.ravel(), count))
    assert count / np.count_nonzero(expected) == pytest.approx(1, abs=0.3)


@pytest.mark.parametrize("mode", ["vmap", "shard_map"])
def test_ties_over_the_model_axis(mode):
    """Equal elements everywhere: k of them go, and at most one more from each further shard."""
    sparsifier = zen.dgc(0.1, model_axis=harness.AXIS)
    worker = lambda g: sparsifier.update(g, sparsifier.init(jnp.zeros((12, 8))))[0]  # noqa: E731
    sent = np.asarray(harness.spmd(worker, mode, 4)(np.ones((4, 12, 8), np.float32)))
    assert 39 <= np.count_nonzero(sent) <= 42


def test_data_and_model_axes_together():
    """Under check_vma, with clipping over both: every data worker's shards agree on a threshold of their own."""
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])
    sparsifier = zen.dgc(zen.warmup_density(0.1, 10), clip_norm=1.0, axis_name="data", model_axis="model")
    gradients = normal((2, 2, 16, 6)) * np.array([1, 5], np.float32)[None, :, None, None]

    def worker(gradient):
        gradient = gradient[0, 0]
        sent, state = sparsifier.update(gradient, sparsifier.init(jnp.zeros((16, 6))))
        sent, _ = sparsifier.update(gradient, state)
        return sent[None, None]

    spec = PartitionSpec("data", "model")
    sent = np.asarray(jax.jit(jax.shard_map(worker, mesh=mesh, in_specs=spec, out_specs=spec))(gradients))
    first_share = 0.1 ** (1 / 6)
    for of_worker in sent:
        assert 0 < np.count_nonzero(of_worker) <= 1.3 * first_share * of_worker.size


# --- training -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "mode"), [*((name, "vmap") for name in SPARSIFIERS), ("dgc", "shard_map_unchecked")])
def test_chain_with_synchronize_sends_the_mean_of_what_was_sent(name, mode):
    gradients = normal((4, 40, 9))
    chain = optax.chain(SPARSIFIERS[name], zen.synchronize(harness.AXIS, unit="element"), optax.sgd(1.0))
    worker = lambda g: chain.update(g, chain.init(jnp.zeros((40, 9))), jnp.zeros((40, 9)))[0]  # noqa: E731
    updates = np.asarray(harness.spmd(worker, mode, 4)(gradients))
    alone = [update(name)(g, SPARSIFIERS[name].init(jnp.zeros((40, 9))))[0] for g in gradients]
    assert (updates == updates[0]).all()
    np.testing.assert_allclose(updates[0], -np.mean(alone, axis=0), 1e-6, 1e-7)


def train(optimizer, steps=300, n=4):
    """Loss of a linear model on noisy data that n workers share, after training."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(n, 64, 30)).astype(np.float32)
    targets = inputs @ rng.normal(size=(30, 4)).astype(np.float32) + 0.1 * rng.normal(size=(n, 64, 4))
    targets = targets.astype(np.float32)
    params = {"kernel": jnp.zeros((30, 4)), "bias": jnp.zeros(4)}

    def loss(params, inputs, targets):
        return jnp.mean((inputs @ params["kernel"] + params["bias"][None, :] - targets) ** 2)

    def worker(carry, inputs, targets):
        params, state = carry
        gradients = jax.grad(loss)(params, inputs, targets)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    def step(carry, _):
        return jax.vmap(worker, axis_name="data")(carry, inputs, targets), None

    carry = jax.tree.map(lambda leaf: jnp.stack([leaf] * n), (params, optimizer.init(params)))
    (params, _), _ = jax.jit(lambda carry: jax.lax.scan(step, carry, length=steps))(carry)
    assert all((leaf == leaf[:1]).all() for leaf in jax.tree.leaves(params))
    return float(jax.vmap(loss)(params, inputs, targets).mean())


def test_dgc_trains_as_well_as_dense():
    dense = train(optax.chain(zen.synchronize("data"), optax.sgd(0.02, momentum=0.9)))
    sparse = train(optax.chain(zen.dgc(0.05), zen.synchronize("data", unit="element"), optax.sgd(0.02)))
    assert 0.005 < dense < 0.012  # the noise's variance
    assert sparse == pytest.approx(dense, rel=0.02)


# --- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("density", [0, -0.1, 1.5, math.nan, math.inf, "1%", None, True])
@pytest.mark.parametrize("factory", [zen.dgc, zen.top_k, zen.random_k, lambda d: zen.warmup_density(d, 5)])
def test_density_out_of_range(factory, density):
    with pytest.raises(ValueError, match=r"density=.* above 0 and at most 1"):
        factory(density)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: zen.threshold(0), "value=0 must be a finite number above 0"),
        (lambda: zen.threshold(math.nan), "value=nan"),
        (lambda: zen.random_k(0.1, seed=-1), "seed=-1"),
        (lambda: zen.dgc(momentum=1.0), "momentum=1.0"),
        (lambda: zen.dgc(clip_norm=1.0), "pass axis_name"),
        (lambda: zen.dgc(clip_norm=0.0, axis_name="data"), "clip_norm=0.0"),
        (lambda: zen.warmup_density(0.1, steps=0), "steps=0"),
        (lambda: zen.warmup_density(0.1, steps=5, stages=0), "stages=0"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@every_sparsifier
def test_bad_gradients(name):
    sparsifier = SPARSIFIERS[name]
    with pytest.raises(ValueError, match="step has dtype int32"):
        sparsifier.init({"step": jnp.zeros(3, jnp.int32)})
    state = sparsifier.init({"w": jnp.zeros((3, 2))})
    with pytest.raises(ValueError, match="w has shape"):
        sparsifier.update({"w": jnp.zeros((2, 3))}, state)


def test_unbound_axes():
    for options in ({"model_axis": "model"}, {"clip_norm": 1.0, "axis_name": "data"}):
        sparsifier = zen.dgc(**options)
        with pytest.raises(ValueError, match="is not a named axis here"):
            sparsifier.update(jnp.zeros((3, 2)), sparsifier.init(jnp.zeros((3, 2))))
