"""The cost model: bytes are those that schemes report, times follow from links, and what is unknown is extrapolated."""

import functools
import itertools
import json
from dataclasses import replace

import harness
import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparse
from hypothesis import given
from hypothesis import strategies as st

import zen_jax as zen
from zen_jax.formats import coo
from zen_jax.formats.tensor_block import BLOCK
from zen_jax.planning import costs
from zen_jax.planning.cluster import COLLECTIVES, KernelCost, Link
from zen_jax.planning.leaf_profile import fullest_hashed
from zen_jax.planning.simulate import extrapolate
from zen_jax.planning.sparsity import LeafProfile
from zen_jax.schemes import sparcml

AXIS = harness.AXIS
SHAPE = (100, BLOCK)  # rows are also OmniReduce's blocks


def zipf_gradients(n, rows=2000, columns=8, tokens=600, seed=0):
    """[n, rows, columns]: each worker touches rows drawn by Zipf's law."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, rows + 1)
    stack = np.zeros((n, rows, columns), np.float32)
    for gradient in stack:
        gradient[np.unique(rng.choice(rows, tokens, p=weights / weights.sum()))] = 1
    return stack


def test_bytes_are_those_of_info():
    """Run as planned on the profiled gradients, every scheme, and every format once, moves the bytes of the model."""
    n, seen = 3, set()
    stack = jnp.asarray(sparse(np.random.default_rng(n), n, SHAPE, 0.1, np.float16))
    leaf = zen.profile(stack, unit="row").leaves["(array)"]
    for candidate in costs.candidates(leaf, n):
        formats = candidate.push_format, candidate.pull_format
        assert candidate.nbytes >= costs.lower_bound(leaf, n)
        again = candidate.scheme in seen and formats not in {("bitmap", "coo"), ("coo", "dense")}
        if again or candidate.scheme == "auto":  # which is zen, and dense where that is smaller
            continue
        seen.add(candidate.scheme)
        planned = zen.LeafPlan(SHAPE, leaf.dtype, candidate.scheme, candidate.unit, candidate.capacity, *formats)
        how = {"return_info": True, **planned.options}
        info = harness.spmd(lambda x: zen.all_reduce(x, AXIS, **how)[1], "vmap", n)(stack)  # noqa: B023
        np.testing.assert_allclose(candidate.nbytes, info.bytes_pushed[0] + info.bytes_pulled[0], 1e-6)
        assert float(info.rounds[0]) == (0 if candidate.scheme.startswith("dense") else 1)
    assert seen == set(zen.schemes.names()) - {"auto"}


@pytest.mark.parametrize("rows", [880, 892, 904, 990])
def test_bytes_of_auto_are_those_of_info_where_it_turns_dense(rows):
    n = 16
    stack = jnp.zeros((n, 1000, 64)).at[:, :rows].set(1.0)
    [found] = [
        way
        for way in costs.candidates(zen.profile(stack, unit=16).leaves["(array)"], n)
        if (way.scheme, way.unit, way.push_format, way.pull_format) == ("auto", 16, "coo", "hash_bitmap")
    ]
    info = harness.spmd(lambda x: zen.all_reduce(x, AXIS, **found.options, return_info=True)[1], "vmap", n)(stack)
    assert found.nbytes == float(info.bytes_pushed[0] + info.bytes_pulled[0])


def test_bytes_are_those_of_info_where_a_scheme_turns_dense_on_the_way():
    """agsparse once workers have agreed on the sizes, sparcml in its second stage."""
    n, stack = 4, jnp.zeros((4, 1000, 64)).at[:, :600].set(1.0)
    leaf = zen.profile(stack, unit=64).leaves["(array)"]
    found = {way.scheme: way for way in costs.candidates(leaf, n) if way.scheme in ("agsparse", "sparcml")}
    assert len(found) == 2
    for way in found.values():
        run = lambda x: zen.all_reduce(x, AXIS, **way.options, return_info=True)[1]  # noqa: B023
        info = harness.spmd(run, "vmap", n)(stack)
        assert info.dense_taken[0] == 1 and info.rounds[0] == 1, "as planned"
        assert way.nbytes == float(info.bytes_pushed[0] + info.bytes_pulled[0])


def test_work_counts_what_kernels_read_and_write():
    """Of 1000 rows all four workers hold the same 200, and each 50 more: it serves a quarter of the tensor."""
    n, stack = 4, jnp.zeros((4, 1000, 64)).at[:, :200].set(1.0)
    for i in range(n):
        stack = stack.at[i, 200 + 50 * i : 250 + 50 * i].set(1.0)
    leaf = zen.profile(stack, unit=64).leaves["(array)"]
    row = 64 * 4
    whole, held, union, of_three = leaf.nbytes, 250 * row, 400 * row, 350 * row
    ways = {(way.scheme, way.push_format, way.pull_format): way for way in costs.candidates(leaf, n)}
    work = {key: [tuple(each) for each in way.work if each.kernel != "copy"] for key, way in ways.items()}
    partition, shard = ("partition", whole, held), whole / n
    assert {formats: work["zen", *formats] for formats in costs.FORMATS_TO_TRY} == {
        ("coo", "hash_bitmap"): [partition, ("aggregate_encode", shard, held), ("decode", whole, union)],
        ("coo", "coo"): [
            partition,
            ("aggregate", shard, held),
            ("partition", shard, union / n),
            ("aggregate", whole, union),
        ],
        ("coo", "dense"): [partition, ("aggregate", shard, held), ("decode", whole, whole)],
        ("coo", "others"): [partition, ("for_others", shard, of_three), ("decode", whole, of_three)],
        ("bitmap", "hash_bitmap"): [
            partition,
            ("decode", whole, held),
            ("sum", whole, 0),
            ("encode", shard, union / n),
            ("decode", whole, union),
        ],
        ("bitmap", "coo"): [
            partition,
            ("decode", whole, held),
            ("sum", whole, 0),
            ("partition", shard, union / n),
            ("aggregate", whole, union),
        ],
        ("bitmap", "dense"): [partition, ("decode", whole, held), ("sum", whole, 0), ("decode", whole, whole)],
    }
    assert work["dense_ordered", "coo", "hash_bitmap"] == [("sum", whole, 0)]
    counting = ("partition", whole, 0)  # of the sum, for Info
    assert work["agsparse", "coo", "hash_bitmap"] == [partition, ("aggregate", whole, n * held), counting]
    of_two = 300 * row
    assert work["sparcml", "coo", "hash_bitmap"] == [
        partition,
        ("aggregate", whole, 2 * held),
        ("partition", whole, of_two),
        ("aggregate", whole, 2 * of_two),
        counting,
    ]


def test_messages_are_copied_when_they_are_packed_and_unpacked():
    """What all get is packed once, and a whole shard is sent as it is."""
    n, stack = 16, jnp.zeros((16, 1600, 64)).at[:, :100].set(1.0)
    leaf = zen.profile(stack, unit=64).leaves["(array)"]
    copied = {}
    for way in costs.candidates(leaf, n):
        if way.scheme in ("zen", "agsparse") and way.push_format == "coo":
            copied[way.scheme, way.pull_format] = sum(each.dense for each in way.work if each.kernel == "copy")
            messages = [coo.message_bytes(room, 64, np.float32) for room in way.capacity]
            units = way.capacity[-1] * 64 * 4
            expected = {
                ("agsparse", "hash_bitmap"): (n + 1) * messages[0],
                ("zen", "dense"): 2 * n * messages[0],
                ("zen", "hash_bitmap"): 2 * n * messages[0] + (n + 1) * units,
                ("zen", "coo"): 2 * n * messages[0] + (n + 1) * (messages[-1] - 4),
                ("zen", "others"): 2 * n * (messages[0] + units) + 2 * 100 * 64 * 4,  # and its own are placed
            }
            assert copied[way.scheme, way.pull_format] == expected[way.scheme, way.pull_format]
    assert len(copied) == 5


def test_work_of_schemes_that_turn_dense_on_the_way():
    n, stack = 4, jnp.zeros((4, 1000, 64)).at[:, :600].set(1.0)
    leaf = zen.profile(stack, unit=64).leaves["(array)"]
    work = {way.scheme: [tuple(each) for each in way.work] for way in costs.candidates(leaf, n)}
    whole, listing, counting = leaf.nbytes, ("partition", leaf.nbytes, 600 * 64 * 4), ("partition", leaf.nbytes, 0)
    assert work["agsparse"] == [listing, ("sum", whole, 0), counting]
    assert work["sparcml"][-3:] == [listing, ("sum", 2 * whole, 0), counting]


def test_a_leaf_that_no_sparse_message_could_hold_needs_no_agreement():
    for scheme, n, size in (("auto", 3, 7), ("agsparse", 4, 5)):
        stack = jnp.ones((n, size))
        ways = costs.candidates(zen.profile(stack, unit="element").leaves["(array)"], n)
        run = lambda x: zen.all_reduce(x, AXIS, scheme=scheme, unit=1, return_info=True)[1]  # noqa: B023
        info = harness.spmd(run, "vmap", n)(stack)
        [nbytes] = {way.nbytes for way in ways if way.scheme == scheme}
        assert nbytes == pytest.approx(float(info.bytes_pushed[0] + info.bytes_pulled[0]))


def test_dense_sums_of_16_bit_floats_cost_what_ordered_ones_do():
    ordered, dense = itertools.islice(costs.candidates(LeafProfile((1000, 64), "bfloat16"), 4), 2)
    assert dense == replace(ordered, scheme="dense")


def test_psum_moves_the_bytes_of_an_ordered_sum_and_computes_nothing():
    ordered, dense = itertools.islice(costs.candidates(LeafProfile((1000, 64), "float32"), 4), 2)
    assert ordered.nbytes == 2 * 3 / 4 * 1000 * 64 * 4
    assert dense.exchanges == (costs.Exchange("psum", ordered.nbytes),)
    assert dense.work == ()


def test_a_single_worker_sends_nothing():
    found = zen.estimate(zen.profile(jnp.ones((1, 100, 64))), zen.Cluster(1))
    assert {each.seconds for each in found.leaves["(array)"].values()} == {0}


def test_equations_of_the_paper():
    """Without latency, and apart from headroom and bitmaps, element units cost what Equations 1 and 2 say."""
    n, elements, density = 8, 1 << 18, 0.02
    mask = np.random.default_rng(0).random((n, elements)) < density
    leaf = zen.profile(jnp.asarray(mask, jnp.float32), unit="element").leaves["(array)"]
    unit, b, m = leaf.by_width[1], 1e9 / 8, 4 * elements
    cluster = zen.Cluster(n, inter_gbps=1, latency_us=0)
    seconds = {(c.scheme, c.push_format, c.pull_format): c.seconds(cluster, n) for c in costs.candidates(leaf, n)}
    balanced = (n - 1) / n * (unit.densification(n) + 1) * 2 * m * unit.density / b
    hierarchical = sum(unit.densification(2**i) for i in range(3)) * 2 * m * unit.density / b
    np.testing.assert_allclose(seconds["zen", "coo", "coo"], balanced, 0.1)
    np.testing.assert_allclose(seconds["sparcml", "coo", "hash_bitmap"], hierarchical, 0.1)


def test_a_leaf_that_was_not_measured_travels_dense():
    leaf = LeafProfile((100, 4), "float32")
    assert {candidate.scheme for candidate in costs.candidates(leaf, 4)} == {"dense", "dense_ordered"}
    assert costs.lower_bound(leaf, 4) == 1600


# --- links ------------------------------------------------------------------------------------------------------

clusters = st.builds(
    zen.Cluster,
    hosts=st.integers(1, 64),
    devices_per_host=st.integers(1, 8),
    inter_gbps=st.floats(0.01, 400),
    intra_gbps=st.none() | st.floats(0.01, 4000),
    latency_us=st.floats(0, 1e4),
)


@given(clusters, st.sampled_from(COLLECTIVES), st.floats(0, 1e10), st.floats(0, 1e10))
def test_more_bytes_never_take_less_time(cluster, collective, fewer, more):
    fewer, more = sorted((fewer, more))
    n = cluster.workers
    assert 0 <= cluster.seconds(collective, fewer, n) <= cluster.seconds(collective, more, n)


def test_links():
    """Devices that share a machine's link compete for it in an all-to-all; measured links replace typed ones."""
    flat, shared = zen.Cluster(8, inter_gbps=8, latency_us=0), zen.Cluster(2, 4, inter_gbps=8, latency_us=0)
    assert flat.seconds("all_to_all", 7e6, 8) == pytest.approx(7e-3)
    assert shared.seconds("all_to_all", 7e6, 8) == pytest.approx(4e6 * 4 / 1e9)
    assert shared.seconds("all_gather", 7e6, 8) == pytest.approx(7e-3)
    assert shared.seconds_inside(1e6) == pytest.approx(1.5e-3)
    assert flat.seconds_inside(1e6) == 0
    links = dict.fromkeys(COLLECTIVES, Link(latency_us=100, gbps=16))
    measured = zen.Cluster(8, collectives=links, kernels={"sum": KernelCost(1e-9, 2e-9)})
    assert measured.seconds("psum", 2e6, 8) == pytest.approx(3 * 100e-6 + 1e-3)
    assert measured.seconds_computing("sum", 1e6, 1e6, 4) == pytest.approx(3e-3)
    assert measured.seconds_computing("copy", 1e6, 1e6, 4) == 0
    assert measured.fastest_gbps(8) == 16
    # A machine's devices share what it sends and computes.
    machines = replace(measured, hosts=2, devices_per_host=4)
    assert machines.seconds("psum", 8e6, 2) == pytest.approx(100e-6 + 1e-3)
    assert machines.seconds_computing("sum", 4e6, 4e6, 2) == pytest.approx(3e-3)
    assert machines.fastest_gbps(2) == 64
    alone = zen.Cluster(1, 8, inter_gbps=1, intra_gbps=100, latency_us=50, intra_latency_us=2)
    assert alone.seconds("psum", 1e6, 8) == pytest.approx(3 * 2e-6 + 8e-5) and alone.fastest_gbps(8) == 100
    pairs = replace(alone, hosts=2, devices_per_host=4)
    assert pairs.seconds("permute", 0, 8, distance=1) == pytest.approx(2e-6)
    assert pairs.seconds("permute", 0, 8, distance=4) == pytest.approx(50e-6)


@pytest.mark.parametrize("hosts,devices", [(5, 1), (1, 6), (2, 8), (3, 8), (2, 6), (2, 3)])
def test_recursive_doubling_pays_the_links_that_it_crosses(hosts, devices):
    """Stages between devices of one machine stay inside it; in other stages all devices of a machine send at once."""
    n = hosts * devices
    cluster = zen.Cluster(hosts, devices, inter_gbps=1, intra_gbps=1000, latency_us=0)
    leaf = extrapolate(profiled(), n).leaves["table"]
    (candidate,) = (way for way in costs.candidates(leaf, n) if way.scheme == "sparcml")
    between = [exchange for exchange in candidate.exchanges if exchange.distance is not None]
    for exchange, stage in zip(between, sparcml.stages(n), strict=True):
        both_ways = {pair[::-1] for pair in stage.pairs} == set(stage.pairs)
        assert exchange.collective == ("permute" if both_ways else "send")
        crosses = any(source // devices != target // devices for source, target in stage.pairs)
        expected = devices * 8e-3 if crosses else 8e-6
        assert cluster.seconds(exchange.collective, 1e6, n, exchange.distance) == pytest.approx(expected)


def test_clusters_are_kept(tmp_path):
    links, kernels = {"psum": Link(latency_us=100, gbps=16)}, {"sum": KernelCost(1e-9, 2e-9)}
    for cluster in (zen.Cluster(3), zen.Cluster(2, 4, 1.5, 100.0, 3.0, links, kernels, 2.0)):
        cluster.save(tmp_path / "cluster.json")
        assert zen.Cluster.load(tmp_path / "cluster.json") == cluster
    good = json.loads((tmp_path / "cluster.json").read_text())
    for bad in ({"hosts": 0}, {"kernels": {"sum": {"dense": "x", "nonzero": 0}}}, {"collectives": {"psum": {}}}):
        (tmp_path / "cluster.json").write_text(json.dumps(good | bad))
        with pytest.raises(ValueError, match="no usable cluster"):
            zen.Cluster.load(tmp_path / "cluster.json")


@pytest.mark.parametrize(
    "options,fragment",
    [
        ({"hosts": 0}, "hosts=0"),
        ({"hosts": 2.5}, "hosts=2.5"),
        ({"devices_per_host": 0}, "devices_per_host=0"),
        ({"inter_gbps": 0}, "inter_gbps=0"),
        ({"inter_gbps": "fast"}, "inter_gbps='fast'"),
        ({"intra_gbps": -1}, "intra_gbps=-1"),
        ({"latency_us": -1}, "latency_us=-1"),
        ({"latency_us": float("nan")}, "latency_us=nan"),
        ({"intra_latency_us": -1}, "intra_latency_us=-1"),
        ({"collectives": {"broadcast": Link(1, 1)}}, "'broadcast'"),
        ({"collectives": {"psum": 3}}, "collectives['psum'] is a int"),
        ({"collectives": None}, "collectives is a NoneType"),
        ({"kernels": {"partitoin": KernelCost(0, 0)}}, "'partitoin'"),
    ],
)
def test_bad_clusters(options, fragment):
    with pytest.raises(ValueError) as error:
        zen.Cluster(**{"hosts": 4} | options)
    assert fragment in str(error.value)


# --- estimates --------------------------------------------------------------------------------------------------


def test_a_bound_holds_where_only_some_collectives_were_measured():
    for collective in ("psum", "all_gather"):
        cluster = zen.Cluster(8, inter_gbps=25, latency_us=0, collectives={collective: Link(latency_us=20, gbps=1)})
        estimate = zen.estimate(profiled(), cluster)
        assert all(estimate.bound.seconds <= estimate.total(scheme).seconds for scheme in zen.schemes.names())


GRADIENTS = {"table": jnp.asarray(zipf_gradients(8)), "bias": jnp.ones((8, 5))}


@functools.cache
def profiled():
    """Made by the first test that needs it: while tests are collected, every process would make one."""
    return zen.profile(GRADIENTS, unit="row")


def test_estimate():
    found = zen.estimate(profiled(), zen.Cluster(8, inter_gbps=0.1))
    assert set(found.leaves["table"]) == set(zen.schemes.names()) - {"omnireduce"}
    for schemes, bound in zip(found.leaves.values(), found.bounds.values(), strict=True):
        for each in schemes.values():
            assert each.nbytes >= bound.nbytes
            assert each.seconds >= bound.seconds
        assert bound.seconds == pytest.approx(bound.nbytes * 8 / 0.1e9)
    seconds, nbytes = found.total("zen")
    assert nbytes == sum(schemes["zen"].nbytes for schemes in found.leaves.values())
    assert seconds == sum(schemes["zen"].seconds for schemes in found.leaves.values())
    assert "lower bound" in str(found) and "compute time is left out" in str(found)
    measured = zen.Cluster(8, kernels={"partition": zen.KernelCost(1e-10, 1e-10)})
    assert "left out" not in str(zen.estimate(profiled(), measured))
    with pytest.raises(ValueError, match="scheme='zne' is unknown"):
        found.under("zne")
    with pytest.raises(ValueError, match="leaf='tabel' is unknown"):
        found.best("tabel", ("zen",))
    with pytest.raises(ValueError, match="cannot take 'table'"):
        found.best("table", ("omnireduce",))
    with pytest.raises(ValueError, match="schemes='zne' is unknown"):
        found.best("table", ("zen", "zne"))
    assert found.to_json()["leaves"]["table"]["zen"]["bytes"] == found.leaves["table"]["zen"].nbytes


def test_estimate_of_hosts_whose_devices_reduced_first():
    """A profile of hosts: dense inside each, and between them as if each were one worker."""
    inside = zen.Cluster(8, 4, inter_gbps=1, intra_gbps=100, intra_latency_us=0)
    hosts = replace(profiled(), devices_per_host=4)
    flat, hierarchical = zen.estimate(profiled(), zen.Cluster(8, inter_gbps=1)), zen.estimate(hosts, inside)
    sent_inside = 2 * 3 / 4 * GRADIENTS["table"][0].nbytes  # reduce-scatter and all-gather among four devices
    for scheme, each in hierarchical.leaves["table"].items():
        expected = flat.leaves["table"][scheme].seconds + sent_inside * 8 / 100e9
        assert each.seconds == pytest.approx(expected)
    assert inside.seconds_inside(0) == 0 < replace(inside, intra_latency_us=1).seconds_inside(0)
    with pytest.raises(ValueError, match="profile has 8 workers"):
        zen.estimate(profiled(), zen.Cluster(4))
    with pytest.raises(ValueError, match="scheme='zn'"):
        zen.estimate(profiled(), zen.Cluster(8)).total("zn")


# --- simulation -------------------------------------------------------------------------------------------------


def test_simulation_extrapolates():
    """A profile of 8 workers predicts what 16 workers really have, within a tenth."""
    few, many = (zen.profile(jnp.asarray(zipf_gradients(n)), unit="row") for n in (8, 16))
    guessed, measured = extrapolate(few, 16).leaves["(array)"].by_width[8], many.leaves["(array)"].by_width[8]
    for name in ("unions", "contiguous_push", "contiguous_pull"):
        np.testing.assert_allclose(getattr(guessed, name), getattr(measured, name), 0.1, err_msg=name)
    np.testing.assert_allclose(guessed.partial_sums, measured.partial_sums, 0.1)
    assert measured.push <= guessed.push
    assert measured.pull <= guessed.pull
    assert extrapolate(few, 8) is few


def test_simulated_hosts_send_the_shares_of_their_devices():
    few, many = (zen.profile(zipf_gradients(n), unit="row", devices_per_host=4) for n in (8, 16))
    guessed, measured = extrapolate(few, 16).leaves["(array)"].by_width[8], many.leaves["(array)"].by_width[8]
    assert measured.push <= guessed.push <= 2 * measured.push
    assert measured.pull <= guessed.pull


def test_simulate():
    simulation = zen.simulate(profiled(), zen.Cluster(8, inter_gbps=1), workers=(2, 8, 100, 4096))
    assert [point.n for point in simulation.points] == [2, 8, 100, 4096]
    assert simulation.points[1].estimate.to_json() == zen.estimate(profiled(), zen.Cluster(8, inter_gbps=1)).to_json()
    for point in simulation.points:
        best = point.estimate.best("table", zen.plan.__kwdefaults__["schemes"])
        assert point.choice["table"] == best.candidate.scheme
        assert point.estimate.bounds["table"].nbytes <= GRADIENTS["table"][0].nbytes
    assert "4096" in str(simulation)
    of_numpy = zen.simulate(profiled(), zen.Cluster(8, inter_gbps=1), workers=np.array([2, 8]))
    assert json.loads(json.dumps(of_numpy.to_json()))["points"] == simulation.to_json()["points"][:2]
    assert zen.simulate(profiled(), zen.Cluster(8, inter_gbps=1), workers=2).points == simulation.points[:1]


def test_simulate_without_numbers_of_workers_takes_what_fills_hosts():
    profile = zen.profile({"w": np.ones((6, 300, 8), np.float32)})
    assert [point.n for point in zen.simulate(profile, zen.Cluster(1, 6)).points][:3] == [6, 12, 24]


def test_bad_simulations():
    for options, message in [({"workers": (1,)}, "workers=1"), ({"workers": (10**6,)}, "1000000")]:
        with pytest.raises(ValueError, match=message):
            zen.simulate(profiled(), zen.Cluster(8), **options)
    with pytest.raises(ValueError, match="does not fill hosts"):
        zen.simulate(profiled(), zen.Cluster(2, 4), workers=(6,))
    with pytest.raises(ValueError, match=r"of 1 worker.*Profile at least two"):
        zen.simulate(zen.profile(GRADIENTS["table"][:1], unit="row"), zen.Cluster(1))


@given(st.integers(0, 10**7), st.integers(2, 512), st.integers(0, 2**32 - 1))
def test_theorem_2_bounds_random_bins(balls, n, seed):
    bins = np.random.default_rng(seed).multinomial(balls, np.full(n, 1 / n))
    assert bins.max() <= fullest_hashed(balls, n)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_a_measured_cluster_may_leave_out_what_a_worker_has(n):
    """Fewer bytes the fewer workers there are, at the price of work: planned if that is known."""
    steps = [zipf_gradients(n, 20_000, 16, 4000, seed) for seed in range(4)]
    profile = zen.profile(*map(jnp.asarray, steps[:2]), unit="row")
    unit = profile.leaves["(array)"].by_width[16]
    known = {"kernels": {"for_others": zen.KernelCost(0.0, 0.0)}}
    by_bytes, measured = (zen.Cluster(n, inter_gbps=1e-3, **kernels) for kernels in ({}, known))
    plans = [zen.plan(profile, cluster, schemes=("dense_ordered", "zen")) for cluster in (by_bytes, measured)]
    formats = [plan.leaves["(array)"].pull_format for plan in plans]
    assert formats == ["hash_bitmap", "others"]
    for step in steps[2:]:
        moved = []
        for plan in plans:
            reduce = lambda x, plan=plan: zen.all_reduce(x, AXIS, return_info=True, **plan.leaves["(array)"].options)
            info = harness.spmd(lambda x, reduce=reduce: reduce(x)[1], "vmap", n)(step)
            moved.append(float(info.bytes_pulled[0]))
            assert float(info.rounds[0]) == 1
        np.testing.assert_allclose(moved[1] / moved[0], unit.unions[-2] / unit.unions[-1], 0.15)
    slow = zen.Cluster(n, inter_gbps=1e-3, kernels={"for_others": zen.KernelCost(1e-3, 1e-3)})
    assert zen.plan(profile, slow, schemes=("dense_ordered", "zen")).leaves["(array)"].pull_format == "hash_bitmap"
