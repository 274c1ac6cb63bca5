"""What is measured on a GPU, as far as it goes without one: peers, Algorithm 1, the script and its report."""

import json
import os
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
    names = ("top_k", "top_k and partition, fused")
    feedback = [{"sparsifier": name, "density": 0.1, "median_ms": 2, "times_floor": 1.2} for name in names]
    (tmp_path / "sparsifiers.json").write_text(json.dumps({"results": feedback}))
    gpu_report.write_report(tmp_path)
    lines = (tmp_path / "report.md").read_text().splitlines()
    verdicts = [line.split(" | ")[-1] for line in lines if line.startswith("| partition")]
    assert verdicts == ["yes |", "no |"]
    assert "| cupy flatnonzero + take | 0.01 | absent | no cupy |" in lines
    assert "| top_k | 0.1 | 2 | 0.833 |  |  |" in lines
    assert "| top_k and partition, fused | 0.1 | 2 | 0.833 | >= 0.80 | yes |" in lines
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
    """Parts that passed are not run again, but a build that is not here; a part that it does not know is refused."""
    (tmp_path / "parts").mkdir()
    parts = ["build", "test", "memcheck", "racecheck", "initcheck", "kernels", "dense", "many", "algorithm_1"]
    parts += ["feedback", "all_reduce"]
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
