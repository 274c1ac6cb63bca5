"""Calibration: links and kernels are fitted to times, which processes agree on."""

from functools import partial
from types import SimpleNamespace

import harness
import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh

import zen_jax as zen
from zen_jax._sums import sum_in_order
from zen_jax.planning import calibrate, costs
from zen_jax.planning.cluster import COLLECTIVES, KERNELS, KernelCost


def test_fit_finds_rates():
    """For kernels charged for dense and non-zero bytes, or only for dense ones; no rate is negative."""
    moved = np.array([[1e7, 1e5], [1e7, 2e6], [1e7, 9e6]])
    np.testing.assert_allclose(calibrate._fit(moved, moved @ (1e-10, 5e-10)), (1e-10, 5e-10))
    np.testing.assert_allclose(calibrate._fit(moved * (1, 0), np.full(3, 2e-3)), (2e-10, 0.0))
    np.testing.assert_allclose(calibrate._fit(moved, moved @ (1e-10, -1e-12)), (1e-10, 0.0), 0.01)


@pytest.mark.parametrize(
    ("gbps", "latency_us", "pushed", "sparse", "dense"),
    [
        (0.005, 1000, 1 << 20, 1 << 20, 1 << 20),
        (0.025, 100, 2.35e6, 1 << 22, 4.7e6),
        (0.2, 100, 1 << 22, 1 << 22, 1 << 24),
        (1, 100, 6.25e6, 12.5e6, 1 << 24),
        (100, 10, 1 << 26, 1 << 26, 1 << 26),
    ],
)
def test_latency_is_without_the_time_to_send(monkeypatch, gbps, latency_us, pushed, sparse, dense):
    """Among many workers, with times taken from a model; links send what plans do, unless too fast or slow for it."""
    n, start, made = 64, 1e-4, iter(COLLECTIVES)
    sent_for_each_byte_held = [(n - 1) / n, n - 1, 2 * (n - 1) / n, 1, 1]
    ratios = dict(zip(COLLECTIVES, sent_for_each_byte_held, strict=True))
    sent = {name: [] for name in COLLECTIVES}

    def seconds(name, held, times):
        each = held.nbytes * ratios[name]
        sent[name].append(each * times)
        one = (1 if name in ("permute", "send") else 6) * latency_us * 1e-6 + each * 8e-9 / gbps
        return start + times * one * (2 if name == "all_to_all" else 1)  # a gather follows it

    monkeypatch.setattr(calibrate, "_on_every_device", lambda x, mesh: x)
    monkeypatch.setattr(calibrate, "_on_workers", lambda *_: partial(seconds, next(made)))
    monkeypatch.setattr(calibrate, "_seconds", lambda runs, *_, **__: [run() for run in runs])
    links = calibrate._measure_links(AbstractMesh((n,), ("data",)), "data", np.asarray)
    for name, most in zip(COLLECTIVES, (pushed, pushed, dense, sparse, sparse), strict=True):
        assert max(sent[name]) == pytest.approx(most, 0.1)
        assert links[name].latency_us == pytest.approx(latency_us, 0.15)
        assert links[name].gbps == pytest.approx(gbps, 0.05)


def test_late_workers_are_late_after_all_have_agreed():
    """What delays them must need what they agreed on, or it runs before, while they wait for each other anyway."""
    call = calibrate._collective("psum", harness.mesh(2, "data"), "data")(calibrate.SMALL)
    (jitted,) = jax.make_jaxpr(call)().eqns
    (mapped,) = jitted.params["jaxpr"].eqns
    needs_agreement, delays = set(), []
    for eqn in mapped.params["jaxpr"].eqns:
        if eqn.primitive.name == "all_gather" or needs_agreement.intersection(map(id, eqn.invars)):
            needs_agreement.update(map(id, eqn.outvars))
            delays += [eqn] if "dot_general" in str(eqn) else []
    assert len(delays) == 1


@pytest.mark.parametrize(("name", "gathers"), [("all_to_all", 1), ("all_gather", 1), ("psum", 0), ("permute", 0)])
def test_a_gather_follows_each_all_to_all(name, gathers):
    """What an all-to-all costs is what it and the gather take longer than a gather alone."""
    call = calibrate._collective(name, harness.mesh(2, "data"), "data")(calibrate.SMALL)
    agreement = 1
    assert str(jax.make_jaxpr(call)()).count("all_gather[") == agreement + gathers


@pytest.mark.parametrize(("name", "pairs"), [("permute", ((0, 2), (1, 3), (2, 0), (3, 1))), ("send", ((0, 2), (1, 3)))])
def test_partners_are_on_different_machines(name, pairs):
    """With two devices each, workers 0 and 1 share one: what they send each other would not cross a link."""
    call = calibrate._collective(name, harness.mesh(4, "data"), "data")(calibrate.SMALL)
    assert f"perm={pairs}" in str(jax.make_jaxpr(call)())


@pytest.mark.parametrize(("names", "hosts"), [(["one"], 1), (["one", "two"], 2), (["one", "two", "one"], 2)])
def test_hosts_are_told_apart_by_name(monkeypatch, names, hosts):
    """Several processes may share a host, as they do where each has one GPU."""
    told = np.zeros((len(names), 8))
    monkeypatch.setattr(calibrate, "_make_max_over_processes", lambda _: lambda mine: np.maximum(told, mine, out=told))
    mesh = SimpleNamespace(devices=np.array([SimpleNamespace(process_index=i) for i in range(len(names))]))
    for i, name in enumerate(names):
        monkeypatch.setattr(jax, "process_index", lambda i=i: i)
        monkeypatch.setattr(calibrate.socket, "gethostname", lambda name=name: name)
        found = calibrate.count_hosts(mesh)
    assert found == hosts  # once all have told their names


@pytest.mark.parametrize(("at_least", "calls"), [(0.0, (1, 1)), (1.0, (4, 1))])
def test_short_calls_fill_the_time_that_a_round_takes_at_least(monkeypatch, at_least, calls):
    """Processes that share cores start a little apart: calls that end within that would be timed as if alone."""
    clock, ran = [0.0], [0, 0]
    monkeypatch.setattr(calibrate, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def run(i, seconds):
        ran[i] += 1
        clock[0] += seconds

    runs = [lambda: run(0, 0.25), lambda: run(1, 2.0)]
    assert calibrate._seconds(runs, np.asarray, warm_up=1, at_least=at_least) == [0.25, 2.0]
    assert tuple(ran) == tuple(one * (1 + calibrate.REPEATS) for one in calls)


def test_processes_agree_on_the_fitted_costs(monkeypatch):
    """Linear algebra rounds differently on other CPUs: what is fitted to equal times must be agreed on, too."""
    monkeypatch.setattr(calibrate, "ROWS", 1 << 10)
    agreed = lambda measured: np.full_like(np.asarray(measured, np.float64), 0.5)
    found = calibrate._measure_kernels(harness.mesh(1), harness.AXIS, agreed)
    assert set(found.values()) == {KernelCost(0.5, 0.5)}


def test_sums_are_timed_as_schemes_run_them(monkeypatch):
    """XLA of jax 0.10.2 takes 40 times as long for others on CPUs."""
    ran = []
    sums = lambda parts, divisor: ran.append(parts.shape[0]) or sum_in_order(parts, divisor)
    monkeypatch.setattr(calibrate, "ROWS", 1 << 10)
    monkeypatch.setattr(calibrate, "sum_in_order", sums)
    calibrate._measure_kernels(harness.mesh(4), harness.AXIS, np.asarray)
    assert ran == [4]


def test_kernels_are_charged_for_what_they_are_given():
    """As `costs.Work` charges them, with every worker's units the same."""
    n, size, row = 4, 100, 4 * calibrate.COLUMNS
    charged = calibrate._kernel_operands(n, size, 50, 0.3)
    x = charged["partition"][0][0]
    whole, held = x.nbytes, np.count_nonzero(np.asarray(x)[:, 0]) * row
    positions, _, counts = map(np.asarray, charged["for_others"][0])
    senders = np.bincount(np.concatenate([own[:count] for own, count in zip(positions, counts, strict=True)]))
    lacking = sum(n if many > 1 else n - 1 for many in senders if many) * row
    assert {name: nbytes for name, (_, *nbytes) in charged.items()} == {
        "partition": [whole, held],
        "aggregate": [whole, held],
        "encode": [whole, held],
        "aggregate_encode": [whole / n, held],
        "for_others": [whole / n, lacking],
        "decode": [whole, held],
        "sum": [whole, 0],
        "copy": [whole, 0],
    }


def test_calibrate(monkeypatch):
    """It measures, so only the form is known: a link for each collective, a rate for each kernel."""
    small = {
        "MEDIUM": 1 << 12,
        "PLANNED": (1 << 13, 3),
        "PLANNED_DENSE": (1 << 13, 1),
        "LARGE": 1 << 14,
        "LATE": 8,
        "REPEATS": 1,
        "ROWS": 1 << 10,
    }
    for name, size in small.items():
        monkeypatch.setattr(calibrate, name, size)
    cluster = zen.calibrate(harness.mesh(4, "data"))
    assert cluster.workers == 4
    assert set(cluster.collectives) == set(COLLECTIVES)
    leaf = zen.profile(np.repeat(np.eye(100, 8, dtype=np.float32)[None], 8, axis=0)).leaves["(array)"]
    charged = {work.kernel for way in costs.candidates(leaf, 8) for work in way.work}
    assert charged == set(cluster.kernels) == set(KERNELS)
    assert zen.calibrate(harness.mesh(1, "data")).collectives == {}
    levels = zen.calibrate(jax.make_mesh((2, 4), ("machines", "devices")), "machines", "devices")
    assert (levels.hosts, levels.devices_per_host, set(levels.collectives)) == (2, 4, set(COLLECTIVES))
    assert levels.intra_gbps > 0 and levels.intra_latency_us >= 0
    assert zen.calibrate(jax.make_mesh((2, 2), ("replica", "data")), ("replica", "data")).workers == 4
    with pytest.raises(ValueError, match="axis_name"):
        zen.calibrate(harness.mesh(2), axis_name="nobody")
    with pytest.raises(ValueError, match="without devices to measure"):
        zen.calibrate(AbstractMesh((2,), ("data",)))
    with pytest.raises(ValueError, match="called inside jit"):
        jax.eval_shape(lambda: zen.calibrate(harness.mesh(2, "data")))
