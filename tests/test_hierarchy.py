"""Machines of several devices: dense inside, a scheme across, and the guarantees of one axis over both."""

import functools
import itertools
from dataclasses import replace

import harness
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from cases import FLOATS, SHAPES, assert_same_bits, assert_same_values, sparse, special, structured
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P
from refusals import refuses

import zen_jax as zen

AXES = ("machines", "devices")
MESHES = [(4, 2), (2, 4), (2, 3), (1, 4), (4, 1), (1, 1)]
N, K = 2, 3  # the mesh of all tests except those over MESHES


def mesh_of(n, k):
    return harness.mesh((n, k), AXES)


def on_mesh(worker, n=N, k=K, check_vma=True):
    """worker: gradients of one device -> tree, the same on all. Returns stack [n, k, ...] -> that tree, jitted."""
    take = lambda tree: jax.tree.map(lambda leaf: leaf[0, 0], tree)
    mapped = jax.shard_map(
        lambda tree: worker(take(tree)), mesh=mesh_of(n, k), in_specs=P(*AXES), out_specs=P(), check_vma=check_vma
    )
    return jax.jit(mapped)


@functools.cache
def all_reduce(n=N, k=K, check_vma=True, **options):
    return on_mesh(lambda x: zen.all_reduce(x, AXES[0], intra_axis=AXES[1], **options), n, k, check_vma)


def by_device(stack, n=N, k=K):
    """[n * k, ...] -> [n, k, ...]."""
    return stack.reshape(n, k, *stack.shape[1:])


def expected_sum(stack, divisor=1, across=oracle.ordered_sum):
    """Over devices in order, then over machines; rounded once."""
    kind = oracle.accumulator(stack.dtype)
    machines = np.stack([oracle.ordered_sum(machine.astype(kind)) for machine in stack])
    with np.errstate(over="ignore"):
        return across(machines, divisor).astype(stack.dtype)


def check(result, expected, name="", same=assert_same_bits):
    """Every device holds the expected bits."""
    first, *others = (np.asarray(shard.data) for shard in result.addressable_shards)
    same(first, expected, name)
    for other in others:
        assert_same_bits(other, first, name)


# --- numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mesh,op,check_vma",
    [
        *itertools.product(MESHES, ["sum", "mean"], [True]),
        *itertools.product([(4, 2), (2, 3), (1, 4)], ["sum"], [False]),
    ],
)
def test_integers_equal_psum_over_both_axes(mesh, op, check_vma):
    reference = {"sum": jax.lax.psum, "mean": jax.lax.pmean}[op]
    expected = on_mesh(lambda x: reference(x, AXES), *mesh, check_vma)
    for name, flat in structured(mesh[0] * mesh[1], (31, 4), servers=mesh[0]).items():
        stack = by_device(flat, *mesh)
        check(all_reduce(*mesh, check_vma, op=op)(stack), np.asarray(expected(stack)), name)


@pytest.mark.parametrize("scheme", zen.schemes.names())
def test_random_floats_sum_by_device_then_by_machine(scheme):
    across = oracle.recursive_doubling if scheme == "sparcml" else oracle.ordered_sum
    for name, flat in structured(N * K, (31, 4), integers=False, servers=N).items():
        stack = by_device(flat)
        check(all_reduce(scheme=scheme)(stack), expected_sum(stack, N * K, across), name)


@pytest.mark.parametrize("scheme", ["auto", "zen"])  # between two machines auto is agsparse
@pytest.mark.parametrize("dtype", FLOATS)
def test_dtypes_and_special_values(dtype, scheme):
    with jax.enable_x64(dtype == "float64"):
        for name, flat in special(N * K, (31, 4), FLOATS[dtype]).items():
            if name != "subnormals":  # which the dense sum inside may flush to zero
                stack = by_device(flat)
                check(all_reduce(scheme=scheme)(stack), expected_sum(stack, N * K), name, assert_same_values)


def test_float16_rounds_once():
    """2048 + 1 + 1 is 2050 in float32 and 2048 when each step rounds, inside a machine or across."""
    stack = np.zeros((N, K, 31, 4), np.float16)
    stack[0, :, 3, 1] = [2048, 1, 1]
    stack[:, :2, 5, 2] = [[2048, 1], [1, 0]]
    stack[:, :2, 30, 3] = [[65504, 65504], [-65504, 0]]
    expected = np.zeros((31, 4), np.float16)
    expected[3, 1], expected[5, 2], expected[30, 3] = 2050, 2050, 65504
    for scheme in ("auto", "zen", "dense"):
        check(all_reduce(op="sum", scheme=scheme)(stack), expected, scheme)


@settings(max_examples=12)
@given(
    shape=st.one_of(st.sampled_from(SHAPES), st.lists(st.integers(0, 9), max_size=3).map(tuple)),
    mesh=st.sampled_from(MESHES),
)
def test_any_shape(shape, mesh):
    flat = np.random.default_rng(0).normal(size=(*mesh, *shape)).astype(np.float32)
    check(all_reduce(*mesh, scheme="dense_ordered")(flat), expected_sum(flat, mesh[0] * mesh[1]))


@given(seed=st.integers(0, 2**32 - 1), density=st.floats(0, 1), by_row=st.booleans())
def test_any_gradient(seed, density, by_row):
    stack = by_device(sparse(np.random.default_rng(seed), N * K, (31, 4), density, integers=False, by_row=by_row))
    check(all_reduce(scheme="zen")(stack), expected_sum(stack, N * K))


@pytest.mark.parametrize(
    "options",
    [
        {"unit": "row", "capacity": (3, 4)},
        {"unit": "element", "capacity": 1, "hash": "murmur"},
        {"unit": 2, "seed": 9, "pull_format": "others"},
    ],
    ids=str,
)
def test_options_change_no_bit(options):
    for name, flat in structured(N * K, (31, 4), integers=False, servers=N).items():
        stack = by_device(flat)
        check(all_reduce(scheme="zen", **options)(stack), expected_sum(stack, N * K), name)


@pytest.mark.parametrize("scheme", ["auto", "sparcml"])
def test_devices_with_very_different_shares_take_the_same_branches(scheme):
    """Collective-permutes of devices in different branches would deadlock."""
    stack = np.zeros((N, K, 600, 32), np.float32)
    stack[:, :, ::K] = np.random.default_rng(0).integers(1, 9, (N, K, 200, 32))
    reduced, info = all_reduce(scheme=scheme, unit="row", op="sum", return_info=True)(stack)
    check(reduced, stack.sum(axis=(0, 1)))
    assert info.dense_taken == 1


@pytest.mark.parametrize(("scheme", "sizes"), [("zen", 2), ("agsparse", 1), ("sparcml", 2)])
def test_devices_of_a_machine_agree_on_every_size(scheme, sizes):
    """Of the push and the pull, of the gather, or of both stages; one more time on what `Info` says."""
    reduce = lambda x: zen.all_reduce(x, AXES[0], intra_axis=AXES[1], scheme=scheme, unit="row")
    traced = jax.make_jaxpr(reduce, axis_env=[(AXES[0], 4), (AXES[1], 2)])(jnp.zeros((500, 8)))
    assert str(traced).count("pmax[") == sizes + 1


@harness.coarse_ladder()
def test_nested_vmap():
    n, k = 3, 2
    stack = by_device(sparse(np.random.default_rng(0), n * k, (301, 16), 0.1, integers=False), n, k)
    worker = lambda x: zen.all_reduce(x, AXES[0], intra_axis=AXES[1], scheme="zen")
    results = jax.jit(jax.vmap(jax.vmap(worker, axis_name=AXES[1]), axis_name=AXES[0]))(stack)
    for result in np.asarray(results).reshape(n * k, *stack.shape[2:]):
        assert_same_bits(result, expected_sum(stack, n * k))


# --- what crosses machines --------------------------------------------------------------------------------------


def moved(stack, n, k, **options):
    _, info = all_reduce(n, k, scheme="zen", return_info=True, **options)(stack)
    return float(info.bytes_pushed + info.bytes_pulled), info


@harness.coarse_ladder()
def test_info_describes_what_crosses_machines():
    n, k = 4, 2
    stack = by_device(sparse(np.random.default_rng(0), n * k, (4000, 16), 0.01, integers=False), n, k)
    _, info = moved(stack, n, k, unit="row", capacity=100)
    machines = oracle.is_nonzero(stack.sum(axis=1).reshape(-1, 16)).reshape(n, -1)
    np.testing.assert_allclose(info.density, machines.mean(), 1e-5)
    np.testing.assert_allclose(info.density_reduced, machines.any(axis=0).mean(), 1e-5)
    np.testing.assert_allclose(info.bytes_dense, 2 * (n - 1) / n * 4000 * 16 * 4 / k, 1e-5)
    assert 1 <= info.imbalance_pull <= 2
    assert info.dense_taken == 0


@harness.coarse_ladder()
def test_auto_units_balance_what_all_devices_serve():
    """Of 96 columns, the widest of which each of six devices has one in every row; machines alone would get 48."""
    stack = by_device(sparse(np.random.default_rng(0), N * K, (640, 96), 0.1))
    moves = {unit: moved(stack, N, K, unit=unit)[0] for unit in ("auto", 16, 48)}
    assert moves["auto"] == moves[16] != moves[48]


def test_devices_share_what_a_machine_would_send():
    """Even if only the first rows are dense, each device sends about a k-th, within a k-th of the capacity."""
    n, k, shape = 4, 2, (8000, 8)
    stack = np.zeros((n, k, *shape), np.float32)
    stack[:, :, :400] = np.random.default_rng(0).normal(size=(n, k, 400, 8))
    capacity = 400 // n + 10
    alone, _ = moved(stack.sum(axis=1, keepdims=True), n, 1, unit="row", capacity=(capacity, capacity))
    shared, info = moved(stack, n, k, unit="row", capacity=(capacity, capacity))
    assert k * shared <= 1.3 * alone
    assert info.rounds <= 2


@pytest.mark.parametrize("scheme", ["zen", "agsparse", "omnireduce", "sparse_ps"])
def test_a_plan_moves_what_was_estimated(scheme):
    """Non-zero blocks of 256 elements, as omnireduce sends; shares are not perfectly even."""
    n, k = 4, 2
    stack = np.zeros((n, 2**13, 256), np.float32)
    for machine in range(n):
        stack[machine, np.random.default_rng(machine).choice(2**13, 800, replace=False)] = 1
    stack = np.repeat(stack.reshape(n, 1, -1), k, axis=1)
    estimate = zen.estimate(zen.profile(stack.sum(axis=1), devices_per_host=k), zen.Cluster(n, k))
    candidate = estimate.leaves["(array)"][scheme].candidate
    _, info = all_reduce(n, k, return_info=True, **candidate.options)(stack)
    np.testing.assert_allclose(k * (info.bytes_pushed + info.bytes_pulled), candidate.nbytes, 0.15)


# --- synchronize, plans, value_and_grad -------------------------------------------------------------------------

PARAMS = {"table": jnp.zeros((600, 32)), "bias": jnp.zeros(7), "empty": jnp.zeros((0, 3))}
GRADIENTS = {
    name: by_device(sparse(np.random.default_rng(1), N * K, leaf.shape, 0.05, integers=False))
    for name, leaf in PARAMS.items()
}


def synchronized(gradients=GRADIENTS, **options):
    transform = zen.synchronize(AXES[0], intra_axis=AXES[1], dense_below=100, **options)
    updates, state = on_mesh(lambda g: transform.update(g, transform.init(g)))(gradients)
    jax.block_until_ready(updates)
    return updates, state


CLUSTER = zen.Cluster(N, devices_per_host=K, inter_gbps=0.01, intra_gbps=100)


@functools.cache
def profile_of_machines():
    machines = {name: stack.sum(axis=1) for name, stack in GRADIENTS.items()}
    return zen.profile(machines, unit="row", devices_per_host=K)


@pytest.mark.promoting
@pytest.mark.parametrize("planned", [False, True])
@harness.coarse_ladder()
def test_synchronize(planned):
    plan = zen.plan(profile_of_machines(), CLUSTER) if planned else None
    assert not planned or plan.leaves["table"].capacity
    updates, state = synchronized(plan=plan)
    for name, stack in GRADIENTS.items():
        check(updates[name], expected_sum(stack, N * K), name)
    assert float(state.info["table"].rounds) <= 2


@pytest.mark.promoting
def test_plan_counts_machines():
    table = {"table": GRADIENTS["table"]}
    leaves = {"table": zen.LeafPlan((600, 32), "float32")}
    here = f"Make a plan for {N} hosts with {K} devices each"
    for plan in (zen.Plan(N * K, leaves), zen.Plan(N, leaves), zen.Plan(N, leaves, devices_per_host=K + 1)):
        refuses(lambda: synchronized(table, plan=plan), str(plan).splitlines()[0].replace("for", "is for"), here)  # noqa: B023
    hosts = zen.plan(zen.profile({"w": np.ones((N, 600, 32), np.float32)}, devices_per_host=K), CLUSTER)
    flat = jax.vmap(lambda g: zen.synchronize("data", plan=hosts).update({"w": g}, None)[0], axis_name="data")
    refuses(
        lambda: flat(np.ones((N, 600, 32), np.float32)), f"plan is for {N} hosts with {K} devices each", f"{N} workers"
    )


@harness.coarse_ladder()
def test_a_plan_has_room_for_every_devices_share():
    """Units that spread evenly over a machine's servers need not do so within the shares of its devices."""
    n, k, shape = 4, 2, (5000, 64)
    stack = by_device(sparse(np.random.default_rng(0), n * k, shape, 0.01), n, k)
    machines, profiler = stack.sum(axis=1), zen.Profiler()
    observing = zen.synchronize(AXES[0], intra_axis=AXES[1], plan=profiler)
    jax.block_until_ready(on_mesh(lambda g: observing.update({"(array)": g}, None)[0], n, k)(stack))
    for profile in (profiler.profile(), zen.profile(machines, devices_per_host=k)):
        for width in (64, 32, 16):
            unit = profile.leaves["(array)"].by_width[width]
            capacity = (unit.push, unit.pull)
            _, info = moved(stack, n, k, unit=width, capacity=capacity)
            assert info.rounds == 1, width
            fuller = capacity[0] - k, capacity[1] - k
            assert moved(stack, n, k, unit=width, capacity=fuller)[1].rounds > 1, width
        other = zen.Cluster(n * k), zen.Cluster(n), zen.Cluster(n, devices_per_host=2 * k), zen.Cluster(n // k, k)
        for cluster in other:
            with pytest.raises(ValueError, match=f"{n} hosts with {k} devices each, but the cluster has"):
                zen.plan(profile, cluster)
    with pytest.raises(ValueError, match="devices_per_host=0"):
        zen.profile(machines, devices_per_host=0)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_profiler_sees_the_sums_of_machines(dtype):
    stack = np.zeros((N, K, 20_000, 16), dtype)
    for machine in range(N):
        for device in range(K):
            stack[machine, device, 1000 * device : 1000 * device + 500] = 1
    stack[:, :, 0] = 40_000  # whose sum is not finite in float16, but its mean is
    profiler = zen.Profiler()
    synchronized({"table": stack}, plan=profiler, scheme="dense")
    profile = profiler.profile()
    assert (profile.n, profile.steps, profiler.steps) == (N, 1, 1)
    assert profile.leaves["table"].at("row", N).density == pytest.approx(K * 500 / 20_000)


@harness.coarse_ladder()
def test_row_sparse_gradients_take_every_device_for_a_worker():
    ids = jnp.arange(N * K * 4, dtype=jnp.int32).reshape(N, K, 4) % 10
    rows = jnp.asarray(np.random.default_rng(0).integers(-8, 9, (N, K, 4, 5)), jnp.float32)
    transform = zen.synchronize(AXES[0], op="sum", intra_axis=AXES[1])

    def worker(lookups):
        gradient = zen.RowSparseGradient.from_lookups(*lookups, num_rows=50)
        return transform.update({"table": gradient}, None)[0]["table"].to_dense()

    expected = np.zeros((50, 5), np.float32)
    np.add.at(expected, np.asarray(ids).reshape(-1), np.asarray(rows).reshape(-1, 5))
    check(on_mesh(worker, check_vma=False)((ids, rows)), expected)
    nested = jax.vmap(jax.vmap(worker, axis_name=AXES[1]), axis_name=AXES[0])
    refuses(lambda: nested((ids, rows)), "('machines', 'devices')", "several axes", "shard_map")


def test_value_and_grad_equals_the_global_mean():
    rng = np.random.default_rng(0)
    table, words = rng.normal(size=(53, 8)).astype(np.float32), rng.integers(0, 50, (2 * N * K, 5)).astype(np.int32)

    def loss(table, words):
        hidden = jnp.mean(table[words], axis=1)
        return jnp.mean(hidden**2), jnp.max(hidden)

    options = {"mesh": mesh_of(N, K), "axis_name": AXES[0], "intra_axis": AXES[1]}
    for op, factor in (("mean", 1), ("sum", N * K)):
        step = zen.value_and_grad(loss, has_aux=True, op=op, dense_below=0, **options)
        (value, largest), gradient = jax.jit(step)(table, words)
        (expected_value, _), expected = jax.value_and_grad(loss, has_aux=True)(table, words)
        np.testing.assert_allclose(value, factor * expected_value, 1e-5)
        np.testing.assert_allclose(gradient, factor * expected, 1e-5, 1e-6)
        assert largest.shape == (N * K,)
    refuses(lambda: step(table, words[:4]), "batch of 4", "6 workers")


def test_estimates_of_machines_count_16_bit_floats_as_float32():
    """That is how they cross machines."""
    leaf = replace(profile_of_machines().leaves["table"], dtype="float16")
    profile = replace(profile_of_machines(), leaves={"table": leaf})
    flat = zen.estimate(replace(profile, devices_per_host=1), zen.Cluster(N))
    across = zen.estimate(profile, CLUSTER)
    assert across.leaves["table"]["dense"].nbytes == 2 * flat.leaves["table"]["dense"].nbytes


# --- bad input --------------------------------------------------------------------------------------------------


def test_already_reduced_over_either_axis():
    one = lambda x: zen.all_reduce(x, AXES[0], intra_axis=AXES[1])
    tree = lambda x: zen.synchronize(AXES[0], intra_axis=AXES[1]).update({"w": x}, None)[0]
    for axis, reduce in itertools.product(AXES, (one, tree)):
        worker = lambda x, axis=axis, reduce=reduce: reduce(jax.lax.psum(x, axis))
        refuses(lambda worker=worker: on_mesh(worker)(np.ones((N, K, 4), np.float32)), f"{axis!r}", "already reduced")


@pytest.mark.parametrize("axis_name", [AXES[0], AXES])
def test_one_axis_given_twice(axis_name):
    fragments = ("intra_axis='machines'", "axis_name=", "differ")
    refuses(lambda: zen.synchronize(axis_name, intra_axis=AXES[0]), *fragments)
    worker = lambda x: zen.all_reduce(x, axis_name, intra_axis=AXES[0])
    refuses(lambda: on_mesh(worker)(np.ones((N, K, 4), np.float32)), *fragments)


def test_axes_that_do_not_exist():
    worker = lambda x: zen.all_reduce(x, AXES[0], intra_axis="cores")
    refuses(lambda: on_mesh(worker)(np.ones((N, K, 4), np.float32)), "intra_axis='cores'", "shard_map")
    mesh = mesh_of(N, K)
    step = lambda intra: zen.value_and_grad(jnp.sum, mesh=mesh, axis_name=AXES[0], intra_axis=intra)
    refuses(lambda: step("cores"), "intra_axis='cores'", "'devices'")
    refuses(lambda: step(AXES[0]), "intra_axis='machines'", "differ")
