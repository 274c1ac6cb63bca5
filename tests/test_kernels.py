"""Every kernel in both lowerings against NumPy: values, batching, dtypes, capacities, edges, properties."""

import functools
import importlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from cases import FLOATS, assert_same_bits, assert_same_values, held, sparse, special, structured
from hypothesis import given
from hypothesis import strategies as st

import zen_jax as zen
from zen_jax import _native

NAMES = ["partition", "aggregate", "hash_bitmap_encode", "hash_bitmap_decode", "hierarchical_hash"]
WORKERS = [1, 2, 3, 4, 5, 7, 8, 128]
# [U] and [U, D]: empty, one, prime, more than one 32-bit word per server, no columns.
SHAPES = [(0,), (1,), (13,), (509,), (0, 3), (13, 3), (67, 4), (5, 0)]
SEED = 5


def kernel(name, lowering):
    """The public function with the lowering that this machine uses, or its pure-JAX reference.

    References take only rows, so elements become rows of one column here.
    """
    if lowering == "public":
        return getattr(zen.kernels, name)
    reference = importlib.import_module(f"zen_jax.kernels.{name}").reference
    if name in ("hierarchical_hash", "unique_ids", "aggregate_for_others", "place_own"):
        return reference
    elements = {"partition": 1, "aggregate": 2, "hash_bitmap_encode": 1, "hash_bitmap_decode": 2}[name]
    values_at = 0 if name in ("partition", "hash_bitmap_encode") else 1
    out_at = {"partition": 1, "hash_bitmap_encode": 1}.get(name)

    def with_elements(*args, **kwargs):
        if args[values_at].ndim > elements:
            return reference(*args, **kwargs)
        args = [arg[..., None] if i == values_at else arg for i, arg in enumerate(args)]
        out = reference(*args, **kwargs)
        if out_at is None:
            return out[..., 0]
        return tuple(part[..., 0] if i == out_at else part for i, part in enumerate(out))

    return with_elements


@functools.cache
def stages(lowering, n, capacity, divisor=1):
    """stack [n, U(, D)] -> each kernel's results, from the gradients all the way to their sum, in one compilation.

    Partition, aggregate and encode run under vmap, so this also tests batching.
    """
    partition, aggregate, encode, decode = (kernel(name, lowering) for name in NAMES[:4])

    @jax.jit
    def run(stack):
        size = stack.shape[1]
        positions, values, counts = jax.vmap(lambda x: partition(x, n, capacity, seed=SEED))(stack)
        push = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (positions, values, counts))
        shards = jax.vmap(lambda p, v, c: aggregate(p, v, c, oracle.tiles(size, n), divisor=divisor))(*push)
        words, pulled, totals = jax.vmap(lambda shard: encode(shard, capacity))(shards)
        return positions, values, counts, shards, words, pulled, totals, decode(words, pulled, size, seed=SEED)

    return lambda stack: [np.asarray(result) for result in run(stack)]


def check_stages(results, stack, n, capacity, divisor=1, same=assert_same_bits):
    positions, values, counts, shards, words, pulled, totals, out = results
    width, size = stack.shape[2:], oracle.tiles(stack.shape[1], n)
    messages = [oracle.partition(x, n, SEED) for x in stack]
    np.testing.assert_array_equal(counts, [[len(p) for p, _ in message] for message in messages])
    clipped = [[(p[:capacity], v[:capacity]) for p, v in message] for message in messages]
    at = held(counts, capacity)
    np.testing.assert_array_equal(positions[at], np.concatenate([p for message in clipped for p, _ in message]))
    assert_same_bits(values[at], np.concatenate([v for message in clipped for _, v in message]))
    for_server = list(zip(*clipped, strict=True))
    same(shards, np.stack([oracle.aggregate(inbox, size, width, stack.dtype, divisor) for inbox in for_server]))
    expected_words, encoded = zip(*map(oracle.hash_bitmap_encode, shards), strict=True)
    np.testing.assert_array_equal(words, np.stack(expected_words))
    np.testing.assert_array_equal(totals, [len(units) for units in encoded])
    assert_same_bits(pulled[held(totals, capacity)], np.concatenate([units[:capacity] for units in encoded]))
    if max(totals) <= capacity:
        assert_same_bits(out, oracle.hash_bitmap_decode(words, encoded, stack.shape[1], SEED))


def room(shape, n):
    """A capacity that any gradient of this shape fits."""
    return max(1, oracle.tiles(shape[0], n))


@pytest.mark.parametrize("n,lowering", [(n, "public") for n in WORKERS] + [(n, "reference") for n in (1, 3, 128)])
def test_every_structure_of_zeros(n, lowering):
    """All kernels in a row on float32, with room for everything; the result is the sum in worker order."""
    for shape in [(509,), (67, 4)]:
        workers = min(n, 8)
        run = stages(lowering, n, room(shape, n))
        for name, stack in structured(workers, shape, integers=False, servers=n, seed=SEED).items():
            results = run(stack)
            check_stages(results, stack, n, room(shape, n))
            assert_same_bits(results[-1], oracle.ordered_sum(stack), name)


@pytest.mark.parametrize("lowering", ["public", "reference"])
@pytest.mark.parametrize("shape", SHAPES)
def test_edge_shapes(shape, lowering):
    for n in (1, 4, 7) if lowering == "public" or 0 in shape else (7,):
        stack = sparse(np.random.default_rng(0), 3, shape, 0.4, integers=False)
        results = stages(lowering, n, room(shape, n))(stack)
        check_stages(results, stack, n, room(shape, n))
        assert_same_bits(results[-1], oracle.ordered_sum(stack))


@pytest.mark.parametrize("lowering", ["public", "reference"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_dtypes_and_special_values(dtype, lowering):
    """Narrow floats add in float32 and round once. NaN, infinities and subnormals travel, -0.0 does not."""
    n, shape = 4, (61, 3)
    with jax.enable_x64(dtype == "float64"):
        for divisor in (1, 3):
            run = stages(lowering, n, room(shape, n), divisor)
            for name, stack in special(n, shape, FLOATS[dtype]).items():
                if name != "subnormals":  # a processor may flush these when it adds
                    check_stages(run(stack), stack, n, room(shape, n), divisor, assert_same_values)
            stack = sparse(np.random.default_rng(1), n, shape, 0.5, FLOATS[dtype], integers=False)
            check_stages(run(stack), stack, n, room(shape, n), divisor)


@pytest.mark.parametrize("lowering", ["public", "reference"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_subnormals_travel(dtype, lowering):
    """Nothing that only moves values may flush them."""
    n, shape = 4, (61, 3)
    x = special(1, shape, FLOATS[dtype])["subnormals"][0]
    with jax.enable_x64(dtype == "float64"):
        _, values, counts = jax.jit(lambda x: kernel("partition", lowering)(x, n, 61, seed=SEED))(x)
        for server, (positions, expected) in enumerate(oracle.partition(x, n, SEED)):
            assert counts[server] == len(positions)
            assert_same_bits(values[server, : len(positions)], expected)
        words, values, count = jax.jit(lambda x: kernel("hash_bitmap_encode", lowering)(x, 61))(x)
        expected_words, expected = oracle.hash_bitmap_encode(x)
        np.testing.assert_array_equal(words, expected_words)
        assert_same_bits(values[: int(count)], expected)
        out = jax.jit(lambda w, v: kernel("hash_bitmap_decode", lowering)(w, v, 61))(words[None], values[None])
        np.testing.assert_array_equal(np.abs(out), np.abs(x))
        assert_same_bits(np.asarray(out)[x != 0], x[x != 0])


@pytest.mark.parametrize("lowering", ["public", "reference"])
@pytest.mark.parametrize("shape", [(509,), (67, 4)])
def test_full_buckets(shape, lowering):
    """Beyond the capacity the first entries are kept, and the counts stay true."""
    for n, capacity in ((1, 5), (3, 1), (8, 5)):
        run = stages(lowering, n, capacity)
        for stack in structured(3, shape, integers=False, servers=n, seed=SEED).values():
            check_stages(run(stack), stack, n, capacity)


@pytest.mark.parametrize("lowering", ["public", "reference"])
def test_one_worker_without_vmap(lowering):
    """The unbatched shapes and dtypes, as documented."""
    n, capacity = 3, 20
    partition, aggregate, encode, decode = (kernel(name, lowering) for name in NAMES[:4])

    @jax.jit
    def run(x):
        message = partition(x, n, capacity)
        shard = aggregate(*message, 17)
        words, values, count = encode(shard, capacity)
        return message, shard, (words, values, count), decode(words[None], values[None], 17)

    for shape in [(50,), (50, 2)]:
        x = sparse(np.random.default_rng(2), 1, shape, 0.3)[0]
        width = shape[1:]
        (positions, values, counts), shard, encoded, out = run(x)
        assert (positions.shape, positions.dtype) == ((n, capacity), jnp.int32)
        assert (values.shape, values.dtype) == ((n, capacity, *width), x.dtype)
        assert (counts.shape, counts.dtype) == ((n,), jnp.int32)
        assert (shard.shape, shard.dtype) == ((17, *width), x.dtype)
        words, values, count = encoded
        assert (words.shape, words.dtype) == ((1,), jnp.uint32)
        assert (values.shape, values.dtype) == ((capacity, *width), x.dtype)
        assert (count.shape, count.dtype) == ((), jnp.int32)
        assert_same_bits(out, shard)


@pytest.mark.parametrize("lowering", ["public", "reference"])
def test_nested_vmap(lowering):
    n, capacity = 3, 13
    stack = sparse(np.random.default_rng(3), 6, (37, 2), 0.3, integers=False).reshape(2, 3, 37, 2)
    partition = lambda x: kernel("partition", lowering)(x, n, capacity, seed=SEED)
    positions, values, counts = jax.jit(jax.vmap(jax.vmap(partition)))(stack)
    for a in range(2):
        for b in range(3):
            for server, (expected_positions, expected) in enumerate(oracle.partition(stack[a, b], n, SEED)):
                count = int(counts[a, b, server])
                assert count == len(expected)
                np.testing.assert_array_equal(positions[a, b, server, :count], expected_positions)
                assert_same_bits(values[a, b, server, :count], expected)


@pytest.mark.parametrize("lowering", ["public", "reference"])
def test_aggregate_ignores_what_is_unspecified(lowering):
    """Entries past a count and positions outside the shard change nothing."""
    positions = np.array([[0, 2, 7, 1], [2, 9, -3, 0]], np.int32)
    values = np.array([[1, 2, np.nan, np.nan], [4, 8, np.nan, np.nan]], np.float32)
    counts = np.array([2, 2], np.int32)
    shard = kernel("aggregate", lowering)(*map(jnp.asarray, (positions, values, counts)), 4)
    assert_same_bits(shard, np.array([1, 0, 6, 0], np.float32))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(509,), (67, 4), (0, 3)])
def test_aggregate_encode_is_both_in_a_row(shape, dtype):
    """For each server of a batch, to the bit, with room for all units or for some."""
    n, divisor = 3, 3
    size = oracle.tiles(shape[0], n)

    @jax.jit
    def run(stack):
        push = jax.vmap(lambda x: zen.kernels.partition(x, n, max(1, size)))(stack)
        inbox = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), push)
        fused = lambda room: jax.vmap(lambda *m: zen.kernels.aggregate_encode(*m, size, room, divisor=divisor))(*inbox)
        return jax.vmap(lambda *m: zen.kernels.aggregate(*m, size, divisor=divisor))(*inbox), fused(7), fused(size + 1)

    with jax.enable_x64(dtype == "float64"):
        stack = sparse(np.random.default_rng(4), n, shape, 0.4, FLOATS[dtype])
        stack[2] = -stack[0]  # sums that cancel
        shards, *messages = (jax.tree.map(np.asarray, result) for result in run(stack))
        for words, units, counts in messages:
            for server in range(n):
                expected_words, expected = oracle.hash_bitmap_encode(shards[server])
                np.testing.assert_array_equal(words[server], expected_words)
                assert counts[server] == len(expected)
                filled = min(len(expected), units.shape[1])
                assert_same_bits(units[server, :filled], expected[:filled])


@pytest.mark.parametrize("lowering", ["public", "reference"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n,width", [(2, 4), (5, 4), (3, 0)])
def test_others_units_and_own_ones_are_the_sum(n, width, dtype, lowering):
    """Each server sends what others touched, even if its sum is zero, and every worker has all of the mean."""
    shape, kind = (67, width), FLOATS[dtype]
    for_others, place = (kernel(name, lowering) for name in ("aggregate_for_others", "place_own"))
    size = oracle.tiles(shape[0], n)

    @jax.jit
    def run(stack):
        push = jax.vmap(lambda x: zen.kernels.partition(x, n, size, seed=SEED))(stack)
        inbox = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), push)
        words, units, held, nonzero = jax.vmap(lambda *m: for_others(*m, size, size, divisor=n))(*inbox)
        words, units = (jnp.swapaxes(part, 0, 1) for part in (words, units))  # by worker, then by server
        x = jax.vmap(lambda *m: zen.kernels.hash_bitmap_decode(*m, shape[0], seed=SEED))(words, units)
        return words, held, nonzero, jax.vmap(lambda *m: place(*m, divisor=n, seed=SEED))(x, words, *push)

    with jax.enable_x64(dtype == "float64"):
        stack = sparse(np.random.default_rng(4), n, shape, 0.1, kind)
        stack[0, 0], stack[1, 0], stack[2:, 0] = 1, -1, 0  # a sum that cancels
        stack[:, 1] = 0
        stack[1, 1, :1], stack[1, 1, 1:2] = 3, -0.0  # a unit of one worker
        words, held, nonzero, means = jax.device_get(run(stack))
    mean = oracle.ordered_sum(stack, n)
    touched = (stack != 0).any(axis=2)
    for worker in range(n):
        lacking = np.flatnonzero(np.delete(touched, worker, axis=0).any(axis=0))
        for server in range(n):
            positions = lacking[oracle.server_of(lacking, n, SEED) == server] // n
            bits = np.unpackbits(words[worker, server].view(np.uint8), bitorder="little")
            np.testing.assert_array_equal(np.flatnonzero(bits), positions)
            assert held[server, worker] == len(positions)
        assert_same_bits(means[worker], mean)
    assert nonzero.sum() == (mean != 0).any(axis=1).sum()


@pytest.mark.parametrize("divisor", [1, 3])
@pytest.mark.parametrize("lowering", ["public", "reference"])
def test_own_units_have_the_bits_that_servers_give_them(lowering, divisor):
    """Addition changes those of a signalling NaN, and may flush a subnormal."""
    values = np.array([3.0, -0.0, np.inf, 1e-40, 0.0], np.float32)[None, :, None]
    values.view(np.uint32)[0, -1] = 0x7FA00000
    message = np.arange(5, dtype=np.int32)[None], values, np.array([5], np.int32)
    place, add = (kernel(name, lowering) for name in ("place_own", "aggregate"))
    nothing, nobody = jnp.zeros((5, 1)), jnp.zeros((1, 1), jnp.uint32)
    own = jax.jit(lambda *message: place(nothing, nobody, *message, divisor=divisor))(*message)
    summed = jax.jit(lambda *message: add(*message, 5, divisor=divisor))(*message)
    assert_same_bits(np.ravel(own), np.ravel(summed))


@pytest.mark.parametrize("lowering", ["public", "reference"])
def test_decode_ignores_padding_and_missing_values(lowering):
    """Bits of units beyond the gradient and of ranks beyond the capacity give zeros, not out-of-bounds reads."""
    n, size, capacity = 3, 10, 2
    words = np.full((n, 1), 0xFFFFFFFF, np.uint32)
    values = np.arange(1, n * capacity + 1, dtype=np.float32).reshape(n, capacity)
    out = kernel("hash_bitmap_decode", lowering)(words, values, size, seed=SEED)
    assert_same_bits(out, oracle.hash_bitmap_decode(words, list(_padded(values, 32)), size, SEED))


def _padded(values, ranks):
    return np.pad(values, [(0, 0), (0, ranks - values.shape[1])])


# --- Algorithm 1 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lowering", ["public", "reference"])
@pytest.mark.parametrize("n", [1, 3, 8])
@pytest.mark.parametrize("r1,r2,k", [(64, 64, 3), (16, 64, 1), (128, 16, 4), (8, 4, 2)])
def test_hierarchical_hash(n, r1, r2, k, lowering):
    """As a set: each index kept once, with its own server, or counted as lost; index 0 is a valid index."""
    hashed = jax.jit(lambda i: kernel("hierarchical_hash", lowering)(i, n, r1, r2, k, seed=SEED))
    rng = np.random.default_rng(n)
    for indices in (np.arange(96), rng.choice(2**31 - 1, 96, replace=False), np.zeros(96) + oracle.EMPTY_SLOT):
        indices = indices.astype(np.uint32).view(np.int32)
        memory, counts, overflow = hashed(indices)
        memory = np.asarray(memory).view(np.uint32)
        _, expected_counts, _ = oracle.hierarchical_hash(indices, n, r1, r2, k, SEED)
        assert memory.shape == (n, r1 + r2)
        np.testing.assert_array_equal(counts, expected_counts)
        kept = memory[memory != oracle.EMPTY_SLOT].astype(np.int64)
        assert len(kept) == len(np.unique(kept))
        wanted = indices.view(np.uint32)
        assert set(kept.tolist()) <= set(wanted.tolist())
        for server in range(n):
            row = memory[server][memory[server] != oracle.EMPTY_SLOT]
            owner = oracle.reduce_to_range(oracle.murmur3(row, SEED), n)
            np.testing.assert_array_equal(owner, server)
            check_slots(memory[server, :r1], wanted, row, r1, k)
        assert int(overflow) == int(expected_counts.sum()) - len(kept)
        assert int(overflow) >= np.maximum(expected_counts - (r1 + r2), 0).sum()
        if r2 >= expected_counts.max():
            assert int(overflow) == 0


def check_slots(parallel, wanted, row, r1, k):
    """An index lies in one of its k slots; one that went to the serial part, or nowhere, found them all taken."""
    slots = lambda index: {
        int(oracle.reduce_to_range(oracle.murmur3(index, SEED + function), r1)) for function in range(1, k + 1)
    }
    taken = {slot: index for slot, index in enumerate(parallel.tolist()) if index != oracle.EMPTY_SLOT}
    assert all(slot in slots(index) for slot, index in taken.items())
    for index in set(row.tolist()) - set(taken.values()):
        assert slots(index) <= set(taken)


@pytest.mark.parametrize("lowering", ["public", "reference"])
@pytest.mark.parametrize("size", [0, 1, 2, 300, 5000])
def test_unique_ids(size, lowering):
    unique_ids = kernel("unique_ids", lowering)
    for unused in (0, 1, 1000, 2**31 - 1):
        ids = np.random.default_rng(size).integers(0, unused, (3, size), endpoint=True).astype(np.int32)
        results = jax.jit(jax.vmap(lambda ids, unused=unused: unique_ids(ids, unused)))(ids)
        for mine, unique, slots, count in zip(ids, *map(np.asarray, results), strict=True):
            distinct, where = np.unique(mine, return_inverse=True)
            np.testing.assert_array_equal(unique, np.pad(distinct, (0, size - distinct.size), constant_values=unused))
            np.testing.assert_array_equal(slots, where)
            assert count == np.sum(distinct < unused)


# --- properties -------------------------------------------------------------------------------------------------

gradients = st.tuples(st.integers(0, 2**32 - 1), st.floats(0, 1), st.booleans())


@pytest.mark.parametrize("n", [1, 3, 8])
@given(drawn=gradients)
def test_round_trip_is_the_sum(n, drawn):
    """partition, aggregate, encode and decode lose nothing, whatever the gradients are."""
    seed, density, by_row = drawn
    stack = sparse(np.random.default_rng(seed), n, (67, 4), density, integers=False, by_row=by_row)
    assert_same_bits(stages("public", n, room((67,), n))(stack)[-1], oracle.ordered_sum(stack))


@functools.cache
def _partition(n, capacity):
    return jax.jit(lambda x: zen.kernels.partition(x, n, capacity, seed=SEED))


@pytest.mark.parametrize("n", [1, 3, 8])
@given(drawn=gradients)
def test_each_unit_goes_to_one_server_in_order(n, drawn):
    seed, density, _ = drawn
    x = sparse(np.random.default_rng(seed), 1, (509,), density, integers=False)[0]
    positions, values, counts = (np.asarray(r) for r in _partition(n, room((509,), n))(x))
    found = []
    for server in range(n):
        filled = positions[server, : counts[server]]
        assert (np.diff(filled) > 0).all()
        found.append(oracle.index_of(server, filled, n, SEED))
        assert_same_bits(values[server, : counts[server]], x[found[-1]])
    np.testing.assert_array_equal(np.sort(np.concatenate(found)), np.flatnonzero(x))


class Echo:
    """A native library that answers with what it is asked."""

    def __getattr__(self, name):
        return lambda *arguments: (name, *arguments)


def test_scratch_is_for_the_dtype_that_jax_makes_of_an_array():
    """Without x64, NumPy's float64 becomes float32."""
    k, words, three = zen.kernels, np.zeros((2, 1), np.uint32), np.array([3, 3], np.int32)
    positions = np.zeros((2, 3), np.int32)
    for call in (
        lambda x: k.partition(x, 2, 3),
        lambda x: k.hash_bitmap_encode(x, 3),
        lambda x: k.hash_bitmap_decode(words, x.reshape(2, 3), 9),
        lambda x: k.aggregate_encode(positions, x.reshape(2, 3), three, 9, 9),
        lambda x: k.send_largest(x, np.zeros(6, np.float32), 1, 1),
    ):
        asked = []
        for dtype in (np.float32, np.float64):
            traced = jax.make_jaxpr(lambda call=call, dtype=dtype: call(np.ones(6, dtype)))()
            [kernel] = [found for found in traced.eqns if found.primitive.name == "zen_jax_kernel"]
            asked.append(kernel.params["cuda_scratch"](Echo()))
        assert asked[0] == asked[1]


def test_every_custom_call_for_cuda_has_a_kernel_that_makes_it():
    """If the CUDA module was built, with or without a GPU: programs for a GPU call what it has registered."""
    library = _native.library("cuda")
    if library is None:
        pytest.skip(zen.backend_info()["cuda"])
    n, kernels = 3, zen.kernels

    def calls(x):
        positions, values, counts = kernels.partition(x, n, 9)
        shard = kernels.aggregate(positions, values, counts, x.size)
        words, units, _ = kernels.hash_bitmap_encode(shard, 9)
        sent, residual, _ = kernels.send_largest(x, x, 1, 2)
        (indices, listed, count), compact_residual, _ = kernels.list_largest(x, x, 1, 2, 5, velocity=x)
        return (
            kernels.aggregate_encode(positions, values, counts, x.size, 9),
            kernels.hash_bitmap_decode(jnp.stack([words] * n), jnp.stack([units] * n), n * x.size),
            kernels.hierarchical_hash(indices, n, 4, 4),
            kernels.partition_coo(indices, listed, count, n, 5),
            (sent, residual, compact_residual),
        )

    x = jnp.ones(70_000)
    for mapped, operand in ((calls, x), (jax.vmap(calls), jnp.stack([x, x]))):
        program = jax.jit(mapped).trace(operand).lower(lowering_platforms=("cuda",)).as_text()
        assert set(re.findall(r"custom_call @(zen_\w+)", program)) == set(library.registrations())
