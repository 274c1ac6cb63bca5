"""The benchmarks' own arithmetic, readers and emulated hosts: what their figures rest on."""

import doctest
import fcntl
import gzip
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import zen_jax as zen
from benchmarks import algorithm_1, emulated_hosts, exact, gpu_report, measure, network_report, workloads
from benchmarks.figures import (
    breakdown,
    breakdown_measured,
    characteristics,
    drawing,
    formats,
    imbalance,
    schemes,
    skewness,
    strawmen,
)
from benchmarks.group import UNLIMITED
from benchmarks.peers import nonzeros
from benchmarks.problem import Problem


@pytest.fixture
def may_emulate_hosts(tmp_path_factory):
    """One test at a time makes hosts, among all of pytest's workers; where the system refuses to, the skip says why."""
    with (tmp_path_factory.getbasetemp().parent / "hosts.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            with emulated_hosts.emulated_hosts(1) as hosts:
                emulated_hosts.set_rate(hosts, "1mbit")
        except emulated_hosts.HostsError as refusal:
            pytest.skip(str(refusal))
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A tiny copy of every data set, in the format of the real ones."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    words = [f"word{i}" for i in range(60)]

    def sentence(length):
        return " ".join(rng.choice(words, length, p=1 / np.arange(1, 61) / np.sum(1 / np.arange(1, 61))))

    def write(name, file, lines):
        (folder / name).mkdir(exist_ok=True)
        with gzip.open(folder / name / file, "wt", encoding="utf-8") as out:
            out.writelines(line + "\n" for line in lines)

    write("gutenberg_lm", "train.txt.gz", [sentence(200) for _ in range(200)])
    write("tatoeba_fra_eng", "train.tsv.gz", [f"{sentence(6)}\t{sentence(7)}" for _ in range(600)])
    write("goemotions", "train.tsv.gz", [f"{i % 28}\t{sentence(9)}" for i in range(2100)])
    (folder / "nycflights_ctr").mkdir()
    np.savez(
        folder / "nycflights_ctr" / "data.npz",
        split=np.repeat(np.array([0, 1], np.uint8), [4200, 100]),
        field_names=np.array(["a", "b"]),
        cardinality=np.array([30, 50]),
        f_a=rng.integers(0, 30, 4300),
        f_b=rng.integers(0, 50, 4300),
    )
    return folder


@pytest.mark.parametrize("name", [*workloads.DATA_SETS, "synthetic:0.02"])
def test_workload_names_the_rows_of_each_worker(data, name):
    workload = workloads.load(name, data)
    touched = workload.touched(4, step=1)
    assert touched.shape == (4, workload.rows)
    assert touched.any(axis=1).all()
    for worker in range(4):
        batch = workload.batch(4, worker, 1)
        assert set(np.flatnonzero(touched[worker])) == set(batch.tolist())
        assert 0 <= batch.min() and batch.max() < workload.rows
    assert (workload.touched(4, step=1) == touched).all()
    assert workload.batch(4, 0, 0).tolist() != workload.batch(4, 0, 1).tolist()


@pytest.mark.parametrize("name", workloads.DATA_SETS)
def test_workload_refuses_more_workers_than_it_has_data_for(data, name):
    workload = workloads.load(name, data)
    workload.touched(workload.max_workers, step=0)
    with pytest.raises(ValueError, match=f"data for {workload.max_workers} workers"):
        workload.touched(workload.max_workers + 1, step=0)


def test_rows_are_numbered_by_falling_frequency(data):
    workload = workloads.load("goemotions", data)
    drawn = np.concatenate([workload.batch(2, worker, step) for worker in range(2) for step in range(4)])
    counts = np.bincount(drawn, minlength=workload.rows)
    assert counts[: workload.rows // 2].sum() > 2 * counts[workload.rows // 2 :].sum()


def test_language_model_reads_on_where_it_stopped(data):
    workload = workloads.load("gutenberg_lm", data)
    first, second = (workload.batch(2, 0, step).reshape(128, 35) for step in (0, 1))
    text = gzip.open(data / "gutenberg_lm" / "train.txt.gz", "rt").read().replace("\n", " <eos> ").split()
    numbers = dict(zip(text, np.concatenate([first, second], axis=1)[0], strict=False))
    assert [numbers[word] for word in text[:70]] == [*first[0], *second[0]]


@pytest.mark.parametrize(
    ("name", "folder", "message"),
    [
        ("nothing", "data", "'nothing' is unknown. Use one of gutenberg_lm"),
        ("goemotions", None, "--data"),
        ("goemotions", "empty", "No such file"),
        ("synthetic:2", None, "density above 0 and up to 1"),
        ("synthetic:much", None, "density above 0 and up to 1"),
    ],
)
def test_unusable_workload_is_refused(data, tmp_path, name, folder, message):
    with pytest.raises(ValueError, match=message):
        workloads.load(name, {"data": data, "empty": tmp_path, None: None}[folder])


def random_touched(n=4, rows=97, density=0.2, seed=0):
    rng = np.random.default_rng(seed)
    return rng.random((n, rows)) < density * np.linspace(2, 0.1, rows)


def test_lower_bound_is_what_the_others_touched():
    touched = random_touched()
    received = [np.delete(touched, worker, axis=0).any(axis=0).sum() for worker in range(len(touched))]
    assert exact.lower_bound(touched, row_bytes=12) == pytest.approx(np.mean(received) * 12)


@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("hash", ["tile", "murmur"])
def test_message_counts_count_every_unit_once(blocks, hash):
    touched, n = random_touched(), 4
    servers = exact.hashed_servers(touched.shape[1], blocks, n, hash)
    push, pull = exact.message_counts(touched, servers, n)
    for worker in range(n):
        for server in range(n):
            mine = sum((servers[row] == server).sum() for row in np.flatnonzero(touched[worker]))
            assert push[worker, server] == mine
    assert pull.sum() == touched.any(axis=0).sum() * blocks


def test_scheme_bytes_against_counting_message_by_message():
    touched, columns, n = random_touched(), 256, 4
    rows = touched.shape[1]
    found = exact.scheme_bytes(touched, columns, blocks=1)
    row, coo = columns * 4, columns * 4 + 4
    assert found["dense"] == 2 * 3 / 4 * rows * row
    others = [sum(touched[other].sum() for other in range(n) if other != worker) for worker in range(n)]
    assert found["agsparse"] == max(others) * coo
    pairs = touched[::2] | touched[1::2]
    assert found["sparcml"] == (touched.sum(axis=1).max() + pairs.sum(axis=1).max()) * coo
    owner = exact.contiguous_servers(rows, n)[:, 0]
    to_server = [
        sum((touched[worker] & (owner == server)).sum() for worker in range(n) if worker != server)
        for server in range(n)
    ]
    fullest = max((touched.any(axis=0) & (owner == server)).sum() for server in range(n))
    assert found["sparse_ps"] == max(to_server) * coo + 3 * fullest * coo
    assert found["omnireduce"] == found["sparse_ps"]  # a row is one block of 256 elements
    assert found["zen, no index"] < found["zen"] < found["zen, COO pull"]


def test_recursive_doubling_goes_dense_when_sums_are_full():
    touched = np.ones((4, 50), bool)
    assert exact.scheme_bytes(touched, columns=8, blocks=8)["sparcml"] == 2 * 50 * 8 * 4


def test_format_sizes_at_the_ends():
    empty, full = (exact.format_bytes(units=320, nonzero=nonzero, value=4, n=8) for nonzero in (0, 320))
    assert empty == {"dense": 1280, "COO": 0, "bitmap": 8 * 40, "hash bitmap": 40}
    assert full == {"dense": 1280, "COO": 2560, "bitmap": 1280 + 8 * 40, "hash bitmap": 1280 + 40}


def test_problem_survives_its_file_and_checks_sums(tmp_path):
    problem = Problem(random_touched()[None], columns=5, notes={"cases": {}})
    problem.save(tmp_path / "problem.npz")
    loaded = Problem.load(tmp_path / "problem.npz")
    assert (loaded.touched == problem.touched).all() and loaded.notes == problem.notes
    gradients = [loaded.dense(0, worker) for worker in range(4)]
    assert [(g != 0).any(axis=1).tolist() for g in gradients] == problem.touched[0].tolist()
    total = np.sum(gradients, axis=0)
    loaded.check("a sum", 0, total)
    total[3, 2] += 1
    with pytest.raises(ValueError, match="a sum is wrong in 1 of 485 elements"):
        loaded.check("a sum", 0, total)


def test_report_relates_times_to_bytes():
    def record(case, rate, seconds, received):
        spread = {"median": seconds, "min": seconds, "max": seconds}
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


def test_report_says_how_much_slower_than_the_fastest_the_planned_scheme_is():
    where = {"workload": "a workload", "n": 4, "rate": "64mbit"}
    rows = [where | {"case": "dense", "median_ms": 9.0, "planned": False}]
    rows += [where | {"case": "zen", "median_ms": 3.0, "planned": True}]
    rows += [where | {"case": "agsparse", "median_ms": 2.0, "planned": False}]
    rows += [where | {"case": "a peer", "median_ms": 1.0}]  # which no plan can choose
    assert network_report.choices(rows).splitlines()[1].split() == "a workload 4 64mbit zen agsparse 1.50".split()


@pytest.mark.parametrize("module", [workloads, exact, emulated_hosts, drawing, gpu_report])
def test_examples_in_docstrings(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("figure", [characteristics, skewness, schemes, breakdown, imbalance, formats, strawmen])
def test_figures_have_rows_of_plain_numbers(figure, monkeypatch):
    for module in (characteristics, skewness, schemes, breakdown, imbalance):
        if hasattr(module, "WORKERS") and isinstance(module.WORKERS, tuple):
            monkeypatch.setattr(module, "WORKERS", (2, 4))
    options = SimpleNamespace(workloads=["synthetic:0.01"], data=None, steps=1)
    rows = figure.rows(options)
    assert rows and all(isinstance(value, str | int | float) for row in rows for value in row.values())


@pytest.mark.parametrize("load", [0.1, 0.4, 1.0])
def test_one_hash_loses_what_throwing_balls_into_bins_does(load):
    """The paper's 17.5 % and 4.8 % are loads of 0.4 and a quarter of it."""
    indices = np.arange(3, 300_003, dtype=np.uint32)
    assert strawmen.lost_by_one_hash(indices, round(indices.size / load)) == pytest.approx(
        1 - (1 - np.exp(-load)) / load, rel=0.02
    )


def test_thresholds_balance_the_step_that_they_are_of():
    touched = np.zeros((4, 1000), bool)
    touched[:, :40] = touched[:, 900:] = True
    counts = exact.message_counts(touched, strawmen.thresholds(touched), 4)
    assert exact.imbalance(*counts) == (1.0, 1.0)
    moved = np.roll(touched, 300, axis=1)
    assert exact.imbalance(*exact.message_counts(moved, strawmen.thresholds(touched), 4))[0] > 2


def test_measured_breakdown_goes_step_by_step(tmp_path):
    cases = {"dense": 1.0, **{case: 2.0 + i for i, case in enumerate(breakdown_measured.STEPS)}}
    rows = [
        {"workload": name, "n": 4, "rate": "1mbit", "case": case, "median_ms": 9.0, "speed_up": cases[case]}
        for name, kept in (("whole", cases), ("without ablation", ("dense", "zen")))
        for case in kept
    ]
    (tmp_path / "network.json").write_text(json.dumps({"rows": rows}))
    options = SimpleNamespace(network=[tmp_path / "network.json"])
    found = breakdown_measured.rows(options)
    assert [(row["with"], row["speed-up"]) for row in found] == [
        ("contiguous, COO", 2.0),
        ("+ hashing", 3.0),
        ("+ hash bitmap", 4.0),
        ("+ wider units", 5.0),
    ]


def test_emulated_hosts_refuse_what_they_cannot_do(monkeypatch):
    with pytest.raises(ValueError, match="count=0 must be from 1"):
        emulated_hosts.emulated_hosts(0).__enter__()
    monkeypatch.setattr(emulated_hosts.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(emulated_hosts.shutil, "which", lambda tool: tool)
    with pytest.raises(emulated_hosts.HostsError, match="root"):
        emulated_hosts.emulated_hosts(2).__enter__()
    monkeypatch.setattr(emulated_hosts.shutil, "which", lambda tool: None if tool == "tc" else tool)
    with pytest.raises(emulated_hosts.HostsError, match="need tc"):
        emulated_hosts.emulated_hosts(2).__enter__()
    with pytest.raises(ValueError, match="rate 'fast'"):
        emulated_hosts.rate_in_bits("fast")


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
    (row,) = json.loads(result.read_text())["rows"]
    assert row["case"] == "dense" and row["n"] == 2 and row["planned"]
    assert row["info_MB"] < row["wire_MB"] < 1.1 * row["info_MB"]
    assert row["median_ms"] > 0.8 * row["wire_MB"] * 8 / 2


def test_peers_find_the_nonzeros_or_say_why_they_are_absent():
    x = np.zeros(1000, np.float32)
    x[[3, 500, 999]] = 1, np.nan, -2
    for name, peer in nonzeros.find_and_take(x):
        if isinstance(peer, nonzeros.Absent):
            assert peer.reason, name
        elif (found := peer()) is not None:
            np.testing.assert_array_equal(found[0], [3, 500, 999], name)
            np.testing.assert_array_equal(found[1], x[[3, 500, 999]], name)
    assert nonzeros.cub_seconds(x, 1, flagged=True) == nonzeros.Absent("no GPU")


def test_algorithm_1_extracts_what_partition_finds():
    """For each server the same indices and values, in another order."""
    n, x = 3, np.where(np.arange(400) % 5 == 0, np.arange(400) + 1, 0).astype(np.float32)
    memory, counts, lost = zen.kernels.hierarchical_hash(algorithm_1.find(x, 80), n, 60, 40, 3)
    indices, found = algorithm_1.extract(memory, 80)
    values = algorithm_1.take(jax.numpy.asarray(x), indices.astype(np.int32), found)
    assert int(lost) == 0
    np.testing.assert_array_equal(found, counts)
    kept = [np.asarray(indices[server, : found[server]]) for server in range(n)]
    np.testing.assert_array_equal(np.sort(np.concatenate(kept)), np.flatnonzero(x))
    for server in range(n):
        np.testing.assert_array_equal(values[server, : found[server]], x[kept[server]])


def test_the_gpu_report_says_what_is_met_and_what_is_missing(tmp_path):
    kernel = {"kernel": "partition", "bytes": 8, "median_ms": 1, "min_ms": 1, "max_ms": 2, "of_copy": 0.8}
    ceilings = {way: {"median": 1e12, "best": 1e12} for way in ("read", "write", "copy")}
    result = {"environment": measure.environment(), "ceilings": ceilings, "elements": 100, "n": 2, "width": 1}
    rows = [kernel | {"density": at, "of_ceiling": reached} for at, reached in ((0.01, 0.81), (0.3, 0.69))]
    rows += [{"kernel": "cupy flatnonzero + take", "density": 0.01, "absent": "no cupy"}]
    (tmp_path / "kernels.json").write_text(json.dumps(result | {"results": rows}))
    feedback = {"sparsifier": "top_k", "density": 0.1, "median_ms": 2, "times_floor": 1.2}
    fused = {"sparsifier": "top_k and partition, fused", "density": 0.1, "median_ms": 2, "of unfused": 0.8}
    (tmp_path / "sparsifiers.json").write_text(json.dumps({"results": [feedback, fused]}))
    gpu_report.write_report(tmp_path)
    lines = (tmp_path / "report.md").read_text().splitlines()
    verdicts = [line.split(" | ")[-1] for line in lines if line.startswith("| partition")]
    assert verdicts == ["yes |", "no |"]
    assert "| cupy flatnonzero + take | 0.01 | absent | no cupy |" in lines
    assert "| top_k | 0.1 | 2 | 0.833 | >= 0.80 | yes |" in lines
    assert lines.count("Not measured.") == 2
    assert (tmp_path / "roofline.png").stat().st_size > 0


def gpu_script(results, *parts, **variables):
    environment = os.environ | {"RESULTS": str(results), "PYTHON": sys.executable, **variables}
    command = [Path(__file__).parents[1] / "benchmarks" / "gpu.sh", *parts]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)


def test_the_gpu_script_works_but_for_the_gpu(tmp_path):
    """Its tests run, on the CPU; without that leave no time passes for one of a GPU."""
    few = {"JAX_PLATFORMS": "cpu", "PYTEST_ADDOPTS": "-p no:cacheprovider -k '7-1-float32 or 10-1-float32'"}
    done = gpu_script(tmp_path, "test", ZEN_JAX_REHEARSE_GPU="1", **few)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-2000:]
    refused = gpu_script(tmp_path, "kernels", JAX_PLATFORMS="cpu", ZEN_JAX_KERNELS="xla")
    assert refused.returncode == 1 and "no CUDA kernels: pure JAX (ZEN_JAX_KERNELS=xla" in refused.stdout


def test_the_gpu_script_goes_on_where_it_stopped(tmp_path):
    """Parts that passed are not run again; a part that it does not know is refused."""
    (tmp_path / "parts").mkdir()
    parts = ["build", "test", "sanitize", "kernels", "dense", "many", "algorithm_1", "feedback", "all_reduce"]
    for name in parts:
        (tmp_path / "parts" / f"{name}.json").write_text('{"part": "x", "status": 0, "timed_out": false}')
    done = gpu_script(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("passed before") == len(parts)
    assert "No kernel was measured." in done.stdout
    assert gpu_script(tmp_path, "bench").returncode == 1
