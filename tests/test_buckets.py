"""Leaves that are sent as one: small tables without a plan, and whatever a plan joins."""

import functools
from dataclasses import replace

import harness
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from cases import assert_same_bits, listed, sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

import zen_jax as zen
from zen_jax.planning.cluster import KERNELS, KernelCost
from zen_jax.planning.joined import joined_table
from zen_jax.planning.messages import messages
from zen_jax.planning.plan import WORKER_ORDER_SCHEMES

N = 4
RNG = np.random.default_rng(0)
TABLES = {f"table{i}": sparse(RNG, N, (rows, 16), 0.03, integers=False) for i, rows in enumerate((61, 150, 1, 150))}
OTHERS = {
    "narrow": sparse(RNG, N, (40, 8), 0.03, integers=False),
    "bias": sparse(RNG, N, (9,), 1.0, integers=False),
    "half": sparse(RNG, N, (33, 16), 0.1, jnp.bfloat16, integers=False),
}
GRADIENTS = TABLES | OTHERS
PARAMS = jax.tree.map(lambda g: jnp.zeros(g.shape[1:], g.dtype), GRADIENTS)
MEANS = jax.tree.map(lambda g: oracle.ordered_sum(g, N), GRADIENTS)
TABLE_BYTES = sum(g[0].nbytes for g in TABLES.values())
LARGE = 1 << 14  # bytes: above every leaf, below the tables together

pytestmark = [pytest.mark.promoting, pytest.mark.usefixtures("coarse_ladder")]


def step(transform, gradients=GRADIENTS, params=PARAMS, mode="vmap"):
    return harness.spmd(lambda g: transform.update(g, transform.init(params)), mode, N)(gradients)


def assert_means(updates, state):
    """Every leaf has the bits of its mean; Info of the first worker."""
    for name in updates:
        for worker in range(N):
            assert_same_bits(updates[name][worker], MEANS[name], name)
    return jax.tree.map(lambda field: float(field[0]), optax.tree.get(state, "info"))


# --- without a plan ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", harness.MODES)
def test_small_tables_are_sent_sparse_as_one(mode):
    info = assert_means(*step(zen.synchronize(harness.AXIS, dense_below=LARGE), mode=mode))
    assert set(info) == {"(fused)"}
    share = sum(g[0].nbytes for g in OTHERS.values()) / sum(g[0].nbytes for g in GRADIENTS.values())
    np.testing.assert_allclose(info["(fused)"].dense_taken, share, 0.01)  # dense bytes are padded


@pytest.mark.parametrize(
    "options",
    [
        {"dense_below": TABLE_BYTES + 1},  # the table of all is small, too
        {"dense_below": LARGE, "bucket_bytes": 99},
        {"dense_below": LARGE, "unit": 32},  # divides no row
        {"dense_below": LARGE, "scheme": "zen"},  # would send dense tables as if they were sparse
    ],
)
def test_other_small_leaves_are_sent_dense(options):
    info = assert_means(*step(zen.synchronize(harness.AXIS, **options)))
    assert info["(fused)"].dense_taken == 1


@pytest.mark.parametrize("unit", ["element", "row", 4])
def test_units_of_tables(unit):
    info = assert_means(*step(zen.synchronize(harness.AXIS, unit=unit, dense_below=LARGE)))
    assert info["(fused)"].dense_taken < 1


def test_tables_across_machines():
    gradients = jax.tree.map(lambda g: np.stack([g, g]), TABLES)  # [2 machines, N devices, ...]
    transform = zen.synchronize("machines", op="sum", intra_axis="devices", scheme="zen", dense_below=LARGE)
    worker = jax.vmap(lambda g: transform.update(g, None)[0], axis_name="devices")
    updates = jax.jit(jax.vmap(worker, axis_name="machines"))(gradients)
    jax.tree.map(lambda g, u: np.testing.assert_allclose(u[1, 2], 2 * g.sum(axis=0), 1e-5), TABLES, updates)


def test_one_exchange_for_any_number_of_tables():
    """What each costs in latency and compilation is paid once."""

    def collectives(count):
        tables = {f"table{i}": jnp.zeros((6000 // count, 16)) for i in range(count)}
        update = lambda g: zen.synchronize(harness.AXIS, dense_below=200_000).update(g, None)[0]
        return str(jax.make_jaxpr(update, axis_env=[(harness.AXIS, N)])(tables)).count(" all_gather[")

    assert collectives(2) == collectives(20)


# --- lists of elements ------------------------------------------------------------------------------------------


def several_lists(shapes, density, seed):
    """[(shape, stack)]: gradients of N workers with exact sums, of which some workers list nothing."""
    rng = np.random.default_rng(seed)
    return {
        f"leaf{i}": np.where(rng.random((N, *shape)) < density, rng.integers(1, 99, (N, *shape)), 0).astype(np.float32)
        for i, shape in enumerate(shapes)
    }


def lists_of(stack, room, beyond):
    """Indices [N, room], values and counts; if `beyond`, also three entries beyond the end of the gradient."""
    indices, values, counts = map(np.stack, zip(*(listed(x.reshape(-1), room) for x in stack), strict=True))
    for index in (stack[0].size, stack[0].size + 1, 2**31 - 1) if beyond else ():
        indices[np.arange(N), counts], values[np.arange(N), counts] = index, 99.0
        counts += 1
    return indices, values, counts


def exchanged(gradients, room, mode="vmap", beyond=False, **options):
    """Sums of lists with `room` of each gradient, and Info, for every worker."""
    transform = zen.synchronize(harness.AXIS, op="sum", unit="element", dense_below=0, **options)
    lists = {name: lists_of(stack, room, beyond) for name, stack in gradients.items()}

    def worker(lists):
        tree = {name: zen.SparseGradient(*of, gradients[name].shape[1:]) for name, of in lists.items()}
        return transform.update(tree, None)

    return harness.spmd(worker, mode, N)(lists)


@given(st.lists(st.sampled_from([(5,), (30, 7), (2, 3, 11)]), min_size=1, max_size=4), st.floats(0, 1), st.booleans())
@settings(max_examples=8)
def test_several_lists_are_sent_as_one(shapes, density, beyond):
    gradients = several_lists(shapes, density, seed=1)
    sums, state = exchanged(gradients, room=250, beyond=beyond)
    for name, stack in gradients.items():
        assert_same_bits(sums[name][N - 1], stack.sum(axis=0))
    assert set(state.info) == set(gradients)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scheme": "zen"},
        {"scheme": "zen", "push_format": "bitmap", "pull_format": "coo"},
        {"scheme": "zen", "pull_format": "bitmap"},
        {"scheme": "zen", "pull_format": "others"},
        {"scheme": "zen", "hash": "murmur"},
        {"scheme": "agsparse"},
        {"scheme": "sparcml"},
        {"scheme": "sparse_ps"},
    ],
)
def test_what_is_listed_beyond_the_end_counts_nowhere(options):
    """Neither in sums nor in `Info`."""
    (stack,) = several_lists([(30, 7)], 0.1, seed=1).values()
    reduce = lambda listed: zen.all_reduce(
        zen.SparseGradient(*listed, (30, 7)), harness.AXIS, op="sum", unit="element", return_info=True, **options
    )
    without, with_more = (harness.spmd(reduce, "vmap", N)(lists_of(stack, 250, beyond)) for beyond in (False, True))
    jax.tree.map(assert_same_bits, with_more, without)


SHAPES = [(30, 7), (0, 3), (400,)]
LISTED = zen.Plan(N, {f"leaf{i}": zen.LeafPlan(shape, "float32", "zen", bucket=0) for i, shape in enumerate(SHAPES)})


@pytest.mark.parametrize("mode", harness.MODES)
@pytest.mark.parametrize(
    "options",
    [{}, {"scheme": "agsparse"}, {"scheme": "dense"}, {"scheme": "omnireduce"}, {"bucket_bytes": 99}, {"plan": LISTED}],
)
def test_lists_travel_in_any_way(mode, options):
    gradients = several_lists(SHAPES, 0.1, seed=2)
    sums, _ = exchanged(gradients, room=120, mode=mode, **options)
    for name, stack in gradients.items():
        assert_same_bits(sums[name][0], stack.sum(axis=0))


def test_an_altered_list_ruins_no_other():
    gradients = {name: jnp.ones((2, 3)) for name in "abc"}

    def worker(_):
        lists = {
            name: zen.SparseGradient(jnp.arange(6, dtype=jnp.int32), g.reshape(-1), jnp.int32(6), (2, 3))
            for name, g in gradients.items()
        }
        lists["b"] = jax.tree.map(lambda x: x * jnp.ones((), x.dtype) * 2, lists["b"])
        return zen.synchronize(harness.AXIS, dense_below=0, unit="element").update(lists, None)[0]

    found = jax.jit(jax.vmap(worker, axis_name=harness.AXIS))(jnp.zeros(N))
    assert np.isnan(found["b"][:, 0, 0]).all()
    for name in "ac":
        np.testing.assert_array_equal(found[name], np.ones((N, 2, 3)))


def test_one_exchange_for_any_number_of_lists():
    def collectives(count):
        size, room = 6000 // count, 600 // count
        tree = {
            f"leaf{i}": zen.SparseGradient(
                jnp.zeros(room, jnp.int32), jnp.zeros(room), jnp.zeros((), jnp.int32), (size,)
            )
            for i in range(count)
        }
        update = lambda tree: zen.synchronize(harness.AXIS, dense_below=0).update(tree, None)[0]
        return str(jax.make_jaxpr(update, axis_env=[(harness.AXIS, N)])(tree)).count(" all_gather[")

    assert collectives(1) == collectives(2) == collectives(20)


# --- planned ----------------------------------------------------------------------------------------------------

CLUSTER = zen.Cluster(N, inter_gbps=1, latency_us=50)


@functools.cache
def profiled():
    """Made by the first test that needs it: while tests are collected, every process would make one."""
    return zen.profile(GRADIENTS)


@pytest.mark.parametrize("mode", ["vmap", "shard_map", "shard_map_unchecked"])
def test_a_plan_joins_tables_and_changes_no_bit(mode):
    plan = zen.plan(profiled(), CLUSTER)
    assert len({plan.leaves[name].bucket for name in TABLES}) == 1
    assert plan.leaves["table0"].scheme not in zen.schemes.registry.DENSE
    for dense_below in (0, 1 << 20):
        info = assert_means(*step(zen.synchronize(harness.AXIS, plan=plan, dense_below=dense_below), mode=mode))
        assert set(info) == (set(GRADIENTS) if dense_below == 0 else {"(fused)"})
        whole = zen.total(info)
        sent = sum(message.way.nbytes for message in messages(profiled(), CLUSTER, WORKER_ORDER_SCHEMES))
        np.testing.assert_allclose(whole.bytes_pushed + whole.bytes_pulled, sent, 1e-5)
        assert whole.rounds == 1


@given(st.floats(0.01, 400), st.floats(0, 1e4), st.none() | st.floats(0, 1e-8), st.sampled_from([1, 4]))
def test_leaves_are_sent_once_and_take_no_longer_than_apart(gbps, latency, copy, devices):
    kernels = {} if copy is None else {"copy": KernelCost(copy, 0)}
    cluster = zen.Cluster(N, devices, inter_gbps=gbps, latency_us=latency, kernels=kernels)
    profile = replace(profiled(), devices_per_host=devices)
    found, estimated = messages(profile, cluster, WORKER_ORDER_SCHEMES), zen.estimate(profile, cluster)
    assert sorted(name for message in found for name in message.leaves) == sorted(profiled().leaves)
    apart = sum(estimated.best(name, WORKER_ORDER_SCHEMES).seconds for name in profiled().leaves)
    assert sum(message.way.seconds for message in found) <= apart * (1 + 1e-9)


def test_leaves_of_a_bucket_share_its_info():
    plan = zen.plan(zen.profile(TABLES), CLUSTER)
    _, state = step(
        zen.synchronize(harness.AXIS, plan=plan, dense_below=0), TABLES, {name: PARAMS[name] for name in TABLES}
    )
    info = jax.tree.map(lambda field: float(field[0]), optax.tree.get(state, "info"))
    assert len({of_leaf.density for of_leaf in info.values()}) == 1
    for name, of_leaf in info.items():
        share = TABLES[name][0].nbytes / TABLE_BYTES
        np.testing.assert_allclose(of_leaf.bytes_dense, share * zen.total(info).bytes_dense, 1e-5)


@pytest.mark.parametrize("scheme", [name for name in zen.schemes.names() if name not in ("dense", "sparcml")])
def test_a_bucket_of_rows_of_different_lengths(scheme):
    """A plan made by hand may join them, under any scheme, if the unit divides both."""
    leaf = {"scheme": scheme, "unit": 8, "bucket": 3}
    gradients = {name: GRADIENTS[name] for name in ("table0", "narrow")}
    leaves = {name: zen.LeafPlan(g.shape[1:], "float32", **leaf) for name, g in gradients.items()}
    assert_means(*step(zen.synchronize(harness.AXIS, plan=zen.Plan(N, leaves)), gradients, PARAMS))


def test_copying_decides_about_large_tables():
    """They are joined only if a cluster says how long copying takes, and that it takes less than the latency saved."""
    large = zen.SparsityProfile(N, profiled().leaves, dense_below=0)
    costs = dict.fromkeys(KERNELS, KernelCost(1e-11, 1e-11))

    def buckets(**measured):
        cluster = zen.Cluster(N, inter_gbps=1, latency_us=50, kernels=measured)
        return {zen.plan(large, cluster).leaves[name].bucket for name in TABLES}

    assert buckets() == buckets(partition=costs["partition"]) == {None}
    assert len(buckets(**costs)) == 1 and buckets(**costs) != {None}
    assert buckets(**costs | {"copy": KernelCost(1e-6, 0)}) == {None}


def test_nothing_to_gain_nothing_joined():
    """Dense gradients, and links without latency over which sparse tables gain nothing from each other."""
    full = zen.profile(jax.tree.map(np.ones_like, TABLES))
    assert {leaf.scheme for leaf in zen.plan(full, CLUSTER).leaves.values()} == {"dense_ordered"}
    alone = zen.profile({"table0": TABLES["table0"]})
    assert zen.plan(alone, CLUSTER).leaves["table0"].bucket is None


@pytest.mark.parametrize("n", [1, 3, 4])
@given(tables=st.lists(st.tuples(st.sampled_from([1, 40, 111]), st.floats(0, 1)), min_size=1, max_size=5))
@settings(max_examples=10)
def test_joined_profiles(n, tables):
    """What adds up equals the profile of the joined gradient, and what does not is at least as much."""
    rng = np.random.default_rng(0)
    stacks = [sparse(rng, n, (rows, 8), density) for rows, density in tables]
    found = joined_table([zen.profile(stack).leaves["(array)"] for stack in stacks])
    joined = np.concatenate(stacks, axis=1)
    assert found.shape == joined.shape[1:]
    for width, unit in found.by_width.items():
        exact = oracle.sparsity(joined, width, (n,))
        np.testing.assert_allclose(unit.unions, exact["unions"], 1e-6)
        assert unit.units == exact["units"]
        for field in ("partial_sums", "contiguous_push", "contiguous_pull"):
            assert (np.asarray(getattr(unit, field)) >= np.asarray(exact[field])).all(), field


def test_a_profiler_examines_what_makes_up_a_table():
    profiler = zen.Profiler()
    transform = zen.synchronize(harness.AXIS, plan=profiler, dense_below=LARGE)
    harness.spmd(lambda g: transform.update(g, None)[0], "vmap", N)(GRADIENTS)
    profile = profiler.profile()
    assert {name for name, leaf in profile.leaves.items() if leaf.by_width} == set(TABLES)
    for name in TABLES:
        assert profile.leaves[name].at("row", N) == profiled().leaves[name].at("row", N)


def test_joined_messages_are_about_as_full_as_those_of_the_joined_gradient():
    """Some of what a leaf's fullest message has beyond the mean is not in the same message as another leaf's."""
    stacks = [sparse(RNG, 8, (rows, 16), 0.02) for rows in np.repeat([500, 2000, 7000, 20_000], 3)]
    found = joined_table([zen.profile(stack, unit="row").leaves["(array)"] for stack in stacks]).at("row", 8)
    exact = zen.profile(np.concatenate(stacks, axis=1), unit="row").leaves["(array)"].at("row", 8)
    for field in ("push", "pull"):
        assert 0.95 <= getattr(found, field) / getattr(exact, field) <= 1.15


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_bucket_in_parts(parts):
    """Each part has room for its own leaves: together they send what the whole sends, rounded up by a size or two."""
    profile = zen.profile(TABLES)
    plan = zen.plan(profile, CLUSTER, schemes=("dense_ordered", "zen"))
    assert len({leaf.bucket for leaf in plan.leaves.values()}) == 1
    labels = {name: str(i % parts) for i, name in enumerate(TABLES)}
    transform = optax.partition(
        {str(i): zen.synchronize(harness.AXIS, plan=plan, dense_below=0) for i in range(parts)}, labels
    )
    params = {name: PARAMS[name] for name in TABLES}
    updates, state = step(transform, TABLES, params)
    for name, update in updates.items():
        assert_same_bits(update[0], MEANS[name], name)
    infos = [part.inner_state.info for part in state.inner_states.values()]
    info = zen.total([of_part[name] for of_part in infos for name in of_part])
    sent = sum(message.way.nbytes for message in messages(profile, CLUSTER, ("dense_ordered", "zen")))
    assert float((info.bytes_pushed + info.bytes_pulled)[0]) <= 1.3 * sent


def test_a_small_shard_of_a_model_axis_is_no_table():
    """Shards are sent apart from what is equal along the axis, and this one alone is too small to be sent sparse."""
    mesh = harness.mesh((2, 2), (harness.AXIS, "model"))
    transform = zen.synchronize(harness.AXIS, dense_below=LARGE)
    whole = PartitionSpec(harness.AXIS)
    specs = {"shard": PartitionSpec(harness.AXIS, None, "model"), "table0": whole, "table1": whole}
    worker = lambda g: transform.update(jax.tree.map(lambda x: x[0], g), None)[1].info["(fused)"].dense_taken
    step = jax.shard_map(worker, mesh=mesh, in_specs=(specs,), out_specs=PartitionSpec())
    tables = {"table0": jnp.zeros((2, 150, 16)), "table1": jnp.zeros((2, 150, 16))}
    dense_taken = jax.jit(step)({"shard": jnp.zeros((2, 7, 32)), **tables})
    np.testing.assert_allclose(dense_taken, 7 / 307, 0.01)
