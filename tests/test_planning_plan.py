"""Plans: the fastest estimate for each leaf, messages that fit, no bit changed, and files that can be trusted."""

import functools
import json
import math
import zlib
from dataclasses import replace

import harness
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from cases import assert_same_bits, sparse
from hypothesis import given
from hypothesis import strategies as st

import zen_jax as zen
from zen_jax.planning.costs import candidates
from zen_jax.planning.messages import messages

N = 4
RNG = np.random.default_rng(0)
GRADIENTS = {
    "table": sparse(RNG, N, (1024, 256), 0.02, integers=False),
    "full": sparse(RNG, N, (600, 512), 1.0, integers=False),
    "bias": sparse(RNG, N, (64,), 1.0, integers=False),
    "scale": sparse(RNG, N, (), 1.0, integers=False),
}
SLOW = zen.Cluster(N, inter_gbps=0.1)
MEANS = jax.tree.map(lambda g: oracle.ordered_sum(g, N), GRADIENTS)

pytestmark = [pytest.mark.promoting, pytest.mark.usefixtures("coarse_ladder")]


@functools.cache
def profiled():
    """Made by the first test that needs it: while tests are collected, every process would make one."""
    return zen.profile(jax.tree.map(jnp.asarray, GRADIENTS), unit="row")


@functools.cache
def planned():
    return zen.plan(profiled(), SLOW)


def test_plans_profiles_and_clusters_as_static_arguments():
    traced = []
    run = jax.jit(lambda x, document: traced.append(document) or x, static_argnums=1)
    for document in (planned(), profiled(), SLOW):
        for same in (document, replace(document)):
            run(0, same)
    run(0, replace(planned(), leaves={}))
    assert traced == [planned(), profiled(), SLOW, replace(planned(), leaves={})]


# --- what is chosen ---------------------------------------------------------------------------------------------


@given(
    gbps=st.floats(0.001, 400),
    latency=st.floats(0, 1e4),
    schemes=st.sets(st.sampled_from(zen.schemes.names())).map(lambda some: {"dense_ordered", *some}),
)
def test_nothing_is_faster_by_the_estimate(gbps, latency, schemes):
    """A leaf by itself travels in the fastest way; those in a bucket take no longer than they would by themselves."""
    cluster = zen.Cluster(N, inter_gbps=gbps, latency_us=latency)
    fastest = {}
    for name, leaf in zen.plan(profiled(), cluster, schemes=schemes).leaves.items():
        ways = [way for way in candidates(profiled().leaves[name], N) if way.scheme in schemes]
        fastest[name] = min(way.seconds(cluster, N) for way in ways)
        mine = [way.seconds(cluster, N) for way in ways if (way.scheme, way.capacity) == (leaf.scheme, leaf.capacity)]
        assert leaf.bucket is not None or min(mine) == fastest[name]
    for leaves, way in messages(profiled(), cluster, tuple(schemes)):
        assert way.seconds <= sum(fastest[name] for name in leaves) * (1 + 1e-9)


def test_sparse_by_itself_and_small_in_a_bucket():
    leaves = planned().leaves
    assert leaves["table"].scheme not in ("dense", "dense_ordered")
    assert leaves["table"].bucket is None
    assert (leaves["full"].scheme, leaves["full"].bucket) == ("dense_ordered", None)  # over 1 MiB
    assert (leaves["bias"].bucket, leaves["scale"].bucket) == (0, 0)
    assert "table" in str(planned())
    assert zen.plan(profiled(), SLOW, bucket_bytes=1).leaves["scale"].bucket is None


def small_sparse(n, count, rows=1500):
    """Gradients of n workers that touch five rows of each of some small tables."""
    return {f"table{i}": jnp.zeros((n, rows, 64)).at[:, :5].set(1.0) for i in range(count)}


@pytest.mark.parametrize("biases", [0, 1])
def test_a_small_sparse_leaf_joins_a_bucket_only_where_that_is_no_slower(biases):
    gradients = small_sparse(N, 1) | {f"bias{i}": jnp.ones((N, 64)) for i in range(biases)}
    leaf = zen.plan(zen.profile(gradients), zen.Cluster(N)).leaves["table0"]
    assert (leaf.scheme, leaf.bucket) == (("dense_ordered", 0) if biases else ("agsparse", None))


def test_a_bucket_pays_the_latency_inside_a_machine_once():
    """Apart the leaves would each pay it: that is more than the bucket's further bytes."""
    profile = zen.profile(small_sparse(2, 6, rows=3500), devices_per_host=8)
    cluster = zen.Cluster(2, 8, inter_gbps=25, intra_gbps=400, latency_us=50)
    [message] = messages(profile, cluster, zen.plan.__kwdefaults__["schemes"])
    assert set(message.leaves) == set(profile.leaves)
    assert zen.estimate(profile, cluster).bound.seconds < message.way.seconds


def test_capacities_exceed_the_fullest_message_by_headroom():
    row = profiled().leaves["table"].by_width[256]
    plan = zen.plan(profiled(), SLOW, schemes=("dense_ordered", "auto")).leaves["table"]
    for capacity, fullest in zip(plan.capacity, (row.push, row.pull), strict=True):
        assert fullest < capacity <= fullest * 1.03 + 1


@pytest.mark.parametrize(
    "options,fragment",
    [
        ({"schemes": ("zen",)}, "dense_ordered"),
        ({"schemes": ("zeno",)}, "'zeno'"),
        ({"bucket_bytes": 0}, "bucket_bytes"),
    ],
)
def test_bad_arguments(options, fragment):
    with pytest.raises(ValueError, match=fragment):
        zen.plan(profiled(), SLOW, **options)


def test_the_order_of_a_set_decides_nothing():
    """Processes hash strings differently, but ties are broken in one order."""
    schemes = ("dense_ordered", "auto", "zen", "agsparse")
    assert zen.plan(profiled(), SLOW, schemes=set(schemes)) == zen.plan(profiled(), SLOW, schemes=schemes[::-1])


def test_leaves_are_plain_values():
    leaf = zen.LeafPlan([12, 6], np.dtype("float32"), "zen", capacity=300)
    assert leaf == zen.LeafPlan((12, 6), "float32", "zen", capacity=(300,))
    with pytest.raises(ValueError, match="2 exchanges among 4 workers"):
        zen.Plan(N, {"w": replace(leaf, capacity=(1, 2, 3))})
    fused = replace(leaf, bucket=0)
    for change in (
        {"dtype": "float16"},
        {"scheme": "auto"},
        {"unit": 2},
        {"capacity": (300, 9)},
        {"pull_format": "coo"},
    ):
        with pytest.raises(ValueError, match="Give it another bucket"):
            zen.Plan(N, {"a": fused, "b": replace(fused, **change)})


# --- what it does -----------------------------------------------------------------------------------------------


def step(transform, gradients, mode="vmap"):
    return harness.spmd(lambda g: transform.update(g, None), mode, N)(gradients)


@pytest.mark.parametrize("mode", ["vmap", "shard_map", "shard_map_unchecked"])
def test_changes_no_bit(mode):
    updates, state = step(zen.synchronize(harness.AXIS, plan=planned()), GRADIENTS, mode)
    for name, mean in MEANS.items():
        for worker in range(N):
            assert_same_bits(updates[name][worker], mean, name)
    info = optax.tree.get(state, "info")
    assert set(info) == {"table", "full", "(fused)"}
    assert float(info["table"].rounds[0]) == 1
    assert float(info["full"].dense_taken[0]) == 1


@pytest.mark.parametrize("scheme", ["zen", "agsparse", "sparse_ps", "omnireduce"])
def test_any_scheme_may_be_planned(scheme):
    """For every scheme in worker order, formats, units and capacities reach it through the plan."""
    table = {"table": jnp.asarray(GRADIENTS["table"])}
    profile = zen.profile(table, unit="row")
    plan = zen.plan(profile, zen.Cluster(N, inter_gbps=1e-3), schemes=("dense_ordered", scheme))
    assert plan.leaves["table"].scheme == scheme
    updates, state = step(zen.synchronize(harness.AXIS, plan=plan), table)
    assert_same_bits(updates["table"][0], MEANS["table"])
    assert float(optax.tree.get(state, "info")["table"].rounds[0]) == 1


@pytest.mark.parametrize(("scheme", "formats"), [("zen", "coo, hash_bitmap"), ("sparcml", "")])
def test_a_printed_plan_says_formats_of_schemes_that_take_them(scheme, formats):
    """With four workers recursive doubling has two stages, and so as many capacities as zen."""
    leaf = zen.LeafPlan((1000, 64), "float32", scheme=scheme, unit=16, capacity=(30, 100))
    header, row = str(zen.Plan(N, {"table": leaf})).splitlines()[1:]
    assert row[header.index("formats") : header.index("capacity")].strip() == formats


def test_a_plan_serves_the_parts_of_its_tree():
    """As optax passes them to several `synchronize`, each with the others' leaves masked."""
    labels = {"table": "rare", "full": "often", "bias": "often", "scale": "rare"}
    parts = {label: zen.synchronize(harness.AXIS, plan=planned()) for label in ("rare", "often")}
    transform = optax.partition(parts, labels)
    state = transform.init(jax.tree.map(lambda g: jnp.zeros(g.shape[1:]), GRADIENTS))
    updates, _ = harness.spmd(lambda g: transform.update(g, state), "vmap", N)(GRADIENTS)
    for name, mean in MEANS.items():
        assert_same_bits(updates[name][0], mean, name)


def test_row_sparse_leaves_need_no_plan():
    """They travel as they are, planned or not, so no profile and no estimate counts them."""
    params = {"table": jnp.zeros((1024, 256)), "dense": jnp.zeros((1024, 256))}
    ids, rows = jnp.arange(2 * N, dtype=jnp.int32).reshape(N, 2), jnp.ones((N, 2, 256))

    def make_step(plan):
        transform = zen.synchronize(harness.AXIS, plan=plan)

        def worker(ids, rows, state):
            table = zen.RowSparseGradient.from_lookups(ids, rows, 1024)
            return transform.update({"table": table, "dense": table.to_dense()}, state)

        return transform.init(params), jax.jit(jax.vmap(worker, (0, 0, None), axis_name=harness.AXIS))

    profiler = zen.Profiler()
    state, profiled = make_step(profiler)
    expected, after = profiled(ids, rows, state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    plan = zen.plan(profiler.profile(), SLOW)
    assert set(plan.leaves) == set(zen.estimate(profiler.profile(), SLOW).leaves) == {"dense"}
    fresh, planned = make_step(plan)
    for initial in (fresh, state):
        updates, after = planned(ids, rows, initial)
        jax.tree.map(assert_same_bits, updates, expected)
        assert jax.tree.structure(after) == jax.tree.structure(initial)
    with pytest.raises(ValueError, match="lacks 'table'"):
        step(zen.synchronize(harness.AXIS, plan=plan), jax.tree.map(lambda p: jnp.stack([p] * N), params))


# --- files ------------------------------------------------------------------------------------------------------

names = st.text(min_size=0, max_size=5)


def leaf_plan(shape, dtype, scheme, unit, fused, **options):
    """A leaf plan whose unit divides the columns; if fused, in a bucket of its kind."""
    leaf = zen.LeafPlan(shape, dtype, scheme, math.gcd(unit, math.prod(shape[1:])), **options)
    kind = repr((leaf.dtype, leaf.options))
    return replace(leaf, bucket=zlib.crc32(kind.encode()) if fused else None)


leaf_plans = st.builds(
    leaf_plan,
    shape=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    scheme=st.sampled_from(zen.schemes.names()),
    unit=st.integers(1, 512),
    capacity=st.none() | st.tuples(st.integers(1, 10**6)),
    push_format=st.sampled_from(["coo", "bitmap", "auto"]),
    pull_format=st.sampled_from(["coo", "hash_bitmap", "dense"]),
    fused=st.booleans(),
)


@given(st.builds(zen.Plan, st.integers(1, 4096), st.dictionaries(names, leaf_plans, max_size=3), st.integers(0, 9)))
def test_round_trip(tmp_path_factory, plan):
    path = tmp_path_factory.getbasetemp() / "plan.json"
    plan.save(path)
    assert zen.Plan.load(path) == plan
    assert str(plan)


@pytest.mark.parametrize(
    "change",
    [
        {"scheme": "zeno"},
        {"capacity": [0, 3]},
        {"capacity": [2**31, 3]},
        {"capacity": "3"},
        {"capacity": ["a"]},
        {"capacity": False},
        {"capacity": ""},
        {"unit": "row"},
        {"unit": 48},
        {"shape": 4},
        {"shape": [-1]},
        {"pull_format": "zip"},
        {"scheme": "dense", "bucket": -1},
        {"colour": "red"},
    ],
)
def test_bad_leaves(tmp_path, change):
    planned().save(tmp_path / "plan.json")
    document = json.loads((tmp_path / "plan.json").read_text())
    document["leaves"]["table"] |= change
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match=r"plan\.json holds no usable plan"):
        zen.Plan.load(tmp_path / "plan.json")


@pytest.mark.parametrize(
    "change", [{"version": 0}, {"zen_jax": "profile"}, {"n": 0}, {"n": "4"}, {"seed": -1}, {"leaves": 3}]
)
def test_bad_files(tmp_path, change):
    planned().save(tmp_path / "plan.json")
    document = json.loads((tmp_path / "plan.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps(document | change))
    with pytest.raises(ValueError, match=r"plan\.json"):
        zen.Plan.load(tmp_path / "plan.json")


def test_a_loaded_plan_is_checked_against_the_gradients(tmp_path):
    """A file for other shapes or workers is refused before anything is traced."""
    params = jax.tree.map(lambda g: jnp.zeros(g.shape[1:]), GRADIENTS)
    planned().save(tmp_path / "plan.json")
    plan = zen.Plan.load(tmp_path / "plan.json")
    zen.synchronize("data", plan=plan).init(params)
    with pytest.raises(ValueError, match=r"lacks 'model/bias', .* but has 'bias', .*Make a plan for this tree"):
        zen.synchronize("data", plan=plan).init({"model": params})
    with pytest.raises(ValueError, match=r"lacks 'other'\. Make"):
        step(zen.synchronize(harness.AXIS, plan=plan), GRADIENTS | {"other": GRADIENTS["bias"]})
    with pytest.raises(ValueError, match="table as float32"):
        step(zen.synchronize(harness.AXIS, plan=plan), GRADIENTS | {"table": np.zeros((N, 1024, 32), np.float32)})
    with pytest.raises(ValueError, match="3 workers"):
        step(zen.synchronize(harness.AXIS, plan=replace(plan, n=3)), GRADIENTS)
