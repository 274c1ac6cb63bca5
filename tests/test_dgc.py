"""Deep Gradient Compression: it follows the paper, warms up, shares thresholds, and trains as well as dense."""

import importlib
import math

import harness
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from cases import assert_same_bits, normal
from jax.sharding import PartitionSpec

import zen_jax as zen
from zen_jax import selection

pytestmark = pytest.mark.promoting  # optax's own arithmetic relies on promotion


def oracle_dgc(gradients, density, momentum, clip):
    """Lin et al., algorithm 4 with its equations, in float64; yields (sent, velocity, residual) per step."""
    velocity = residual = np.zeros(gradients[0].shape)
    for gradient in gradients:
        gradient = gradient.astype(np.float64)
        gradient *= min(1, clip / np.linalg.norm(gradient))
        velocity = momentum * velocity + gradient
        residual = residual + velocity
        mask = oracle.largest(residual.ravel(), math.ceil(density * gradient.size)).reshape(gradient.shape)
        sent = np.where(mask, residual, 0)
        velocity, residual = np.where(mask, 0, velocity), np.where(mask, 0, residual)
        yield sent, velocity, residual


@pytest.mark.parametrize("clipping", [{"clip_norm": 6.0, "op": "sum"}, {"clip_norm": 1.5}])
def test_dgc_follows_the_paper(clipping):
    """Small enough that 1.3 k is k, so the choice is the paper's too; the norm bound is one of four workers' share."""
    gradients = [normal((6, 5), step) for step in range(8)]
    sparsifier = zen.dgc(0.1, momentum=0.7, axis_name=harness.AXIS, **clipping)
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


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_momentum_of_vectors_forgets_what_is_not_finite(poison):
    sparsifier = zen.dgc()
    sent, state = sparsifier.update(jnp.ones(9).at[4].set(poison), sparsifier.init(jnp.zeros(9)))
    assert_same_bits(sent[4], np.float32(poison))
    sent, _ = sparsifier.update(jnp.ones(9), state)
    assert np.isfinite(sent).all()


def test_velocity_of_vectors_stays_finite_in_float16():
    sparsifier, gradient = zen.dgc(), jnp.array([6e4, -6e4, 6e-8], jnp.float16)
    sent, first = sparsifier.update(gradient, sparsifier.init(gradient))
    assert_same_bits(sent[:2], gradient[:2])
    assert_same_bits(np.float32(sent) + first.residual, np.float32(gradient))  # subnormals are kept
    sent, second = sparsifier.update(gradient, first)
    assert sent[:2].tolist() == [65504, -65504]
    assert_same_bits(np.float32(sent) + second.residual, first.residual + second.velocity)  # and what exceeds float16


@pytest.mark.parametrize("op", ["mean", "sum"])
def test_clipping_bounds_the_reduced_gradient(op):
    """Of workers whose gradients are independent."""
    gradients = normal((16, 50, 40))
    sparsifier = optax.chain(
        zen.dgc(1.0, momentum=0, clip_norm=2.0, axis_name=harness.AXIS, op=op), zen.synchronize(harness.AXIS, op=op)
    )
    worker = lambda g: sparsifier.update(g, sparsifier.init(g))[0]
    reduced = jax.vmap(worker, axis_name=harness.AXIS, out_axes=None)(gradients)
    np.testing.assert_allclose(np.linalg.norm(reduced), 2.0, rtol=0.1)


@pytest.mark.parametrize("scale", [0, 1e-30, 1, 3e19, 1e36])
def test_clipping_whatever_the_magnitude(scale):
    """Squares of a gradient may overflow or vanish: over two shards, for two workers, its norm is NumPy's."""
    gradients = normal((2, 2, 9)) * np.float32(scale)
    expected = gradients.astype(np.float64)
    expected *= np.minimum(
        1, math.sqrt(1 / 2) / np.maximum(np.linalg.norm(expected, axis=(1, 2), keepdims=True), 1e-99)
    )
    with jax.debug_nans(True):
        sent = clipped(gradients)
    np.testing.assert_allclose(sent, expected, 1e-5)


@pytest.mark.parametrize(("dtype", "scale", "norm"), [(np.float32, 1e38, 10), (np.float64, 1e300, math.sqrt(1 / 2))])
def test_clipping_loses_no_finite_gradient(dtype, scale, norm):
    """A factor that would be subnormal becomes the smallest normal number."""
    with jax.enable_x64(dtype is np.float64):
        gradients = normal((2, 2, 9)).astype(dtype) * dtype(scale)
        sent = clipped(gradients)
    lengths = np.linalg.norm(sent.reshape(2, -1), axis=1)
    directions = np.linalg.norm((gradients / scale).reshape(2, -1), axis=1)
    np.testing.assert_allclose(sent / lengths[:, None, None], gradients / scale / directions[:, None, None], 1e-5)
    assert (lengths > 0).all() and (lengths <= norm * (1 + 1e-6)).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_clipping_hides_nothing(poison):
    gradients = normal((2, 2, 9))
    gradients[0, 1, 3] = poison
    sent = clipped(gradients)
    np.testing.assert_array_equal(sent[0], gradients[0])
    assert np.isfinite(sent[1]).all()


def clipped(gradients):
    """What workers [n, shards, size] send with a bound of 1 on the norm."""
    sparsifier = zen.dgc(clip_norm=1.0, axis_name="data", op="sum", model_axis="model")
    worker = lambda g: sparsifier.update(g, sparsifier.init(g))[0]
    return np.asarray(jax.vmap(jax.vmap(worker, axis_name="model"), axis_name="data")(gradients))


@pytest.mark.parametrize("share", [1.0, 0.75, 2**-20])
@pytest.mark.parametrize("size", [1, 5000, 2**24 + 1, 2**31 - 1])
def test_a_schedule_sends_as_many_as_a_number(share, size):
    """Even though float32 cannot represent every size."""
    bounds = importlib.import_module("zen_jax.transforms.dgc")._bounds
    least, most = bounds(jnp.float32(share), size)
    assert least == math.ceil(share * size) and least <= most <= size


def test_clipping_takes_every_float_and_refuses_others():
    sparsifier = zen.dgc(0.5, clip_norm=np.float32(1), axis_name=harness.AXIS)
    sent = lambda g: sparsifier.update({"w": g}, sparsifier.init({"w": jnp.ones((4, 4), g.dtype)}))[0]
    with jax.numpy_dtype_promotion("strict"):
        for dtype in (jnp.bfloat16, jnp.float16, jnp.float32):
            emulated = jax.vmap(sent, axis_name=harness.AXIS)(jnp.ones((2, 4, 4), dtype))
            assert emulated["w"].dtype == dtype and np.isfinite(emulated["w"].astype(jnp.float32)).all()
    state = sparsifier.init({"w": jnp.ones((4, 4))})
    for dtype in (jnp.complex64, jnp.int8, jnp.float8_e4m3fn):
        with pytest.raises(ValueError, match=r"w has dtype .*, but gradients must be float32"):
            jax.vmap(lambda g: sparsifier.update({"w": g}, state), axis_name=harness.AXIS)(jnp.ones((2, 4, 4), dtype))


def test_a_schedule_returns_one_number():
    sparsifier = zen.dgc(lambda count: jnp.full(1, 0.5))
    with pytest.raises(ValueError, match=r"density has shape \(1,\), but must have shape \(\)"):
        sparsifier.update(jnp.ones((4, 4)), sparsifier.init(jnp.ones((4, 4))))


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
    """The shards of a leaf send the largest elements of the whole leaf, however uneven the shards are."""
    scale = np.array([1, 4, 0.1, 2], np.float32)[:, None, None]
    shards = normal((4, 12, columns)) * scale
    sharded = zen.dgc(0.1, model_axis=harness.AXIS)
    worker = lambda g: sharded.update(g, sharded.init(jnp.zeros((12, columns))))[0]
    sent = np.asarray(harness.spmd(worker, mode, 4)(shards))
    count = np.count_nonzero(sent)
    assert math.ceil(0.1 * shards.size) <= count <= 1.3 * 0.1 * shards.size + 1
    np.testing.assert_array_equal((sent != 0).ravel(), oracle.largest(shards.ravel(), count))


@pytest.mark.parametrize("mode", ["vmap", "shard_map"])
def test_ties_over_the_model_axis(mode):
    """Equal elements everywhere: k of them are sent, and at most one more from each further shard."""
    sparsifier = zen.dgc(0.1, model_axis=harness.AXIS)
    worker = lambda g: sparsifier.update(g, sparsifier.init(jnp.zeros((12, 8))))[0]
    sent = np.asarray(harness.spmd(worker, mode, 4)(np.ones((4, 12, 8), np.float32)))
    assert 39 <= np.count_nonzero(sent) <= 42


def test_shards_that_round_differently_agree():
    """Shards that ask for different numbers share the threshold of the largest: none leaves the others waiting."""
    shards = normal((4, 1000))
    mark = lambda x, k: selection.top_k_mask(x, k, k, model_axis=harness.AXIS)
    marked = jax.vmap(mark, axis_name=harness.AXIS)(shards, jnp.array([10, 12, 11, 10]))
    np.testing.assert_array_equal(np.asarray(marked).ravel(), oracle.largest(shards.ravel(), 12))


def test_data_and_model_axes_together():
    """Under check_vma, with clipping over both: each data worker's shards agree on their own threshold."""
    mesh = harness.mesh((2, 2), ("data", "model"))
    sparsifier = zen.dgc(zen.warmup_density(0.1, 10), clip_norm=1.0, axis_name="data", model_axis="model")
    gradients = normal((2, 2, 16, 6)) * np.array([1, 5], np.float32)[None, :, None, None]

    def worker(gradient):
        gradient = gradient[0, 0]
        first, state = sparsifier.update(gradient, sparsifier.init(jnp.zeros((16, 6))))
        second, _ = sparsifier.update(gradient, state)
        return first[None, None], second[None, None]

    spec = PartitionSpec("data", "model")
    sent = jax.jit(jax.shard_map(worker, mesh=mesh, in_specs=spec, out_specs=spec))(gradients)
    share = 0.1 ** (1 / 6)
    for gradient, first, second in zip(gradients, *map(np.asarray, sent), strict=True):
        count = np.count_nonzero(first)
        assert math.ceil(share * first.size) <= count <= 1.3 * share * first.size + 1
        np.testing.assert_array_equal((first != 0).ravel(), oracle.largest(gradient.ravel(), count))
        assert 0 < np.count_nonzero(second) <= 1.3 * share * second.size


def train(optimizer, steps=300, n=4):
    """The loss after training a linear model on noisy data that n workers share."""
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
    sparse = train(optax.chain(zen.dgc(0.05), zen.synchronize("data", unit="element", dense_below=0), optax.sgd(0.02)))
    assert 0.005 < dense < 0.012  # the noise's variance
    assert sparse == pytest.approx(dense, rel=0.02)
