"""The benchmarks' own arithmetic, figures and environment, and the examples in their docstrings."""

import doctest
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import emulated_hosts, emulated_switch, exact, gpu_report, network, network_report, training, workloads
from benchmarks.figures import (
    breakdown,
    breakdown_measured,
    characteristics,
    drawing,
    formats,
    imbalance,
    schemes,
    skewness,
    speedups,
    strawmen,
)
from benchmarks.problem import Problem

RESULTS = Path(exact.__file__).parent / "results"


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


@pytest.mark.parametrize("module", [workloads, exact, emulated_hosts, emulated_switch, drawing, gpu_report])
def test_examples_in_docstrings(module):
    assert doctest.testmod(module).failed == 0


def assert_drawn(figure, rows, folder):
    pytest.importorskip("matplotlib")
    drawing.save(figure.draw, rows, folder / "figure.png")
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("figure", [characteristics, skewness, schemes, breakdown, imbalance, formats, strawmen])
def test_figures_have_rows_of_plain_numbers_and_are_drawn(figure, monkeypatch, tmp_path):
    if isinstance(getattr(figure, "WORKERS", None), tuple):
        monkeypatch.setattr(figure, "WORKERS", (2, 4))
    options = SimpleNamespace(workloads=["synthetic:0.01"], data=None, steps=1)
    rows = figure.rows(options)
    assert rows and all(isinstance(value, str | int | float) for row in rows for value in row.values())
    assert_drawn(figure, rows, tmp_path)


@pytest.mark.parametrize("figure", [breakdown_measured, speedups])
def test_measured_figures_are_drawn_from_a_run(figure, tmp_path):
    rows = figure.rows(SimpleNamespace(network=[RESULTS / "network_ablation.json"]))
    assert {(row["n"], row["rate"]) for row in rows} == {(4, "100mbit"), (4, "400mbit")}
    assert all(row["speed-up"] > 0 for row in rows)
    assert_drawn(figure, rows, tmp_path)


@pytest.mark.parametrize("load", [0.1, 0.4, 1.0])
def test_one_hash_loses_what_throwing_balls_into_bins_does(load):
    """The paper's 17.5 % and 4.8 % belong to loads of 0.4 and a quarter of it."""
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


@pytest.mark.parametrize("benchmark", [network, training])
def test_what_was_measured_is_saved_though_nobody_reads_what_is_printed(benchmark, tmp_path, monkeypatch):
    def closed(*_, **__):
        raise BrokenPipeError

    rows = [{"scheme": "dense"}]
    options = ["--data", "none", "--examples", "lm", "--schemes", "dense", "--hosts", "2"]
    if benchmark is network:
        options = ["--workloads", "synthetic:0.5", "--rate", "1gbit", "--schemes", "dense", "--hosts", "2"]
        monkeypatch.setattr(network, "measure_workload", lambda *_: rows)
        monkeypatch.setattr(network.network_report, "table", str)
        monkeypatch.setattr(network, "installed_peers", lambda *_: {})
    monkeypatch.setattr(training, "compare", lambda *_: rows)
    monkeypatch.setattr("builtins.print", closed)
    monkeypatch.setattr("sys.argv", ["benchmark", *options, "--json", str(tmp_path / "found.json")])
    with pytest.raises(BrokenPipeError):
        benchmark.main()
    assert json.loads((tmp_path / "found.json").read_text())["rows"] == rows


@pytest.mark.parametrize("document", ["[]", "{}", '{"rows": [{"scheme": "zen"}]}', "no JSON"])
def test_another_file_is_not_taken_for_a_run(document, tmp_path):
    other = tmp_path / "other.json"
    other.write_text(document)
    with pytest.raises(ValueError, match=r"other\.json is not what benchmarks\.network wrote"):
        network_report.read([other])


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
        ("+ planned unit and pull", 5.0),
    ]
