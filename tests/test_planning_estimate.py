"""Estimates of every scheme from a profile, and simulations, which extrapolate it to other numbers of workers."""

import functools
import json
from dataclasses import replace

import harness
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zen_jax as zen
from zen_jax.planning import costs
from zen_jax.planning.cluster import Link
from zen_jax.planning.leaf_profile import fullest_hashed
from zen_jax.planning.simulate import extrapolate
from zen_jax.schemes import sparcml

AXIS = harness.AXIS


def zipf_gradients(n, rows=2000, columns=8, tokens=600, seed=0):
    """[n, rows, columns]: each worker touches rows drawn by Zipf's law."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, rows + 1)
    stack = np.zeros((n, rows, columns), np.float32)
    for gradient in stack:
        gradient[np.unique(rng.choice(rows, tokens, p=weights / weights.sum()))] = 1
    return stack


GRADIENTS = {"table": jnp.asarray(zipf_gradients(8)), "bias": jnp.ones((8, 5))}


@functools.cache
def profiled():
    """Made by the first test that needs it: while tests are collected, every process would make one."""
    return zen.profile(GRADIENTS, unit="row")


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


def test_a_bound_holds_where_only_some_collectives_were_measured():
    for collective in ("psum", "all_gather"):
        cluster = zen.Cluster(8, inter_gbps=25, latency_us=0, collectives={collective: Link(latency_us=20, gbps=1)})
        estimate = zen.estimate(profiled(), cluster)
        assert all(estimate.bound.seconds <= estimate.total(scheme).seconds for scheme in zen.schemes.names())


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
