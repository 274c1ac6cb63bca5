"""The network benchmark: emulated hosts, what crosses the wire, and the report."""

import argparse
import contextlib
import fcntl
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import harness
import numpy as np
import pytest

from benchmarks import emulated_hosts, emulated_switch, group, network, network_report, network_tables, network_worker
from benchmarks.group import UNLIMITED
from benchmarks.problem import Problem
from benchmarks.processes import ProcessesError, run_group

PROBE = """
ip netns add zenprobe
trap 'ip netns delete zenprobe' EXIT
ip -n zenprobe tuntap add dev inside mode tun
tc -n zenprobe qdisc add dev inside root tbf rate 1mbit burst 72kb limit 64mb
chrt --rr 1 true
"""


@pytest.fixture
def may_emulate_hosts(tmp_path_factory):
    """One test at a time makes hosts, across all pytest workers; if the system refuses, the skip says why."""
    with (tmp_path_factory.getbasetemp().parent / "hosts.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Not by way of the code under test, whose faults are no reason to skip.
        probe = subprocess.run(["sh", "-ec", PROBE], capture_output=True, text=True)
        if reason := emulated_hosts.why_not() or (probe.returncode and f"the system refuses hosts: {probe.stderr}"):
            pytest.skip(reason)
        yield


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("--coordinator host0:7700", "--coordinator and --process-id go together"),
        ("--coordinator host0:7700 --process-id 4", "--process-id 4 must be below --hosts 4"),
        ("--coordinator host0:7700 --process-id -1", "--process-id: '-1' must be an integer of at least 0"),
        ("--coordinator host0 --process-id 0", "--coordinator 'host0' must be HOST:PORT"),
    ],
)
def test_a_place_that_cannot_be_is_refused(place, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["network", *place.split()])
    with pytest.raises(SystemExit, match="2"):
        network.parse()
    assert message in capsys.readouterr().err


def test_an_interface_that_is_not_there_is_refused_before_gradients_are_made(monkeypatch):
    options = "--workloads gutenberg_lm --coordinator host0:7700 --process-id 0 --interface nowhere0"
    monkeypatch.setattr(sys, "argv", ["network", *options.split()])
    with pytest.raises(ValueError, match="no counters of --interface 'nowhere0'"):
        network.main()


def test_ctrl_c_reaches_the_benchmark_alone():
    """It ends its processes, which would otherwise each print a traceback."""
    (found,) = run_group([[sys.executable, "-c", "import json, os; print(json.dumps({'group': os.getpgrp()}))"]])
    assert found["group"] != os.getpgrp()


class Alone(group.Group):
    """A group of one process."""

    rank, size = 0, 1

    def gather(self, numbers):
        return np.asarray(numbers)[None]


class WrongLater(group.Case):
    """A case whose first step alone is summed correctly."""

    name = "a case"

    def __init__(self, problem):
        self.problem = problem

    def prepare(self, step):
        return lambda: self.problem.dense(step, 0) + step

    def dense(self, result):
        return result


def test_the_result_of_every_timed_call_is_checked():
    problem = Problem(np.ones((2, 1, 3), bool), columns=2, notes={})
    options = argparse.Namespace(rates=[group.AS_IS], repeats=2, interface="lo")
    with pytest.raises(ValueError, match="a case is wrong in 6 of 6 elements"):
        group.measure(Alone(), problem, [WrongLater(problem)], options)


class Counted(group.Case):
    """A case that counts its calls."""

    name, calls = "a case", 0

    def prepare(self, step):
        self.calls += 1
        return lambda: step

    def dense(self, result):
        return np.full((3, 2), result)


def test_warm_up_calls_do_not_count(capsys):
    case, options = Counted(), argparse.Namespace(rates=[group.AS_IS], repeats=2, interface="lo")
    group.measure(Alone(), mock.Mock(touched=np.ones((2, 1, 3), bool)), [case], options)
    assert len(json.loads(capsys.readouterr().out)["seconds"]["all"]) == 2
    assert case.calls == 1 + group.WARM_UP + 2


def test_a_case_takes_the_fastest_of_its_candidates():
    plans = [{"scheme": "zen", "capacity": [2, 3], "pull_format": pull} for pull in ("others", "hash_bitmap")]
    plans.append({"scheme": "zen", "capacity": None, "pull_format": "bitmap"})
    problem = Problem(np.ones((1, 1, 4), bool), columns=2, notes={"cases": {"zen": plans[:2], "variant": plans[2:]}})
    zen, variant = (network_worker.Scheme(name, problem, 0, harness.mesh(1, "data")) for name in ("zen", "variant"))
    estimates = {network_worker._key(plan | {"capacity": (2, 3)}): 3.0 - i for i, plan in enumerate(plans[:2])}
    assert zen.taken == plans[0]
    assert zen.take_fastest(estimates) == {"options": plans[1], "estimate": 2.0} and zen.taken == plans[1]
    assert variant.take_fastest(estimates) == {"options": plans[2]}
    problem.check("zen", 0, zen.dense(zen.prepare(0)()))


@pytest.mark.parametrize(
    ("reduce", "reports"), [(network_tables._psum, False), (network_tables._synchronize(), True)], ids=["psum", "zen"]
)
def test_only_zen_reports_on_its_tables(reduce, reports):
    """Zeros in the place of what psum does not say would pass for measurements."""
    problem = Problem(np.array([[[True, False, True]]]), columns=2, notes={"tables": [2, 1]})
    mesh = harness.mesh(1, "data")
    case = network_tables.Tables("a case", reduce, problem, 0, mesh)
    result = case.prepare(0)()
    problem.check("a case", 0, case.dense(result))
    assert ("bytes_pushed" in case.info(result)) == bool(case.info(result)) == reports


def test_a_peer_that_fails_is_left_out(monkeypatch, capsys):
    """With what was measured before it; so is one that does not take this number of processes."""

    def run(commands):
        if "benchmarks.network_worker" in commands[0]:
            return [{"case": "zen"}]
        raise ProcessesError("process 0 of 3 failed")

    hosts = [emulated_hosts.nth_host(i) for i in range(3)]
    monkeypatch.setattr(network, "emulated_hosts", lambda n: contextlib.nullcontext(hosts))
    monkeypatch.setattr(network, "set_rate", lambda *_: None)
    monkeypatch.setattr(network, "run_group", run)
    options = argparse.Namespace(repeats=1, rate=["1gbit"], peer_python=sys.executable)
    peers = ["torch_gloo", "mpi_recursive_doubling"]
    assert network.measure_emulated(options, peers, Path("problem.npz"), 3) == [{"case": "zen"}]
    said = capsys.readouterr().err
    assert "torch_gloo is left out: process 0 of 3 failed" in said
    assert "mpi_recursive_doubling is left out: it takes 2, 4, 8, ... processes, not 3" in said


def test_report_relates_times_to_bytes(tmp_path):
    def record(case, rate, seconds, received):
        spread = {"median": seconds, "min": seconds, "max": seconds, "all": [seconds]}
        counted = {"received": received, "busiest": received, "info": {}, "n": 4, "first_call": 0.0}
        return {"case": case, "rate": rate, "seconds": spread} | counted

    records = [record("dense", UNLIMITED, 0.1, 8e6), record("zen", UNLIMITED, 0.05, 1e6)]
    records += [record("dense", "64mbit", 1.0, 8e6), record("zen", "64mbit", 0.2, 1e6)]
    dense, zen = network_report.rows(records, "a workload", bound=0.5e6)
    assert (dense["speed_up"], dense["of_bytes"]) == (1.0, 1.0)
    assert zen["speed_up"] == pytest.approx(5.0) and zen["of_bytes"] == pytest.approx(5 / 8)
    assert zen["compute_share"] == pytest.approx(0.25)
    assert zen["wire_over_bound"] == 2.0 and zen["bound_ms"] == pytest.approx(62.5)
    assert "zen" in network_report.table([dense, zen])
    pytest.importorskip("matplotlib")
    network_report.plot([dense, zen], tmp_path / "network.png")
    assert (tmp_path / "network.png").read_bytes().startswith(b"\x89PNG")


def test_report_says_how_much_slower_than_the_fastest_the_planned_scheme_is():
    where = {"workload": "a workload", "n": 4, "rate": "64mbit"}
    times = {"dense": (9.0, 9.9), "zen": (3.0, 2.0), "agsparse": (2.0, 2.5), "sparcml": (1.0, 1.0)}
    rows = [where | {"case": case, "median_ms": ms, "estimate_ms": guess} for case, (ms, guess) in times.items()]
    rows += [where | {"case": "a peer", "median_ms": 1.0}]  # which no plan can choose; sparcml none does by default
    assert network_report.choices(rows).splitlines()[1].split() == "a workload 4 64mbit zen agsparse 1.500".split()
    first, _, *of_schemes = network_report.accuracy(rows).splitlines()
    assert first == "planned within 5% of the fastest: 0 of 1"
    assert [line.split() for line in of_schemes][:2] == [
        ["dense", "1", "of", "1", "+10%", "+10%"],
        ["zen", "0", "of", "1", "-33%", "-33%"],
    ]


def test_emulated_hosts_refuse_what_they_cannot_do(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="count=0 must be from 1"):
        emulated_hosts.emulated_hosts(0).__enter__()
    monkeypatch.setattr(emulated_hosts.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(emulated_hosts.shutil, "which", lambda tool: tool)
    with pytest.raises(emulated_hosts.HostsError, match="root"):
        emulated_hosts.emulated_hosts(2).__enter__()
    monkeypatch.setattr(emulated_hosts.shutil, "which", lambda tool: None if tool == "tc" else tool)
    with pytest.raises(emulated_hosts.HostsError, match="need tc"):
        emulated_hosts.emulated_hosts(2).__enter__()
    for rate in ("fast", "0mbit", "1mbit+2s", "1mbit2ms"):
        with pytest.raises(ValueError, match=f"rate {re.escape(repr(rate))} must be"):
            emulated_hosts.rate_in_bits(rate)
    monkeypatch.setattr(emulated_hosts, "LINKS", tmp_path / "links")
    with pytest.raises(emulated_hosts.HostsError, match="the switch between emulated hosts has ended"):
        emulated_hosts.set_rate([], "1mbit")


def test_links_carry_one_packet_after_another_and_save_nothing_while_idle(monkeypatch):
    now, delivered = 100.0, []
    monkeypatch.setattr(emulated_switch, "time", SimpleNamespace(monotonic=lambda: now))
    write = lambda interface, packet: delivered.append((now, interface, packet[-1]))
    monkeypatch.setattr(emulated_switch, "os", SimpleNamespace(write=write))
    switch = emulated_switch.Switch([10, 11, 12])
    switch.rate, switch.latency = 1000.0, 0.25

    def packet(target, mark):
        ip = bytes([0x45]) + bytes(18) + bytes([target + 1])
        return emulated_switch.HEADER.pack(0, 0, 0, 0, 0, 0) + ip + bytes(965) + bytes([mark])

    for source, mark in ((0, 1), (0, 2), (1, 3)):  # the first two share their sender's link, all three the receiver's
        switch.take(source, packet(2, mark))
    switch.take(0, packet(7, 4))  # to nobody
    while (wait := switch.advance()) is not None:
        now += wait
    assert delivered == [(102.25, 12, 1), (103.25, 12, 3), (104.25, 12, 2)]


def test_peers_are_named_with_their_versions_or_left_out(monkeypatch, capsys):
    present, missing = network.Peer("a.module", "numpy"), network.Peer("a.module", "no_such_package")
    monkeypatch.setattr(network, "PEERS", {"present": present, "missing": missing})
    assert network.installed_peers(sys.executable, ["present", "missing"]) == {"present": f"numpy {np.__version__}"}
    assert f"peer missing is left out: {sys.executable} has no no_such_package" in capsys.readouterr().err


SEND = """
import socket, sys, time
if sys.argv[1] == "serve":
    server = socket.create_server(("", 7000))
    print("ready", flush=True)
    link, _ = server.accept()
    start, count = time.monotonic(), 0
    while piece := link.recv(1 << 16):
        count += len(piece)
    print(count, time.monotonic() - start, socket.gethostname())
else:
    socket.create_connection((sys.argv[2], 7000)).sendall(bytes(1_000_000))
"""


def test_emulated_hosts_talk_at_the_rate_and_vanish(may_emulate_hosts):
    before = socket.gethostname()
    with pytest.raises(KeyboardInterrupt), emulated_hosts.emulated_hosts(2) as hosts:
        with pytest.raises(emulated_hosts.HostsError, match="another run"):
            emulated_hosts.emulated_hosts(2).__enter__()
        control = hosts[1].command(["cat", "/proc/sys/net/ipv4/tcp_congestion_control"])
        assert subprocess.check_output(control, text=True) == "reno\n"
        emulated_hosts.set_rate(hosts, "20mbit")
        serve = hosts[0].command([sys.executable, "-c", SEND, "serve"])
        with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout.readline() == "ready\n"
            subprocess.run(hosts[1].command([sys.executable, "-c", SEND, "send", hosts[0].name]), check=True)
            count, seconds, name = server.stdout.read().split()
        assert int(count) == 1_000_000 and name == hosts[0].name
        assert float(seconds) > 0.8 * (1_000_000 * 8 / 20e6)
        raise KeyboardInterrupt
    assert socket.gethostname() == before
    assert emulated_hosts.PREFIX not in subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout


@pytest.mark.multiprocess
def test_network_benchmark_counts_what_crosses_the_wire(tmp_path, may_emulate_hosts):
    result = tmp_path / "network.json"
    options = "--workloads synthetic:0.01 --hosts 2 --rate 2gbit --schemes dense --repeats 1 --peers".split()
    command = [sys.executable, "-m", "benchmarks.network", *options, "--json", str(result)]
    done = subprocess.run(command, env=os.environ | {"XLA_FLAGS": ""}, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    written = json.loads(result.read_text())
    assert written["repeats"] == 1 and written["peers"] == {} and written["environment"]["cpu"]
    assert f"-m benchmarks.network {' '.join(options)} --json path/to/" in written["environment"]["command"]
    (row,) = written["rows"]
    assert row["case"] == "dense" and row["n"] == 2 and row["estimate_ms"] > 0
    assert row["info_MB"] < row["wire_MB"] < 1.1 * row["info_MB"]
    assert row["median_ms"] > 0.8 * row["wire_MB"] * 8 / 2
