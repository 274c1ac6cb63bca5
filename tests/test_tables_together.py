"""Row-sparse gradients of several tables, which travel in one exchange."""

import harness
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import FLOATS, assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, PartitionSpec
from lookups import RNG, D, N, assert_well_formed, dense_sum, integers

import zen_jax as zen
from zen_jax.errors import MAX_UNITS
from zen_jax.schemes.options import ReduceOptions
from zen_jax.schemes.row_sparse import reduce_rows
from zen_jax.schemes.tables import Tables
from zen_jax.transforms.messages import row_sparse_messages

SUM = ReduceOptions(op="sum")
# V and K of each: not multiples of N, one row, more lookups than rows, no rows, no lookups, more rows than touched.
TABLES = ((23, 12), (1, 3), (5, 12), (0, 4), (7, 0), (1000, 9))


def lookups(tables, n, dtype=np.float32):
    """Ids [n, K] (some of no row) and integers [n, K, D] for each table."""
    ids = [RNG.integers(-1, rows + 1, (n, entries)).astype(np.int32) for rows, entries in tables]
    return ids, [integers(n, entries, D).astype(dtype) for _, entries in tables]


def merged(ids, rows, tables):
    return [
        zen.RowSparseGradient.from_lookups(of_table, values, num_rows)
        for of_table, values, (num_rows, _) in zip(ids, rows, tables, strict=True)
    ]


def reduced_both_ways(ids, rows, tables, mode="vmap", options=SUM):
    """The gradients reduced together, and each by itself, stacked over workers."""

    def worker(lookups):
        gradients = merged(*lookups, tables)
        alone = [reduce_rows([gradient], harness.AXIS, options)[0][0] for gradient in gradients]
        return reduce_rows(gradients, harness.AXIS, options)[0], alone

    return harness.to_numpy(harness.spmd(worker, mode, len(ids[0]))((ids, rows)))


def assert_reduced_as_alone(gradients, alone, ids, rows, tables):
    jax.tree.map(assert_same_bits, gradients, alone)
    jax.tree.map(lambda x: assert_same_bits(x, np.broadcast_to(x[0], x.shape)), gradients)
    for gradient, of_table, values, (num_rows, entries) in zip(gradients, ids, rows, tables, strict=True):
        one = jax.tree.map(lambda x: x[0], gradient)
        assert_well_formed(one)
        assert one.ids.size == min(len(of_table) * entries, num_rows)
        expected = dense_sum(of_table.reshape(-1), values.reshape(-1, D), num_rows)
        np.testing.assert_array_equal(dense_sum(one.ids, one.rows, num_rows), expected)


sizes = st.tuples(st.integers(1, 40), st.integers(0, 12))


@given(
    tables=st.lists(sizes, min_size=1, max_size=4),
    n=st.integers(1, 5),
    dtype=st.sampled_from(sorted(FLOATS)),
)
@settings(max_examples=8)  # each compiles programs of its own
@harness.coarse_ladder()
def test_each_is_what_it_would_be_alone(tables, n, dtype):
    with jax.enable_x64(dtype == "float64"):
        ids, rows = lookups(tables, n, FLOATS[dtype])
        assert_reduced_as_alone(*reduced_both_ways(ids, rows, tables), ids, rows, tables)


@pytest.mark.parametrize("mode", harness.MODES)
@harness.coarse_ladder()
def test_every_way_to_run_workers(mode):
    ids, rows = lookups(TABLES, N)
    assert_reduced_as_alone(*reduced_both_ways(ids, rows, TABLES, mode), ids, rows, TABLES)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@harness.coarse_ladder()
def test_16_bit_rounds_once(dtype):
    ids, rows = lookups(TABLES, N)
    rows = [RNG.normal(size=values.shape).astype(FLOATS[dtype]) for values in rows]
    jax.tree.map(assert_same_bits, *reduced_both_ways(ids, rows, TABLES, options=ReduceOptions()))


def test_tables_without_columns():
    ids, rows = lookups(TABLES, N)
    gradients, _ = reduced_both_ways(ids, [values[..., :0] for values in rows], TABLES)
    assert [gradient.rows.shape for gradient in gradients] == [(N, 0, 0)] * len(TABLES)


def test_rooms_are_those_of_the_tables_alone():
    alone = [Tables((rows,), (min(rows, entries),), N) for rows, entries in TABLES]
    tables = Tables(tuple(rows for rows, _ in TABLES), tuple(min(table) for table in TABLES), N)
    assert tables.begins == (0, 24, 28, 36, 36, 44) and tables.end == 1044
    for room in ("push_room", "shard_room"):
        assert getattr(tables, room) == sum(getattr(one, room) for one in alone)
    assert tables.result_rooms == tuple(one.result_rooms[0] for one in alone)


@pytest.mark.parametrize("check_vma", [True, False])
def test_one_exchange_however_many_tables(check_vma):
    """The rows of all fit the smallest message, so a program has one of each size."""

    def collectives(count):
        tables = TABLES[:1] * count
        transform = zen.synchronize("data")
        step = jax.shard_map(
            lambda ids, rows: jax.tree.leaves(transform.update(merged(ids, rows, tables), None)),
            mesh=harness.mesh(N, "data"),
            in_specs=PartitionSpec("data"),
            out_specs=PartitionSpec(),
            check_vma=check_vma,
        )
        stacks = [np.concatenate(of_table) for stack in lookups(tables, N) for of_table in stack]
        text = jax.jit(step).lower(stacks[:count], stacks[count:]).as_text()
        return [text.count(f"stablehlo.{name}") for name in ("all_to_all", "all_gather", "all_reduce")]

    assert collectives(8) == collectives(1)


def leaf(num_rows=9, entries=2, shape=(3,), dtype=jnp.float32):
    return zen.RowSparseGradient(jnp.arange(entries, dtype=jnp.int32), jnp.ones((entries, *shape), dtype), num_rows)


def together(leaves, bucket_bytes=1000):
    """Indices of the leaves that are sent as one among N workers."""
    found = []
    jax.vmap(
        lambda _: found.extend(row_sparse_messages(dict(enumerate(leaves)), harness.AXIS, bucket_bytes)),
        axis_name=harness.AXIS,
        axis_size=N,
    )(None)
    return found


def test_which_tables_travel_together():
    half, wide, flat = leaf(dtype=jnp.bfloat16), leaf(shape=(4,)), leaf(shape=())
    assert together([]) == []
    assert together([leaf(), half, wide, leaf(50), half, flat]) == [[0, 3], [1, 4], [2], [5]]
    assert together([leaf()] * 5, bucket_bytes=2 * 24) == [[0, 1], [2, 3], [4]]
    assert together([leaf()] * 2, bucket_bytes=1) == [[0], [1]]
    most = MAX_UNITS // N * N
    assert together([leaf(most - 12), leaf(9), leaf(1)]) == [[0, 1], [2]]
    assert together([leaf(MAX_UNITS), leaf(1)]) == [[0], [1]]


@harness.coarse_ladder()
def test_the_last_of_all_virtual_rows():
    """Ids of 31 bits: 2**31 - 8 rows in one table, then a table of one tile."""
    tables = ((MAX_UNITS - 7, 2), (3, 2))
    assert together([leaf(rows) for rows, _ in tables]) == [[0, 1]]
    ids = [np.tile(np.array([[0, MAX_UNITS - 8]], np.int32), (N, 1)), np.tile(np.array([[0, 2]], np.int32), (N, 1))]
    gradients, _ = reduced_both_ways(ids, [np.ones((N, 2, D), np.float32)] * 2, tables)
    for gradient, of_table in zip(gradients, ids, strict=True):
        used = gradient.ids[0] < gradient.num_rows
        np.testing.assert_array_equal(gradient.ids[0][used], of_table[0])
        np.testing.assert_array_equal(gradient.rows[0][used], np.full((2, D), N))


def test_leaves_of_a_model_axis_travel_by_themselves():
    """What is equal along that axis stays known to be, or shard_map would refuse its out_specs."""
    mesh = harness.mesh((2, 2), ("data", "model"))

    def worker(ids, whole, shard):
        gradients = merged([ids, ids], [whole, shard], ((9, 2), (9, 2)))
        return zen.synchronize("data", op="sum").update(gradients, None)[0]

    step = jax.shard_map(
        worker,
        mesh=mesh,
        in_specs=(PartitionSpec("data"), PartitionSpec("data"), PartitionSpec("data", "model")),
        out_specs=[PartitionSpec(), PartitionSpec("model")],
    )
    whole, shards = jax.jit(step)(jnp.array([1, 4, 1, 5], jnp.int32), jnp.ones((4, 3)), jnp.ones((4, 6)))
    assert whole.ids.tolist() == [1, 4, 5, 9] and shards.ids.tolist() == [1, 4, 5, 9] * 2
    assert whole.rows[:, 0].tolist() == [2, 1, 1, 0] and shards.rows[:, 0].tolist() == [2, 1, 1, 0] * 2


@harness.coarse_ladder()
def test_altered_ids_make_nan_of_their_table_alone():
    ids, rows = lookups(TABLES[:3], N)

    def worker(lookups):
        gradients = merged(*lookups, TABLES[:3])
        gradients[1] = jax.tree.map(lambda x: 2 * x, gradients[1])
        return zen.synchronize(harness.AXIS).update(gradients, None)[0]

    gradients = harness.spmd(worker, "vmap", N)((ids, rows))
    assert [bool(jnp.isnan(gradient.rows).any()) for gradient in gradients] == [False, True, False]


@harness.coarse_ladder()
def test_info_is_shared_among_the_tables():
    """And adds up to that of the exchange, also where small tables share a name."""
    ids, rows = lookups(TABLES, N)
    names = [f"table_{i}" for i in range(len(TABLES))]

    def worker(lookups, dense_below):
        gradients = merged(*lookups, TABLES)
        transform = zen.synchronize(harness.AXIS, op="sum", dense_below=dense_below)
        state = transform.update(dict(zip(names, gradients, strict=True)), None)[1]
        return state.info, reduce_rows(gradients, harness.AXIS, SUM)[1]

    for dense_below, found in ((0, names), (1000, ["(fused)", names[-1]])):
        info, whole = harness.spmd(lambda x, below=dense_below: worker(x, below), "vmap", N)((ids, rows))
        assert set(info) == set(found)
        jax.tree.map(lambda part, all: np.testing.assert_allclose(part, all, 1e-6), zen.total(info), whole)
        dense = info[names[-1]].bytes_dense
        np.testing.assert_allclose(dense, 2 * (N - 1) / N * TABLES[-1][0] * D * 4, 1e-6)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@harness.coarse_ladder()
def test_every_device_of_every_machine_is_a_worker(kind, check_vma):
    mesh = harness.mesh((2, 2), ("machines", "devices"), kind)
    transform = zen.synchronize("machines", op="sum", intra_axis="devices")
    devices = PartitionSpec(("machines", "devices"))
    step = jax.shard_map(
        lambda ids, rows: transform.update(merged(ids, rows, TABLES), None)[0],
        mesh=mesh,
        in_specs=devices,
        out_specs=PartitionSpec(),
        check_vma=check_vma,
    )
    ids, rows = lookups(TABLES, N)
    expected, _ = reduced_both_ways(ids, rows, TABLES)
    put = lambda x: jax.device_put(np.concatenate(x), jax.NamedSharding(mesh, devices))
    reduced = jax.jit(step)(*(list(map(put, stack)) for stack in (ids, rows)))
    jax.tree.map(lambda mine, stacked: assert_same_bits(mine, stacked[0]), reduced, expected)
