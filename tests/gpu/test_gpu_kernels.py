"""Every CUDA kernel against the pure-JAX lowering on the CPU: dtypes, rows, overflow."""

import functools
import importlib

import jax
import numpy as np
import oracle
import pytest
from cases import FLOATS, assert_same_bits, assert_same_values, held, sparse

import zen_jax as zen
from zen_jax.kernels.send_largest import reference as largest_reference

SEED = 5
WIDTHS = [1, 3, 64]


def reference(name, *arrays, **options):
    """The pure-JAX lowering, on the CPU: what a GPU computes is not checked by a GPU."""
    lowering = importlib.import_module(f"zen_jax.kernels.{name}").reference
    with jax.default_device(jax.devices("cpu")[0]):
        results = jax.jit(lambda *arrays: lowering(*arrays, **options))(*arrays)
    return jax.tree.map(np.asarray, results)


def gradient(units, width, density, dtype):
    """Random floats at random rows, with a NaN and an infinity among them."""
    x = sparse(np.random.default_rng([units, width]), 1, (units, width), density, dtype, integers=False)[0]
    x[units // 3], x[units // 2, -1] = np.nan, -np.inf
    return x


@jax.jit
def entries(positions, values, at):
    """Entries at (servers, slots). Unwritten ones stay on the device: copying them would be an initcheck error."""
    return positions[at], values[at]


def check_buckets(actual, expected, capacity):
    positions, values, counts = actual
    np.testing.assert_array_equal(counts, expected[2])
    at = held(expected[2], capacity)
    positions, values = entries(positions, values, at)
    np.testing.assert_array_equal(positions, expected[0][at])
    assert_same_bits(values, expected[1][at])


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=FLOATS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("n", [1, 7, 128])
def test_partition(n, width, dtype):
    units, capacity = 200_003 // width, 40_000 // (n * width) + 1
    x = gradient(units, width, 0.1, dtype)
    actual = jax.jit(lambda x: zen.kernels.partition(x, n, capacity, seed=SEED))(x)
    check_buckets(actual, reference("partition", x, n=n, capacity=capacity, seed=SEED), capacity)


@pytest.mark.parametrize("n", [1024, 1025, 4001])
@pytest.mark.parametrize("width", [1, 5])
def test_partition_for_many_servers(n, width):
    x = gradient(30_011, width, 0.4, np.float32)
    actual = jax.jit(lambda x: zen.kernels.partition(x, n, 9, seed=SEED))(x)
    check_buckets(actual, reference("partition", x, n=n, capacity=9, seed=SEED), 9)


@pytest.mark.parametrize("n", [40, 1000])
def test_partition_over_groups_of_chunks(n):
    """More chunks than a look-back's group holds, and for so many servers that it has groups."""
    x, capacity = gradient(600_011, 1, 0.05, np.float32), 45_000 // n
    actual = jax.jit(lambda x: zen.kernels.partition(x, n, capacity, seed=SEED))(x)
    check_buckets(actual, reference("partition", x, n=n, capacity=capacity, seed=SEED), capacity)


def inbox(n, size, capacity, width, dtype):
    """Messages of n workers: positions, values, counts."""
    rng = np.random.default_rng(width)
    counts = rng.integers(0, capacity, n, np.int32)
    counts[n // 2] = capacity + 5  # a message that did not fit
    positions = np.sort(np.stack([rng.permutation(size)[:capacity] for _ in range(n)]).astype(np.int32))
    return positions, rng.normal(size=(n, capacity, width)).astype(dtype), counts


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=FLOATS)
@pytest.mark.parametrize("width", [*WIDTHS, 20_000])
@pytest.mark.parametrize("room", [10, 50_000])
def test_aggregate_encode_is_both_in_a_row(room, width, dtype):
    """Shards of many blocks, with narrow rows, wide rows and rows wider than a block sums at once."""
    n, size = (9, 50_011 // width) if width < 1000 else (3, 37)
    messages = inbox(n, size, max(size // 4, 1), width, dtype)
    room = min(room, size)
    run = jax.jit(lambda *messages: zen.kernels.aggregate_encode(*messages, size, room, divisor=3))
    words, units, count = run(*messages)
    expected_words, expected_units, expected_count = reference(
        "aggregate_encode", *messages, size=size, capacity=room, divisor=3
    )
    np.testing.assert_array_equal(words, expected_words)
    assert int(count) == expected_count
    filled = min(int(count), room)
    assert_same_bits(units[:filled], expected_units[:filled])


def test_aggregate_encode_of_many_workers():
    n, size, capacity = 700, 40_000, 150
    messages = inbox(n, size, capacity, 1, np.float32)
    words, units, count = jax.jit(lambda *messages: zen.kernels.aggregate_encode(*messages, size, size))(*messages)
    expected = reference("aggregate_encode", *messages, size=size, capacity=size)
    np.testing.assert_array_equal(words, expected[0])
    assert_same_bits(units[: int(count)], expected[1][: int(expected[2])])


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=FLOATS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("divisor", [1, 3])
def test_aggregate_adds_in_worker_order(divisor, width, dtype):
    n, size, capacity = 9, 20_011 // width, 5_000 // width
    positions, values, counts = inbox(n, size, capacity, width, dtype)
    run = jax.jit(lambda *message: zen.kernels.aggregate(*message, size, divisor=divisor))
    shard = run(positions, values, counts)
    assert_same_bits(shard, reference("aggregate", positions, values, counts, size=size, divisor=divisor))
    assert_same_bits(run(positions, values, counts), shard, "a rerun")


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=FLOATS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("capacity", [10, 100_000])
def test_encode(capacity, width, dtype):
    shard = gradient(150_001 // width, width, 0.2, dtype)
    words, values, count = jax.jit(lambda shard: zen.kernels.hash_bitmap_encode(shard, capacity))(shard)
    expected_words, expected_values, expected_count = reference("hash_bitmap_encode", shard, capacity=capacity)
    np.testing.assert_array_equal(words, expected_words)
    assert int(count) == expected_count
    filled = min(int(count), capacity)
    assert_same_bits(values[:filled], expected_values[:filled])


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=FLOATS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("n", [1, 7, 128, 301, 1025])
def test_decode(n, width, dtype):
    size, capacity = 150_001 // width, 20_000 // (n * width) + 1
    rng = np.random.default_rng(n)
    tiles = oracle.tiles(size, n)
    bits = rng.random((n, -(-tiles // 32), 32)) < 0.2
    bits.reshape(n, -1)[:, tiles:] = False
    words = (bits * (np.uint32(1) << np.arange(32, dtype=np.uint32))).sum(2, dtype=np.uint32)
    values = rng.normal(size=(n, capacity, width)).astype(dtype)
    out = jax.jit(lambda *message: zen.kernels.hash_bitmap_decode(*message, size, seed=SEED))(words, values)
    assert_same_bits(out, reference("hash_bitmap_decode", words, values, size=size, seed=SEED))


@pytest.mark.parametrize(("r1", "r2"), [(4_000, 4_000), (50, 3_000), (3_000, 5), (1, 0)])
def test_hierarchical_hash(r1, r2):
    n, k = 5, 3
    indices = np.random.default_rng(r1).permutation(100_000)[:10_000].astype(np.int32)
    indices[::7] = -1
    memory, counts, overflow = jax.jit(lambda i: zen.kernels.hierarchical_hash(i, n, r1, r2, k, seed=SEED))(indices)
    expected, expected_counts, _ = reference("hierarchical_hash", indices, n=n, r1=r1, r2=r2, k=k, seed=SEED)
    np.testing.assert_array_equal(counts, expected_counts)
    kept, expected = ([row[row != oracle.EMPTY_SLOT] for row in np.asarray(slots)] for slots in (memory, expected))
    assert sum(map(len, kept)) + int(overflow) == (indices != -1).sum()
    for partition, found in enumerate(kept):
        assert len(np.unique(found)) == len(found)
        np.testing.assert_array_equal(oracle.reduce_to_range(oracle.murmur3(found, SEED), n), partition)
        if int(overflow) == 0:
            np.testing.assert_array_equal(np.sort(found), np.sort(expected[partition]))


SPREADS = {
    "normal": lambda x: x,
    "ties": np.round,
    "in one place": lambda x: np.where(np.arange(x.size) < x.size // 20, 50 + x, 0).astype(x.dtype),
}


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("dtype", FLOATS.values(), ids=FLOATS)
@pytest.mark.parametrize("size", [3_001, 200_003])
def test_send_largest(size, dtype, spread):
    """Sampled or not, with or without a velocity, with misleading samples and with ties to break."""
    rng = np.random.default_rng(size)
    update = SPREADS[spread](rng.normal(size=size)).astype(dtype)
    kept = np.float64 if dtype == np.float64 else np.float32
    residual, velocity = (rng.normal(size=size).astype(kept) for _ in range(2))
    update[size // 3], update[size // 2] = np.nan, -np.inf
    bounds = np.array([(1, 1), (size // 100, size // 80), (size // 5, size // 5), (size, size)], np.int32)
    for least, most in bounds:
        check_send_largest(update, residual, velocity, least, most, has_velocity=True)
        check_send_largest(update, 0 * residual, velocity, least, most, has_velocity=False)


@functools.cache
def send_largest_lowerings(has_velocity, room):
    """Custom calls for an array and for a list, and pure JAX on the CPU: each maps (update, residual, velocity, least,
    most) to results."""

    def options(residual, velocity):
        return {"velocity": velocity, "momentum": 0.75, "scale": residual.dtype.type(0.5)} if has_velocity else {}

    def send(update, residual, velocity, least, most):
        how = options(residual, velocity)
        return zen.kernels.send_largest(update, residual, least, most, **how)[: 2 + has_velocity]

    def enlist(update, residual, velocity, least, most):
        how = options(residual, velocity)
        return zen.kernels.list_largest(update, residual, least, most, room, **how)[: 2 + has_velocity]

    def lowering(update, residual, velocity, least, most):
        return largest_reference(update, residual, least, most, **options(residual, velocity))[: 2 + has_velocity]

    return jax.jit(send), jax.jit(enlist), jax.jit(lowering)


def check_send_largest(*operands, has_velocity):
    room = operands[0].size // 3
    send, enlist, lowering = send_largest_lowerings(has_velocity, room)
    with jax.default_device(jax.devices("cpu")[0]):
        expected = lowering(*operands)
    for actual, wanted in zip(send(*operands), expected, strict=True):
        assert_same_values(actual, wanted)
    (indices, values, count), *state = enlist(*operands)
    for actual, wanted in zip(state, expected[1:], strict=True):
        assert_same_values(actual, wanted)
    sent = np.asarray(expected[0])
    nonzero = np.flatnonzero(sent)
    assert int(count) == nonzero.size
    listed = nonzero[:room]
    indices, values = entries(indices, values, np.arange(listed.size))
    np.testing.assert_array_equal(indices, listed)
    assert_same_values(values, sent[listed])


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=FLOATS)
@pytest.mark.parametrize("n", [7, 1024, 3001])
def test_partition_of_a_list(n, dtype):
    """Lists that are empty, cut off or seemingly too long; more servers than a block keeps counters for."""
    x = gradient(50_021, 1, 0.3, dtype)[:, 0]
    indices = np.flatnonzero(x).astype(np.int32)
    capacity = 20_000 // n + 1
    run = jax.jit(lambda *listed: zen.kernels.partition_coo(*listed, n, capacity, seed=SEED))
    for count in (0, indices.size // 2, indices.size, indices.size + 5):
        listed = indices, x[indices], np.int32(count)
        check_buckets(run(*listed), reference("partition_coo", *listed, n=n, capacity=capacity, seed=SEED), capacity)
