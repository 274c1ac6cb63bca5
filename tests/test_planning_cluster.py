"""Clusters: times follow from links, typed or measured, and bad figures are refused."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zen_jax as zen
from zen_jax.planning.cluster import COLLECTIVES, KernelCost, Link

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
