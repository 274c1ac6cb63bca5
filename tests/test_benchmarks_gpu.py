"""What is measured on a GPU, as far as possible without one: peers, Algorithm 1, the script and its report."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zen_jax as zen
from benchmarks import algorithm_1, gpu_report, measure, sparsifiers
from benchmarks.peers import nonzeros

RESULTS = Path(gpu_report.__file__).parent / "results"


def test_peers_find_the_nonzeros_or_say_why_they_are_absent():
    x = np.zeros(1000, np.float32)
    x[[3, 500, 999]] = 1, np.nan, -2
    for name, peer in nonzeros.find_and_take(x, 1):
        if isinstance(peer, nonzeros.Absent):
            assert name.startswith(("torch", "cupy")) and peer.reason, name
        else:
            indices, values = map(np.ravel, peer())
            np.testing.assert_array_equal(indices, [3, 500, 999], name)
            np.testing.assert_array_equal(values, x[[3, 500, 999]], name)
    assert nonzeros.cub_seconds(x, 1, flagged=True) == nonzeros.Absent("no GPU")


def test_a_peer_that_fails_in_its_first_call_is_absent(monkeypatch):
    def broken(x):
        def run():
            raise RuntimeError("no kernel image")

        return run

    monkeypatch.setattr(nonzeros, "_torch", broken)
    peers = dict(nonzeros.find_and_take(np.ones(3, np.float32), 1))
    assert peers["torch.nonzero + index_select"] == nonzeros.Absent("RuntimeError: no kernel image")


def test_cub_is_absent_without_its_compiler(monkeypatch):
    monkeypatch.setattr(nonzeros, "_on_gpu", lambda: True)
    monkeypatch.setenv("CUDACXX", "/nowhere/nvcc")
    nonzeros._cub.cache_clear()
    assert nonzeros.cub_seconds(np.ones(3, np.float32), 1, flagged=True) == nonzeros.Absent("no /nowhere/nvcc")
    nonzeros._cub.cache_clear()


def test_algorithm_1_extracts_what_partition_finds():
    """The same indices and values for each server, in another order."""
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


def kernel_results(*rows, n=2, rate=1e12, **environment):
    """As benchmarks.kernels writes them."""
    ceilings = {way: {"median": rate, "best": rate} for way in ("read", "write", "copy")}
    setting = {"elements": 100, "n": n, "width": 1, "servers_at_once": 2}
    environment = measure.environment() | environment
    return json.dumps({"environment": environment, "ceilings": ceilings, "results": rows} | setting)


KERNEL = {"density": 0.01, "kernel": "partition", "bytes": 8, "median_ms": 1, "min_ms": 1, "max_ms": 2}
KERNEL |= {"of_copy": 0.8, "of_ceiling": 0.81}


def report_lines(folder):
    gpu_report.write_report(folder)
    return (folder / "report.md").read_text().splitlines()


def test_the_gpu_report_says_what_is_met_and_what_is_missing(tmp_path):
    rows = [KERNEL, KERNEL | {"density": 0.3, "of_ceiling": 0.69}]
    rows += [{"kernel": "cupy flatnonzero + take", "density": 0.01, "absent": "no\ncupy"}]
    (tmp_path / "kernels.json").write_text(kernel_results(*rows))
    names = ("top_k", "top_k and partition, fused")
    feedback = [{"sparsifier": name, "density": 0.1, "median_ms": 2, "times_floor": 1.2} for name in names]
    (tmp_path / "sparsifiers.json").write_text(json.dumps({"environment": measure.environment(), "results": feedback}))
    (tmp_path / "parts").mkdir()
    for name, status in (("kernels", 124), ("dense", 0)):
        (tmp_path / "parts" / f"{name}.json").write_text(json.dumps({"part": name, "status": status}))
    lines = report_lines(tmp_path)
    verdicts = [line.split(" | ")[-1] for line in lines if line.startswith("| partition")]
    assert verdicts == ["yes |", "no |"]
    assert "| cupy flatnonzero + take | 0.01 | absent | no cupy |" in lines
    assert "| top_k | 0.1 | 2 | 0.833 |  |  |" in lines
    assert "| top_k and partition, fused | 0.1 | 2 | 0.833 | >= 0.80 | yes |" in lines
    absent = "kernels-dense, kernels-n128, kernels-rows, algorithm_1, all_reduce, all_reduce-pure-jax"
    assert f"Not measured: {absent}, memcheck, racecheck, initcheck." in lines
    headings = [line.split(":")[0] for line in lines if line.startswith("## ")]
    assert headings == ["## Kernels", "## Peers", "## Error feedback and selection"]
    assert "Failed or out of time, so rows may be missing: kernels." in lines
    assert (tmp_path / "roofline.png").stat().st_size > 0


def test_the_gpu_report_keeps_machines_apart(tmp_path):
    """Results of two machines have a line each; those of one machine share it. Ceilings belong to a file."""
    for name, device, rate in (
        ("kernels", "H200", 4e12),
        ("kernels-dense", "H200", 3e12),
        ("kernels-rows", "A100", 1e12),
    ):
        (tmp_path / f"{name}.json").write_text(kernel_results(KERNEL, rate=rate, device=device, driver="1.2"))
    lines = report_lines(tmp_path)
    first, second = (line for line in lines if ", driver 1.2, " in line)
    assert first.startswith("kernels, kernels-dense: H200, ") and second.startswith("kernels-rows: A100, ")
    assert "Ceilings of kernels-dense in TB/s: read 3.00, write 3.00, copy 3.00." in lines
    (tmp_path / "kernels-rows.json").unlink()
    (line,) = (line for line in report_lines(tmp_path) if ", driver 1.2, " in line)
    assert line.startswith("H200, ")


def test_the_gpu_report_compares_many_servers_with_few(tmp_path):
    many = [KERNEL | {"median_ms": 1.1}, KERNEL | {"density": 0.05, "median_ms": 3}, KERNEL | {"density": 0.9}]
    (tmp_path / "kernels.json").write_text(kernel_results(KERNEL, KERNEL | {"density": 0.05, "median_ms": 2}))
    (tmp_path / "kernels-n128.json").write_text(kernel_results(*many, n=128))
    lines = report_lines(tmp_path)
    at = lines.index("## Many servers") + 2
    assert lines[at] == "| kernel | density | n = 2, ms | n = 128, ms | times | target | met |"
    assert lines[at + 2 :] == [
        "| partition | 0.01 | 1 | 1.1 | 1.1 | <= 1.10 | yes |",
        "| partition | 0.05 | 2 | 3 | 1.5 | <= 1.10 | no |",
    ]


@pytest.mark.parametrize(
    ("changed", "differing"),
    [
        ({"device": "A100"}, "A100, H200"),
        ({"driver": "1.3"}, "driver 1.2, driver 1.3"),
        ({"versions": {"jax": "0.12", "torch": "2"}}, "jax 0.11, jax 0.12, torch 2"),
        ({"commit": "b"}, "commit a, commit b"),
    ],
)
def test_the_gpu_report_compares_only_what_one_machine_measured_with_one_version(tmp_path, changed, differing):
    where = {"device": "H200", "driver": "1.2", "versions": {"jax": "0.11", "torch": None}, "commit": "a"}
    (tmp_path / "kernels.json").write_text(kernel_results(KERNEL, **where))
    (tmp_path / "kernels-n128.json").write_text(kernel_results(KERNEL, n=128, **(where | changed)))
    for name, environment in (("all_reduce", where), ("all_reduce-pure-jax", where | changed)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"environment": environment, "whole_ms": {"zen": 1.0}}))
    lines = report_lines(tmp_path)
    assert f"| partition | 0.01 | 1 | 1 | not compared, as these differ: {differing} |  |  |" in lines
    assert f"| zen | 1 | 1 | not compared, as these differ: {differing} |" in lines


def test_the_roofline_has_a_panel_with_ceilings_for_each_device():
    figure = pytest.importorskip("matplotlib.figure").Figure()
    rates = {"H200": 4e12, "A100": 2e12}
    results = [json.loads(kernel_results(KERNEL, rate=rate, device=device)) for device, rate in rates.items()]
    gpu_report.draw_roofline(results, figure)
    for axes, (device, rate) in zip(figure.axes, rates.items(), strict=True):
        assert axes.get_title() == f"{device}, n = 2, units of 1"
        heights = {line.get_label(): line.get_ydata()[0] for line in axes.lines}
        assert heights["read ceiling"] == heights["write ceiling"] == heights["copy ceiling"] == rate / 1e9


def test_the_gpu_report_takes_the_share_of_the_ceiling_that_was_measured(monkeypatch, tmp_path):
    """Times over the floor are rounded more; dgc's floor counts its velocity."""

    class Ceilings:
        def against(self, run, read, written, repeats):
            return {"median": 1, "min": 1, "max": 1, "floor": 1, "times_floor": 25600 / (read + written)}

        def rates(self):
            return {}

    steps = [(name, lambda gradient, state: (gradient, state), jnp.zeros(1), False) for name in ("top_k", "dgc")]
    monkeypatch.setattr(sparsifiers, "Ceilings", Ceilings)
    monkeypatch.setattr(sparsifiers, "contenders", lambda gradient, density: steps)
    command = "sparsifiers --elements 1000 --density 0.1 --repeats 1 --json".split()
    monkeypatch.setattr(sys, "argv", [*command, str(tmp_path / "sparsifiers.json")])
    sparsifiers.main()
    result = json.loads((tmp_path / "sparsifiers.json").read_text())
    shares = {line["sparsifier"]: line["of ceiling"] for line in gpu_report.feedback_lines(result)}
    assert shares == {"top_k": 0.5, "dgc": 0.812, "top_k and partition, fused": 0.5}


def test_the_published_gpu_results_can_be_reported(tmp_path):
    published = {name: RESULTS / f"gpu_{name.replace('-', '_')}.json" for name in gpu_report.RESULTS}
    for name, path in published.items():
        if path.exists():
            (tmp_path / f"{name}.json").write_text(path.read_text())
    lines = report_lines(tmp_path)
    assert {"## Many servers", "## Algorithm 1", "## Error feedback and selection"} < set(lines)


def test_the_gpu_report_quotes_the_sanitizers(tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "initcheck.log").write_text("cut off\n")
    for tool, said in (
        ("memcheck", "ERROR SUMMARY: 0 errors"),
        ("racecheck", "RACECHECK SUMMARY: 0 hazards displayed"),
    ):
        (tmp_path / "parts" / f"{tool}.log").write_text(f"29 passed\n========= {said}\n")
    lines = report_lines(tmp_path)
    assert "| memcheck | ERROR SUMMARY: 0 errors |" in lines
    assert "| racecheck | RACECHECK SUMMARY: 0 hazards displayed |" in lines
    assert f"Not measured: {', '.join(gpu_report.RESULTS)}, initcheck." in lines


def test_the_gpu_report_needs_no_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (tmp_path / "kernels.json").write_text(kernel_results(KERNEL))
    lines = report_lines(tmp_path)
    assert any(line.startswith("No roofline: ") and "matplotlib" in line for line in lines)
    assert any(line.startswith("| partition | 0.01 |") for line in lines)


def gpu_script(results, *parts, **variables):
    environment = os.environ | {"RESULTS": str(results), "PYTHON": sys.executable, **variables}
    command = [Path(__file__).parents[1] / "benchmarks" / "gpu.sh", *parts]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)


def test_the_gpu_script_works_but_for_the_gpu(tmp_path):
    """Its tests run on the CPU if told to; otherwise no CPU timing passes for a GPU's."""
    few = {"JAX_PLATFORMS": "cpu", "PYTEST_ADDOPTS": "-p no:cacheprovider -k '7-1-float32 or 10-1-float32'"}
    done = gpu_script(tmp_path, "test", ZEN_JAX_REHEARSE_GPU="1", **few)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-2000:]
    refused = gpu_script(tmp_path, "kernels", JAX_PLATFORMS="cpu", ZEN_JAX_KERNELS="xla")
    assert refused.returncode == 1 and "no CUDA kernels: pure JAX (ZEN_JAX_KERNELS=xla" in refused.stdout


PARTS = ["build", "test", "kernels", "dense", "many", "rows", "algorithm_1", "feedback", "all_reduce"]
SANITIZERS = ["memcheck", "racecheck", "initcheck"]
EVERYTHING = [*PARTS, "report", *SANITIZERS, "report"]

# Stands in for every command of the script. Each call is a line of `calls`; one that contains a word of FAILING fails.
# nvidia-smi finds a GPU named DEVICE, and Python the jax of version JAX.
FAKE = """#!/bin/sh
echo "$(basename "$0") $*" >> "$RESULTS/calls"
touch "$RESULTS/report.md"
case "$(basename "$0") $*" in nvidia-smi*) echo "$DEVICE" ;; *metadata.version*) echo "$JAX" ;; esac
for word in $FAILING; do case "$*" in *"$word"*) exit 3 ;; esac; done
"""


def faked(results, *parts, failing="", seconds=0, device="H200", version=jax.__version__):
    """The parts that ran, in order, with the status of each; the last line that the script printed; its exit status.

    The call starts with `seconds` of its time already used.
    """
    for tool in ("bin/python", "bin/cmake", "bin/nvidia-smi", "cuda/nvcc", "cuda/compute-sanitizer"):
        (results / tool).parent.mkdir(exist_ok=True)
        (results / tool).write_text(FAKE)
        (results / tool).chmod(0o755)
    variables = {"PYTHON": str(results / "bin" / "python"), "CUDACXX": str(results / "cuda" / "nvcc")}
    variables |= {"PATH": f"{results / 'bin'}:/usr/bin:/bin", "FAILING": failing, "SECONDS": str(seconds)}
    done = gpu_script(results, *parts, DEVICE=device, JAX=version, **variables)
    ran = re.findall(r"^== (\w+): status (\d+)", done.stdout, re.MULTILINE)
    return (
        [name if status == "0" else f"{name}!" for name, status in ran],
        done.stdout.splitlines()[-1],
        done.returncode,
    )


def test_the_gpu_script_goes_on_where_it_stopped(tmp_path):
    """Parts that passed are not run again, except a build that is missing here; an unknown part is refused."""
    faked(tmp_path)
    parts = PARTS + SANITIZERS
    here = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "DEVICE": "H200", "FAILING": "build/gpu"}
    done = gpu_script(tmp_path, ZEN_JAX_REHEARSE_GPU="1", **here)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("passed before") == len(parts)
    assert "Not measured: kernels, kernels-dense, " in done.stdout
    elsewhere = gpu_script(tmp_path, JAX_PLATFORMS="cpu", ZEN_JAX_KERNELS="xla", **here)
    assert "== build: status 3" in elsewhere.stdout and elsewhere.returncode == 1
    assert elsewhere.stdout.count("passed before") == len(parts) - 1
    assert gpu_script(tmp_path, "bench").returncode == 1


def test_the_gpu_script_measures_before_it_sanitizes(tmp_path):
    assert faked(tmp_path)[::2] == (EVERYTHING, 0)
    assert faked(tmp_path)[::2] == (["report"], 0)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert all("-p no:benchmark" in call for call in calls if "-m pytest" in call)
    dense = "python -m benchmarks.kernels --elements 214e6 --skip-slow --repeats 7 -n 16 --density 0.2 0.4"
    assert any(call.startswith(dense) for call in calls)
    tools = [call.split(" --error-exitcode 9 ")[0] for call in calls if call.startswith("compute-sanitizer")]
    options = ["memcheck --report-api-errors no", "racecheck", "initcheck"]
    assert tools == [f"compute-sanitizer --tool {option} --kernel-name kns=zen" for option in options]


def test_the_gpu_script_starts_again_with_other_sources_or_another_machine(tmp_path):
    for machine in ({}, {"device": "A100"}, {"device": "A100", "version": "0.99"}):
        assert faked(tmp_path, **machine)[::2] == (EVERYTHING, 0)
    for part in ("dense", "racecheck"):
        path = tmp_path / "parts" / f"{part}.json"
        outcome = json.loads(path.read_text())
        assert (outcome["device"], outcome["jax"], outcome["elements"]) == ("A100", "0.99", "214e6")
        path.write_text(json.dumps(outcome | {"sources": "others"}))
    assert faked(tmp_path, **machine)[::2] == (["dense", "report", "racecheck", "report"], 0)


def test_a_part_of_the_gpu_script_that_failed_waits_for_the_others(tmp_path):
    """Also for parts that this call has no time for, and for parts that failed less often."""
    failing = "kernels-dense.json algorithm_1"
    ran, last, status = faked(tmp_path, failing=failing, seconds=300)
    assert (ran, status) == (["build", "rows", "algorithm_1!", "feedback", "all_reduce", "report"], 1)
    assert last == "left for another call: test kernels dense many memcheck racecheck initcheck"
    for _ in range(2):
        assert faked(tmp_path, "dense", failing=failing)[::2] == (["dense!"], 1)
    ran, last, status = faked(tmp_path, failing=failing, seconds=300)
    assert (ran, status) == (["report"], 2)
    assert last == "left for another call: test kernels many memcheck racecheck initcheck algorithm_1 dense"
    ran, _, status = faked(tmp_path, failing=failing)
    assert ran == ["test", "kernels", "many", "report", *SANITIZERS, "algorithm_1!", "dense!", "report"]
    assert status == 1
    assert faked(tmp_path, "dense", "build", seconds=300)[::2] == (["build"], 2)  # named parts too need time
    assert faked(tmp_path, "dense")[::2] == (["dense"], 0)
    assert faked(tmp_path)[::2] == (["report", "algorithm_1", "report"], 0)
