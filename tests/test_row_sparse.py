"""`RowSparseGradient`: merged lookups, and their synchronisation."""

import dataclasses

import harness
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import oracle
import pytest
from cases import assert_same_bits, assert_same_values
from hypothesis import given
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from lookups import RNG, TABLE, D, K, N, V, any_ids, assert_well_formed, dense_sum, integers, merged

import zen_jax as zen
from zen_jax import embedding

pytestmark = pytest.mark.promoting  # optax's and Flax's own arithmetic relies on promotion


to_dense = jax.jit(zen.RowSparseGradient.to_dense)


@given(any_ids)
def test_merging_sums_equal_ids(ids):
    rows = np.arange(K * D, dtype=np.float32).reshape(K, D)
    gradient = merged(ids, rows)
    assert_well_formed(gradient)
    np.testing.assert_array_equal(gradient.ids[gradient.ids < V], np.unique(ids[(ids >= 0) & (ids < V)]))
    np.testing.assert_array_equal(to_dense(gradient), dense_sum(ids, rows))


@pytest.mark.parametrize("num_rows", [0, 2])
def test_merging_more_lookups_than_the_table_has_rows(num_rows):
    ids, rows = np.array([1, 0, 1, 5, -1, 0]), np.arange(6, dtype=np.float32)[:, None]
    gradient = zen.RowSparseGradient.from_lookups(ids, rows, num_rows)
    assert gradient.ids.shape == (num_rows,) and gradient.rows.shape == (num_rows, 1)
    np.testing.assert_array_equal(to_dense(gradient)[:, 0], [6, 2][:num_rows])


def test_merging_16_bit_rounds_once():
    rows = np.full((300, 1), 1.0, ml_dtypes.bfloat16)
    gradient = zen.RowSparseGradient.from_lookups(jnp.full(300, 4, jnp.int32), jnp.asarray(rows), V)
    assert gradient.rows.dtype == jnp.bfloat16
    assert float(gradient.rows[0, 0]) == 300  # step by step in bfloat16 it would stay at 256


def test_ids_that_int32_does_not_hold_name_no_row():
    gradient = zen.RowSparseGradient.from_lookups(
        np.array([2**32 + 5, -(2**32) + 5, 5]), np.ones((3, 1), np.float32), num_rows=V
    )
    np.testing.assert_array_equal(gradient.to_dense(), np.arange(V)[:, None] == 5)


def test_the_same_ids_on_every_worker():
    """The resulting info counts as equal on all workers, too."""
    step = jax.shard_map(
        lambda rows: zen.synchronize("data").update(
            zen.RowSparseGradient.from_lookups(jnp.array([1, 4]), rows, num_rows=V), None
        ),
        mesh=harness.mesh(2, "data"),
        in_specs=PartitionSpec("data"),
        out_specs=PartitionSpec(),
    )
    reduced, _ = jax.jit(step)(jnp.ones((4, 3)))
    np.testing.assert_array_equal(np.flatnonzero(reduced.to_dense()[:, 0]), [1, 4])


def test_adding_where_nan_is_looked_for():
    gradient = zen.RowSparseGradient.from_lookups(jnp.array([5]), jnp.ones((1, D)), V)
    with jax.debug_nans(True):
        np.testing.assert_array_equal((jnp.zeros((V, D)) + gradient)[5], np.ones(D))


def test_adding_and_taking():
    gradient = zen.RowSparseGradient.from_lookups(jnp.array([5, 2, 5, 40]), jnp.asarray(integers(4, D)), V)
    np.testing.assert_array_equal(jnp.asarray(TABLE) + gradient, TABLE + np.asarray(gradient.to_dense()))
    np.testing.assert_array_equal(gradient.take(jnp.asarray(TABLE))[:3], [TABLE[2], TABLE[5], np.zeros(D)])
    assert (gradient.shape, gradient.size, gradient.dtype) == ((V, D), V * D, jnp.float32)
    with pytest.raises(ValueError, match=r"table of shape \(23, 3\), but the table has shape \(22, 3\)"):
        jnp.asarray(TABLE[1:]) + gradient
    with pytest.raises(ValueError, match=r"ids of float32.*zen_jax\.embedding\.lazy"):
        optax.tree.scale(0.5, gradient).take(jnp.asarray(TABLE))
    with jax.enable_x64(True):
        wide = zen.RowSparseGradient(jnp.array([2, 5]), jnp.ones((2, D)), V)
        with pytest.raises(ValueError, match=r"has dtype int64, but must be int32. Convert it with astype"):
            wide.take(jnp.asarray(TABLE))


def test_adding_to_a_table_of_another_dtype_rounds_once():
    table, rows = jnp.asarray(RNG.normal(size=(V, 8)), jnp.bfloat16), jnp.asarray(RNG.normal(size=(V, 8)), jnp.float32)
    gradient = zen.RowSparseGradient(jnp.arange(V, dtype=jnp.int32), rows / 100, V)
    assert_same_bits(optax.apply_updates(table, gradient), optax.apply_updates(table, gradient.to_dense()))


def test_floats_are_the_first_arrays():
    """optax.inject_hyperparams casts numbers such as the learning rate to the dtype of the first."""
    listed = zen.SparseGradient(jnp.arange(2), jnp.ones(2), jnp.int32(2), (9,))
    for gradient in (merged(np.zeros(1, np.int32), np.ones((1, D), np.float32)), listed):
        assert jax.tree.leaves(gradient)[0].dtype == jnp.float32


@pytest.mark.parametrize("x64", [False, True])
def test_numbers_of_rows_from_numpy(x64):
    """Of which products overflow, and which widen ids."""
    sizes = np.array([1 << 24, 20], np.int64 if x64 else np.int32)

    def worker(ids):
        gradients = [zen.RowSparseGradient.from_lookups(ids, jnp.ones((2, 256), jnp.float32), rows) for rows in sizes]
        return zen.synchronize(harness.AXIS, op="sum").update(gradients, None)[0]

    with jax.enable_x64(x64):
        for gradient in harness.spmd(worker, "vmap", N)(np.arange(2 * N, dtype=np.int32).reshape(N, 2)):
            assert gradient.ids[0].tolist() == list(range(2 * N)) and (gradient.rows == 1).all()


def test_lookups_of_any_shape():
    """Ids [B, L] with rows [B, L, D], as a model has them."""
    ids, rows = RNG.integers(0, V, (2, 3)).astype(np.int32), integers(2, 3, D)
    np.testing.assert_array_equal(merged(ids, rows).to_dense(), merged(ids.ravel(), rows.reshape(6, D)).to_dense())


def test_ids_without_rows_are_refused():
    with pytest.raises(ValueError, match=r"rows have shape \(2, 3\), but ids have shape \(4,\)"):
        merged(np.zeros(4, np.int32), np.ones((2, 3), np.float32))
    for rows in (9.0, -5, (9, D)):
        with pytest.raises(ValueError, match="must be an integer of at least 0"):
            zen.RowSparseGradient.from_lookups(jnp.zeros(2, jnp.int32), jnp.ones((2, D)), rows)
    with pytest.raises(ValueError, match="ids have dtype float32"):
        merged(np.ones(2, np.float32), np.ones((2, 3), np.float32))
    gradient = zen.RowSparseGradient(jnp.arange(4, dtype=jnp.int32), jnp.ones((2, D)), V)
    for use in (
        lambda: jnp.asarray(TABLE) + gradient,
        lambda: gradient.take(TABLE),
        lambda: jax.vmap(lambda _: zen.synchronize("w").update(gradient, None), axis_name="w")(jnp.zeros(2)),
    ):
        with pytest.raises(ValueError, match=r"ids of shape \(4,\), but rows of shape \(2, 3\)"):
            use()


def test_tables_of_more_rows_than_ids_can_name_are_refused():
    with pytest.raises(ValueError, match=f"table of {2**31} rows"):
        zen.RowSparseGradient.from_lookups(jnp.array([1]), jnp.ones((1, 2)), num_rows=2**31)

    def add_to_table_of(rows):
        gradient = zen.RowSparseGradient(jnp.array([1, 2]), jnp.ones((2, 1)), rows)
        jax.eval_shape(lambda table: table + gradient, jax.ShapeDtypeStruct(gradient.shape, jnp.float32))

    add_to_table_of(2**31 - 2)
    with pytest.raises(ValueError, match=f"{2**31 - 1} rows .* 2 unused ids"):
        add_to_table_of(2**31 - 1)
    table = jax.ShapeDtypeStruct((2**31, 1), jnp.float32)
    for read in (embedding.lookup, embedding.take_rows):
        with pytest.raises(ValueError, match=f"table of {2**31} rows"):
            jax.eval_shape(read, table, jnp.array([1]))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
def test_narrow_ids_of_a_table_larger_than_their_dtype_holds(dtype):
    rows = np.iinfo(dtype).max + 1
    ids, values = np.array([0, 7, 7], dtype), jnp.ones((3, D))
    gradient = zen.RowSparseGradient.from_lookups(jnp.asarray(ids), values, rows)
    assert gradient.ids.tolist() == [0, 7, rows] and gradient.rows[:, 0].tolist() == [1, 2, 0]


def test_gradients_leave_shard_map_and_lie_on_explicit_meshes():
    mesh = harness.mesh(2, "data", AxisType.Explicit)
    ids = jax.device_put(jnp.array([3, 8, 3, 8]), NamedSharding(mesh, PartitionSpec("data")))
    worker = lambda ids: zen.RowSparseGradient.from_lookups(ids, jnp.ones((2, D)), V)
    split = jax.jit(jax.shard_map(worker, mesh=mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec("data")))
    gradient = split(ids)
    assert gradient.ids.tolist() == [3, 8, 3, 8] and gradient.mark.shape == (2,)
    with jax.set_mesh(mesh):
        whole = jax.device_put(jnp.array([3, 8], jnp.int32), NamedSharding(mesh, PartitionSpec(None)))
        assert zen.RowSparseGradient(whole, jnp.ones((2, D)), V).mark.shape == (1,)


@pytest.mark.parametrize("ids", [[3, 8, V], [3]])
@pytest.mark.parametrize("factor", [0.5, -1, 2])
def test_ids_that_a_schedule_has_scaled_train_no_row(factor, ids):
    """`optax.scale_by_schedule` casts its factor to int32 and multiplies the ids by it."""
    ids = jnp.array(ids, jnp.int32)
    gradient = zen.RowSparseGradient(ids, jnp.ones((ids.size, D)), V)
    scaled = jax.tree.map(lambda x: jnp.array(factor).astype(x.dtype) * x, gradient)
    table = jnp.asarray(TABLE)
    added = np.asarray(table + scaled)
    assert np.isnan(added).any() and (np.isnan(added) | (added == TABLE)).all()
    lazily, _ = embedding.lazy(optax.sgd(1.0)).update({"t": scaled}, optax.sgd(1.0).init({"t": table}), {"t": table})
    assert jnp.isnan(lazily["t"].rows).all()
    worker = lambda rows: zen.synchronize(harness.AXIS).update(dataclasses.replace(scaled, rows=rows), None)[0]
    reduced = harness.spmd(worker, "vmap", N)(jnp.ones((N, ids.size, D)))
    assert np.isnan(np.asarray(table + jax.tree.map(lambda x: x[0], reduced))).any()


def test_zeros_in_place_of_a_gradient_change_no_row():
    """As `optax.apply_if_finite` leaves them of a step that it rejects, and `optax.set_to_zero` of a frozen table."""
    table, ids = jnp.asarray(TABLE), jnp.array([3, 8, V], jnp.int32)
    params, gradient = {"t": table}, {"t": zen.RowSparseGradient(ids, jnp.full((3, D), jnp.inf), V)}
    guarded = optax.apply_if_finite(embedding.lazy(optax.sgd(1.0)), 5)
    rejected, _ = guarded.update(gradient, guarded.init(params), params)
    np.testing.assert_array_equal(optax.apply_updates(params, rejected)["t"], TABLE)
    frozen, _ = optax.set_to_zero().update(gradient, optax.EmptyState())
    optimizer = embedding.lazy(optax.sgd(1.0))
    updates, _ = optimizer.update(frozen, optimizer.init(params), params)
    np.testing.assert_array_equal(optax.apply_updates(params, updates)["t"], TABLE)
    worker = lambda _: zen.synchronize(harness.AXIS).update(frozen, None)[0]
    reduced = jax.tree.map(lambda x: x[0], harness.spmd(worker, "vmap", N)(jnp.zeros(N)))
    np.testing.assert_array_equal(optax.apply_updates(params, reduced)["t"], TABLE)


# --- synchronisation --------------------------------------------------------------------------------------------------


def reduce_stack(ids, rows, num_rows, mode="vmap", **options):
    """Synchronises n workers' merged lookups [n, K], [n, K, D]: (gradient, info), both stacked."""
    transform = zen.synchronize(harness.AXIS, **options)

    def worker(lookups):
        gradient = zen.RowSparseGradient.from_lookups(*lookups, num_rows)
        updates, state = transform.update({"table": gradient}, None)
        return updates["table"], state.info

    return harness.spmd(worker, mode, ids.shape[0])((ids, rows))


def assert_reduced(gradient, ids, rows, num_rows, divisor=1):
    n, entries = ids.shape
    for worker in range(n):
        for mine, first in zip(jax.tree.leaves(gradient), jax.tree.leaves(gradient), strict=True):
            assert_same_bits(mine[worker], first[0])
    one = jax.tree.map(lambda x: x[0], gradient)
    assert_well_formed(one)
    assert one.ids.size == min(n * entries, num_rows)
    np.testing.assert_array_equal(one.ids[one.ids < num_rows], np.unique(ids[(ids >= 0) & (ids < num_rows)]))
    expected = dense_sum(ids.reshape(-1), rows.reshape(-1, *rows.shape[2:]), num_rows)
    np.testing.assert_array_equal(np.asarray(to_dense(one), np.float64), expected / divisor)


@pytest.mark.parametrize("mode", harness.MODES)
def test_synchronize_sums_rows(mode):
    ids = RNG.integers(0, V, (N, K)).astype(np.int32)
    rows = integers(N, K, D)
    gradient, info = reduce_stack(ids, rows, V, mode, op="sum")
    assert_reduced(gradient, ids, rows, V)
    fused = jax.tree.map(lambda field: float(field[0]), info["(fused)"])
    distinct = [len(np.unique(of_worker)) for of_worker in ids]
    np.testing.assert_allclose(fused.density, np.mean(distinct) / V, 1e-6)
    np.testing.assert_allclose(fused.density_reduced, len(np.unique(ids)) / V, 1e-6)
    assert fused.bytes_dense == 2 * (N - 1) * -(-V * D // N) * 4


def test_another_seed_changes_no_row():
    ids, rows = RNG.integers(0, V, (N, K)).astype(np.int32), integers(N, K, D)
    assert_reduced(reduce_stack(ids, rows, V, op="sum", seed=2**32 - 1)[0], ids, rows, V)


def test_bytes_are_those_of_the_messages():
    """Of 12 rows on every worker each server has three: ids, values and a count, and the agreed size of the push."""
    ids = np.tile(np.arange(12, dtype=np.int32), (N, 1))
    _, info = reduce_stack(ids, integers(N, 12, WIDE), 1000, op="sum", dense_below=0)
    message = 4 * (1 + 3 + 3 * WIDE)
    assert float(info["table"].bytes_pushed[0]) == (N - 1) * (message + 8)
    assert float(info["table"].bytes_pulled[0]) == (N - 1) * (message + 4)


def test_axes_that_shard_map_leaves_to_the_compiler():
    """Rows of two tables and lists of two leaves, as elsewhere, where JAX tracks only the workers' axis."""
    n, ids, rows = N, RNG.integers(0, V, (N, 2, K)).astype(np.int32), integers(N, 2, K, D)
    indices = np.sort(RNG.permuted(np.tile(np.arange(V * D, dtype=np.int32), (n, 1)), axis=1)[:, :K], axis=1)

    def worker(lookups):
        ids, rows, indices, values = lookups
        taken = embedding.take_rows(jnp.asarray(TABLE), ids[0])
        lists = [zen.SparseGradient(indices, values, jnp.int32(K), (V, D)) for _ in range(2)]
        tables = [zen.RowSparseGradient.from_lookups(*lookups, V) for lookups in zip(ids, rows, strict=True)]
        reduced, _ = zen.synchronize(harness.AXIS, unit="element", dense_below=0).update((lists, tables), None)
        return embedding.lookup(taken, ids[0]), reduced

    lookups = (ids, rows, indices, integers(n, K))
    found, expected = (harness.spmd(worker, mode, n)(lookups) for mode in ("shard_map_of_some_axes", "vmap"))
    jax.tree.map(assert_same_bits, found, expected)


WIDE = 2000  # columns: two rows fill the smallest message
NUM_ROWS = {"more than are touched": 1000, "fewer than could be touched": 9, "fewer than workers": 3}


@pytest.mark.parametrize("num_rows", NUM_ROWS.values(), ids=NUM_ROWS.keys())
def test_synchronize_every_size_of_message(num_rows):
    """Lossless from no rows at all to all of them on one server, through every rung of the ladder."""
    of_one_server = np.flatnonzero(oracle.server_of(np.arange(num_rows), N) == 1)
    stacks = {
        "spread": RNG.integers(0, num_rows, (N, K)),
        "nothing": np.full((N, K), -1),
        "one worker alone": np.where(np.arange(N)[:, None] == 2, RNG.integers(0, num_rows, (N, K)), -1),
        "all on one server": np.resize(of_one_server, (N, K)),
        "the same everywhere": np.resize(np.arange(num_rows), (N, K)),
        "no two workers share": np.resize(np.arange(min(num_rows, N * K)), (N, K)),
    }
    worker = lambda lookups: zen.synchronize(harness.AXIS, dense_below=0).update(
        zen.RowSparseGradient.from_lookups(*lookups, num_rows), None
    )
    run = harness.spmd(worker, "vmap", N)
    for name, ids in stacks.items():
        ids, rows = ids.astype(np.int32), integers(N, K, WIDE)
        gradient, state = run((ids, rows))
        assert_reduced(gradient, ids, rows, num_rows, divisor=N)
        info = jax.tree.map(lambda field: float(field[0]), state.info["(array)"])
        assert name != "nothing" or info.density_reduced == 0
        assert name != "all on one server" or info.imbalance_push == N


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_synchronize_16_bit(dtype):
    """Summed in float32 in worker order and rounded once, as a dense gradient is."""
    ids = np.tile(np.arange(K, dtype=np.int32), (N, 1))
    rows = RNG.normal(size=(N, K, D)).astype(dtype)
    gradient, _ = reduce_stack(ids, rows, V)
    assert_same_bits(np.asarray(gradient.rows)[0, :K], oracle.ordered_sum(rows, N))


@pytest.mark.parametrize("n", [3, 7])
def test_sums_run_in_worker_order(n):
    """NaN and infinities among them."""
    ids = np.tile(np.arange(K, dtype=np.int32), (n, 1))
    rows = RNG.normal(size=(n, K, D)).astype(np.float32)
    rows[0, 1, 0], rows[1, 2], rows[0, 3], rows[2, 3] = np.nan, np.inf, np.inf, -np.inf
    for op, divisor in (("sum", 1), ("mean", n)):
        gradient, _ = reduce_stack(ids, rows, V, op=op)
        for worker in range(n):
            assert_same_values(np.asarray(gradient.rows)[worker, :K], oracle.ordered_sum(rows, divisor))


def test_one_worker_and_no_lookups():
    ids, rows = np.array([[4, 2, 4]], np.int32), integers(1, 3, D)
    assert_reduced(reduce_stack(ids, rows, V)[0], ids, rows, V)
    few = reduce_stack(ids, rows, num_rows := 2)[0]
    assert_reduced(few, ids, rows, num_rows)
    assert few.ids.shape == (1, num_rows)
    nothing = np.zeros((N, 0), np.int32), np.zeros((N, 0, D), np.float32)
    assert_reduced(reduce_stack(*nothing, V)[0], *nothing, V)


@pytest.mark.parametrize("rows,columns", [(0, D), (V, 0), (0, 0)])
@pytest.mark.parametrize("mode", ["vmap", "shard_map"])
def test_empty_tables(rows, columns, mode):
    """Even though every worker looks up different ids."""
    ids = RNG.integers(0, V, (N, K)).astype(np.int32)
    gradient, _ = reduce_stack(ids, integers(N, K, columns), rows, mode)
    assert gradient.ids.shape == (N, 0) and gradient.rows.shape == (N, 0, columns)
    assert jax.tree.map(lambda x: x[0], gradient).to_dense().shape == (rows, columns)


def test_state_keeps_its_structure():
    """From init, which sees tables, through updates, which see rows; also with a plan."""
    params = {"large": jnp.zeros((3000, 100)), "small": jnp.zeros((V, D)), "bias": jnp.zeros(3)}
    ids, rows = jnp.arange(N, dtype=jnp.int32)[:, None], jnp.ones((N, 1, 100))
    plan = zen.Plan(N, {name: zen.LeafPlan(leaf.shape, "float32") for name, leaf in params.items()})
    for transform in (zen.synchronize("data", plan=how) for how in (None, plan, zen.Profiler())):
        state = transform.init(params)

        def worker(ids, rows, transform=transform, state=state):
            large = zen.RowSparseGradient.from_lookups(ids, rows, 3000)
            small = zen.RowSparseGradient.from_lookups(ids, rows[:, :D], V)
            return transform.update({"large": large, "small": small, "bias": jnp.ones(3)}, state)

        updates, after = jax.eval_shape(jax.vmap(worker, axis_name="data"), ids, rows)
        assert jax.tree.structure(after) == jax.tree.structure(state)
        assert updates["small"].rows.shape == (N, N, D) and updates["bias"].shape == (N, 3)


def test_synchronize_refuses_changed_ids():
    chain = optax.chain(optax.scale(0.5), zen.synchronize("data"))
    with pytest.raises(ValueError, match=r"ids of float32.*zen_jax\.embedding\.lazy"):
        jax.vmap(lambda ids: chain.update(merged(ids, jnp.ones((1, D))), chain.init(()))[0], axis_name="data")(
            jnp.zeros((N, 1), jnp.int32)
        )
