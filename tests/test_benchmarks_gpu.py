"""What is measured on a GPU, as far as possible without one: peers, Algorithm 1, the script and its report."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np

import zen_jax as zen
from benchmarks import algorithm_1, gpu_report, measure
from benchmarks.peers import nonzeros


def test_peers_find_the_nonzeros_or_say_why_they_are_absent():
    x = np.zeros(1000, np.float32)
    x[[3, 500, 999]] = 1, np.nan, -2
    for name, peer in nonzeros.find_and_take(x, 1):
        if isinstance(peer, nonzeros.Absent):
            assert peer.reason, name
        elif (found := peer()) is not None:
            np.testing.assert_array_equal(np.ravel(found[0]), [3, 500, 999], name)
            np.testing.assert_array_equal(np.ravel(found[1]), x[[3, 500, 999]], name)
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


def kernel_results(*rows):
    """As benchmarks.kernels writes them."""
    ceilings = {way: {"median": 1e12, "best": 1e12} for way in ("read", "write", "copy")}
    setting = {"elements": 100, "n": 2, "width": 1, "servers_at_once": 2}
    return json.dumps({"environment": measure.environment(), "ceilings": ceilings, "results": rows} | setting)


KERNEL = {"density": 0.01, "kernel": "partition", "bytes": 8, "median_ms": 1, "min_ms": 1, "max_ms": 2}
KERNEL |= {"of_copy": 0.8, "of_ceiling": 0.81}


def test_the_gpu_report_says_what_is_met_and_what_is_missing(tmp_path):
    rows = [KERNEL, KERNEL | {"density": 0.3, "of_ceiling": 0.69}]
    rows += [{"kernel": "cupy flatnonzero + take", "density": 0.01, "absent": "no\ncupy"}]
    (tmp_path / "kernels.json").write_text(kernel_results(*rows))
    names = ("top_k", "top_k and partition, fused")
    feedback = [{"sparsifier": name, "density": 0.1, "median_ms": 2, "times_floor": 1.2} for name in names]
    (tmp_path / "sparsifiers.json").write_text(json.dumps({"results": feedback}))
    (tmp_path / "parts").mkdir()
    for name, status in (("kernels", 124), ("dense", 0)):
        (tmp_path / "parts" / f"{name}.json").write_text(json.dumps({"part": name, "status": status}))
    gpu_report.write_report(tmp_path)
    lines = (tmp_path / "report.md").read_text().splitlines()
    verdicts = [line.split(" | ")[-1] for line in lines if line.startswith("| partition")]
    assert verdicts == ["yes |", "no |"]
    assert "| cupy flatnonzero + take | 0.01 | absent | no cupy |" in lines
    assert "| top_k | 0.1 | 2 | 0.833 |  |  |" in lines
    assert "| top_k and partition, fused | 0.1 | 2 | 0.833 | >= 0.80 | yes |" in lines
    assert lines.count("Not measured.") == 2
    assert "Failed or out of time, so rows may be missing: kernels." in lines
    assert (tmp_path / "roofline.png").stat().st_size > 0


def test_the_gpu_report_needs_no_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (tmp_path / "kernels.json").write_text(kernel_results(KERNEL))
    gpu_report.write_report(tmp_path)
    lines = (tmp_path / "report.md").read_text().splitlines()
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


PARTS = ["build", "test", "kernels", "dense", "many", "algorithm_1", "feedback", "all_reduce"]
SANITIZERS = ["memcheck", "racecheck", "initcheck"]


def test_the_gpu_script_goes_on_where_it_stopped(tmp_path):
    """Parts that passed are not run again, except a build that is missing here; an unknown part is refused."""
    (tmp_path / "parts").mkdir()
    parts = PARTS + SANITIZERS
    for name in parts:
        (tmp_path / "parts" / f"{name}.json").write_text('{"part": "x", "status": 0, "timed_out": false}')
    done = gpu_script(tmp_path, ZEN_JAX_REHEARSE_GPU="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("passed before") == len(parts)
    assert "No kernel was measured." in done.stdout
    (tmp_path / "cmake").write_text("#!/bin/sh\nexit 7\n")
    (tmp_path / "cmake").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    elsewhere = gpu_script(tmp_path, JAX_PLATFORMS="cpu", ZEN_JAX_KERNELS="xla", PATH=path)
    assert "== build: status 7" in elsewhere.stdout and elsewhere.returncode == 1
    assert elsewhere.stdout.count("passed before") == len(parts) - 1
    assert gpu_script(tmp_path, "bench").returncode == 1


# Stands in for every command of the script. Each call is a line of `calls`; one that contains a word of FAILING fails.
FAKE = """#!/bin/sh
echo "$(basename "$0") $*" >> "$RESULTS/calls"
touch "$RESULTS/report.md"
for word in $FAILING; do case "$*" in *"$word"*) exit 3 ;; esac; done
"""


def faked(results, *parts, failing="", seconds=0):
    """The parts that ran, in order, with the status of each; the last line that the script printed; its exit status.

    The call starts with `seconds` of its time already used.
    """
    for tool in ("bin/python", "bin/cmake", "cuda/nvcc", "cuda/compute-sanitizer"):
        (results / tool).parent.mkdir(exist_ok=True)
        (results / tool).write_text(FAKE)
        (results / tool).chmod(0o755)
    variables = {"PYTHON": str(results / "bin" / "python"), "CUDACXX": str(results / "cuda" / "nvcc")}
    variables |= {"PATH": f"{results / 'bin'}:/usr/bin:/bin", "FAILING": failing, "SECONDS": str(seconds)}
    done = gpu_script(results, *parts, **variables)
    ran = re.findall(r"^== (\w+): status (\d+)", done.stdout, re.MULTILINE)
    return (
        [name if status == "0" else f"{name}!" for name, status in ran],
        done.stdout.splitlines()[-1],
        done.returncode,
    )


def test_the_gpu_script_measures_before_it_sanitizes(tmp_path):
    assert faked(tmp_path)[::2] == ([*PARTS, "report", *SANITIZERS, "report"], 0)
    assert faked(tmp_path)[::2] == (["report"], 0)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert all("-p no:benchmark" in call for call in calls if "-m pytest" in call)
    assert "python -m benchmarks.kernels --elements 214e6 --skip-slow -n 16 --density 0.2 0.4" in "\n".join(calls)
    tools = [call.split(" --error-exitcode 9 ")[0] for call in calls if call.startswith("compute-sanitizer")]
    options = ["memcheck --report-api-errors no", "racecheck", "initcheck"]
    assert tools == [f"compute-sanitizer --tool {option}" for option in options]


def test_a_part_of_the_gpu_script_that_failed_waits_for_the_others(tmp_path):
    """Also for parts that this call has no time for, and for parts that failed less often."""
    failing = "kernels-dense.json algorithm_1"
    ran, last, status = faked(tmp_path, failing=failing, seconds=300)
    assert (ran, status) == (["build", "algorithm_1!", "feedback", "all_reduce", "report"], 1)
    assert last == "left for another call: test kernels dense many memcheck racecheck initcheck"
    for _ in range(2):
        assert faked(tmp_path, "dense", failing=failing)[::2] == (["dense!"], 1)
    ran, last, status = faked(tmp_path, failing=failing, seconds=300)
    assert (ran, status) == (["report"], 2)
    assert last == "left for another call: test kernels many memcheck racecheck initcheck algorithm_1 dense"
    ran, _, status = faked(tmp_path, failing=failing)
    assert ran == ["test", "kernels", "many", "report", *SANITIZERS, "algorithm_1!", "dense!", "report"]
    assert status == 1
    assert faked(tmp_path, "dense")[::2] == (["dense"], 0)
    assert faked(tmp_path)[::2] == (["report", "algorithm_1", "report"], 0)
