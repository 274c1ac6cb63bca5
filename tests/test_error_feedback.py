"""Error feedback by custom calls against its pure-JAX lowering, to the bit: values, dtypes, batches, bad samples."""

import functools

import harness
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from cases import FLOATS, assert_same_bits, bits, normal
from hypothesis import given
from hypothesis import strategies as st

import zen_jax as zen
from zen_jax import selection
from zen_jax.kernels.send_drawn import reference as drawn_reference
from zen_jax.kernels.send_largest import reference as largest_reference
from zen_jax.kernels.send_reaching import reference as reaching_reference

MOMENTUM = 0.9
SAMPLED = selection.SAMPLED + 77


@functools.cache
def lowerings(kind, momentum=MOMENTUM):
    """The lowering that this machine uses, and pure JAX: each (update, residual, velocity, least, most) -> results."""

    def public(update, residual, velocity, least, most):
        if kind == "largest":
            return zen.kernels.send_largest(update, residual, least, most)[:2]
        scale = jnp.asarray(0.75, residual.dtype)
        options = {"velocity": velocity, "momentum": momentum, "scale": scale}
        return zen.kernels.send_largest(update, residual, least, most, **options)

    def reference(update, residual, velocity, least, most):
        scale = jnp.asarray(0.75, residual.dtype)
        velocity = None if kind == "largest" else velocity
        how = {"velocity": velocity, "momentum": momentum, "scale": scale}
        results = largest_reference(update, residual, least, most, **how)
        return results[:2] if velocity is None else results

    return jax.jit(public), jax.jit(reference)


@functools.cache
def drawn(k):
    def public(update, residual, step):
        return zen.kernels.send_drawn(update, residual, k, step)

    def reference(update, residual, step):
        return drawn_reference(update, residual, step, k=k)

    return jax.jit(public), jax.jit(reference)


@functools.cache
def reaching(value):
    def public(update, residual):
        return zen.kernels.send_reaching(update, residual, value)

    return jax.jit(public), jax.jit(functools.partial(reaching_reference, value=value))


def assert_alike(lowerings, *operands):
    """Bitwise equal, except for NaN payloads."""
    for actual, expected in zip(*(run(*operands) for run in lowerings), strict=True):
        actual, expected = np.asarray(actual), np.asarray(expected)
        np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
        keep = ~np.isnan(expected)
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(bits(actual)[keep], bits(expected)[keep])


def operands(shape, dtype, planted=()):
    """An update, a residual and a velocity, each with values planted at different places."""
    kept = np.float64 if dtype == np.float64 else np.float32
    update, residual, velocity = normal(shape, 0, dtype), normal(shape, 1, kept), normal(shape, 2, kept)
    for i, value in enumerate(planted):
        for j, array in enumerate((update, residual, velocity)):
            with np.errstate(over="ignore"):
                array.reshape(-1)[(11 * i + 5 * j) % array.size :: 97] = value
    return update, residual, velocity


def special(dtype):
    info = ml_dtypes.finfo(dtype)
    largest = float(info.max)
    return {
        "ordinary": (),
        "zeros": (0.0, -0.0, -0.0),
        "not finite": (np.nan, np.inf, -np.inf),
        "overflow": (largest, -largest, 2.0 * min(largest, 1e30)),
        "subnormal": (float(info.smallest_subnormal), -float(info.smallest_subnormal), float(info.tiny)),
    }


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(), (1,), (13, 3), (1087,)])
def test_every_dtype_and_special_value(dtype, shape):
    with jax.enable_x64(dtype == "float64"):
        for planted in special(FLOATS[dtype]).values():
            update, residual, velocity = operands(shape, FLOATS[dtype], planted)
            for k in {1, -(-update.size // 10), update.size}:
                for kind in ("largest", "momentum"):
                    for most in {k, min(int(1.3 * k), update.size)}:
                        assert_alike(lowerings(kind), update, residual, velocity, np.int32(k), np.int32(most))
            assert_alike(drawn(-(-update.size // 10)), update, residual, np.uint32(0x9747B28C))
            assert_alike(reaching(1.5), update, residual)


SPREADS = {
    "normal": lambda x: x,
    "equal": np.ones_like,
    "few values": np.round,
    "mostly zero": lambda x: np.where(np.arange(x.size) % 500 == 0, x, 0).astype(x.dtype),
    "in one place": lambda x: np.where(np.arange(x.size) // 50 == 700, x, 0).astype(x.dtype),
    "sorted": np.sort,
    "not finite in one place": lambda x: np.where(np.arange(x.size) // 3000 == 7, np.inf, x).astype(x.dtype),
}


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_samples_may_mislead(spread, dtype):
    """Large enough to be sampled: if the threshold lies outside the bracket, what was sent is first taken back."""
    update, residual, velocity = operands(SAMPLED, FLOATS[dtype])
    update = SPREADS[spread](update)
    for k in (1, 66, 6561, SAMPLED // 2):
        for most in (k, int(1.3 * k)):
            assert_alike(lowerings("largest"), update, 0 * residual, velocity, np.int32(k), np.int32(most))
            assert_alike(lowerings("momentum"), update, residual, velocity, np.int32(k), np.int32(most))
    assert_alike(drawn(6561), update, residual, np.uint32(0x9747B28C))


@given(st.integers(0, 2**32 - 1), st.floats(0, 1), st.floats(0.2, 5))
def test_any_distribution(seed, share, power):
    """Sampled, of any density and tail, with ties."""
    rng = np.random.default_rng(seed)
    x = np.sign(rng.normal(size=SAMPLED)) * np.abs(rng.normal(size=SAMPLED)) ** power
    update = np.where(rng.random(SAMPLED) < share, x, 0).astype(np.float32)
    update[rng.integers(0, SAMPLED, 200)] = 2.0
    residual = np.zeros(SAMPLED, np.float32)
    k = int(np.exp(rng.uniform(0, np.log(SAMPLED))))
    assert_alike(lowerings("largest"), update, residual, residual, np.int32(k), np.int32(k))


def test_random_choice_is_even():
    """The threshold of draws is predicted without a sample, for any size and k."""
    for size in (1, 2, 100, 5000, SAMPLED):
        for k in {1, -(-size // 100), -(-size // 5), size}:
            sent, residual = drawn(k)[0](np.ones(size, np.float32), np.zeros(size, np.float32), np.uint32(size))
            assert np.count_nonzero(sent) == k
            np.testing.assert_array_equal(sent + residual, 1)


@pytest.mark.parametrize("kind", ["largest", "momentum"])
def test_under_vmap(kind):
    """Workers' gradients of several dimensions, with a k for each."""
    update, residual, velocity = operands((2, 3, 40, 9), np.float32, (np.inf,))
    k = np.array([[1, 20, 360], [7, 100, 2]], np.int32)
    assert_alike([jax.vmap(jax.vmap(run)) for run in lowerings(kind)], update, residual, velocity, k, k)
    large = operands((3, SAMPLED), np.float32)
    k = np.array([50, 500, 5000], np.int32)
    assert_alike([jax.vmap(run) for run in lowerings(kind)], *large, k, k)
    none = operands((0, 3, 5), np.float32)
    assert_alike([jax.vmap(run) for run in lowerings(kind)], *none, k[:0], k[:0])


@pytest.mark.parametrize("mode", ["shard_map", "shard_map_unchecked"])
def test_under_shard_map(mode):
    update, residual, velocity = operands((4, 40, 9), np.float32)
    workers = [lambda xs, run=run: run(*xs, jnp.int32(5), jnp.int32(5)) for run in lowerings("momentum")]
    assert_alike([harness.spmd(worker, mode, 4) for worker in workers], (update, residual, velocity))


def test_operands_stay_as_they_were():
    """Buffers are reused only if the caller donates them."""
    update, residual, velocity = (jnp.asarray(x) for x in operands(1000, np.float32))
    before = [np.array(x) for x in (update, residual, velocity)]
    lowerings("momentum")[0](update, residual, velocity, np.int32(9), np.int32(9))
    zen.kernels.send_reaching(update, residual, 0.5)
    for array, copy in zip((update, residual, velocity), before, strict=True):
        assert_same_bits(array, copy)


def test_donated_state_is_not_copied():
    """The residual's buffer becomes the new residual's: a step allocates only one more array, for what is sent."""
    if not zen.backend_info()["cpu"].startswith("custom calls"):
        pytest.skip("pure JAX has its own ways")
    state = zen.dgc(0.1).init(jnp.zeros((300, 7)))
    step = jax.jit(lambda g, s: zen.dgc(0.1).update(g, s)[::-1], donate_argnums=1)
    compiled = step.lower(jnp.zeros((300, 7)), state).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 300 * 7 * 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda g, r: zen.kernels.send_largest(g.astype(jnp.int32), r, 1, 1), "int32"),
        (lambda g, r: zen.kernels.send_largest(g, r[:3], 1, 1), r"residual has shape \(3,\)"),
        (lambda g, r: zen.kernels.send_largest(g, r, 1, 1, velocity=r[:2]), r"velocity has shape \(2,\)"),
        (lambda g, r: zen.kernels.send_drawn(g, r, 0, jnp.uint32(0)), "k=0"),
        (lambda g, r: zen.kernels.send_drawn(g, r, 1, jnp.zeros(1, jnp.uint32)), r"step has shape \(1,\)"),
        (lambda g, r: zen.kernels.send_largest(g, r, 1, 1, velocity=r, scale=r[:1]), r"scale has shape \(1,\)"),
        (lambda g, r: zen.kernels.send_reaching(g, r[None], 1.0), r"residual has shape \(1, 5\)"),
    ],
)
def test_bad_operands(make, message):
    with pytest.raises(ValueError, match=message):
        make(jnp.ones(5), jnp.zeros(5))


@pytest.mark.parametrize("array", [False, True])
@pytest.mark.parametrize(
    ("least", "most", "message"),
    [
        (0, 3, "least=0 must be an integer of at least 1"),
        (1, 6, "most=6 must be at most 5"),
        (3, 2, "least=3 must be at most 2"),
        (1.5, 2, "least=1.5 must be an integer"),
    ],
)
def test_bounds_are_checked_where_they_are_known(least, most, message, array):
    """Numbers and arrays, also if the other bound is traced; traced bounds cannot be checked."""
    listed = functools.partial(zen.kernels.list_largest, room=2)
    if array:
        least, most = jnp.asarray(least), jnp.asarray(most)
    for send in (zen.kernels.send_largest, listed):
        with pytest.raises(ValueError, match=message):
            send(jnp.ones(5), jnp.zeros(5), least, most)
        with pytest.raises(ValueError, match="least=6 must be at most 5"):
            jax.eval_shape(lambda most, send=send: send(jnp.ones(5), jnp.zeros(5), 6, most), jnp.int32(2))
        with pytest.raises(ValueError, match=r"update\.size=0 must be an integer of at least 1"):
            jax.eval_shape(lambda k, send=send: send(jnp.ones((0, 3)), jnp.zeros((0, 3)), k, k), jnp.int32(1))
