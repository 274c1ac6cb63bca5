"""Timing, tables and files that the benchmarks share."""

import importlib.metadata
import json
import math
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax

from zen_jax.planning.table import table as aligned

# Length of one timing on an accelerator, where the host only queues calls. To start and to await them takes half a
# millisecond.
QUEUED_SECONDS = 0.05


def seconds(run: Callable[[], Any], repeats: int = 7) -> dict[str, float]:
    """Median and extremes of `repeats` timings, after calls that are not counted."""
    calls = queued_calls(run)
    return spread([elapsed(run, calls) for _ in range(repeats)])


def spread(times: Sequence[float]) -> dict[str, float]:
    """Median and extremes."""
    return {"median": statistics.median(times), "min": min(times), "max": max(times)}


def elapsed(run: Callable[[], Any], calls: int = 1) -> float:
    """Seconds that a call takes until its results are on the device: the mean of `calls` in a row."""
    start = time.perf_counter()
    for _ in range(calls):
        results = run()
    jax.block_until_ready(results)
    return (time.perf_counter() - start) / calls


def queued_calls(run: Callable[[], Any]) -> int:
    """Calls to time together, after one or more that compile and warm up: one on a CPU, on an accelerator enough that
    the host's work on a call hides behind the device's work on the call before."""
    elapsed(run)
    if jax.default_backend() == "cpu":
        return 1
    return min(500, math.ceil(QUEUED_SECONDS / elapsed(run)))


def ratio(run: Callable[[], Any], to: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Median seconds of `run` and of `to`, called in turn, and the median ratio of the two times."""
    calls, calls_to = queued_calls(run), queued_calls(to)
    pairs = [(elapsed(run, calls), elapsed(to, calls_to)) for _ in range(repeats)]
    medians = {"median": statistics.median(a for a, _ in pairs), "to": statistics.median(b for _, b in pairs)}
    return medians | {"ratio": statistics.median(a / b for a, b in pairs)}


def in_turn(calls: Iterable[Callable[[], Any]]) -> list[Any]:
    """Results of calls, no two of which run at once: an accelerator queues them, on a CPU each is awaited."""
    wait = jax.block_until_ready if jax.default_backend() == "cpu" else lambda results: results
    return [wait(call()) for call in calls]


VARIABLES = ("ZEN_JAX_", "JAX_", "XLA_", "MALLOC_", "GLIBC_TUNABLES", "TCMALLOC_")
PACKAGES = ("jax", "jaxlib", "jax-cuda13-plugin", "numpy", "torch", "cupy-cuda13x")


def environment() -> dict[str, Any]:
    """What the figures were measured on, and the command that measured them, without this machine's paths."""
    import zen_jax

    device = jax.devices()[0]
    return {
        "command": shlex.join(["python", *map(_without_folder, sys.orig_argv[1:])]),
        "device": device.device_kind,
        "platform": jax.default_backend(),
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        or str(getattr(device.client, "platform_version", "")).split("\n")[0],
        "versions": {name: _version(name) for name in PACKAGES},
        "nvcc": (_output("nvcc", "--version") or "").split("\n")[-1],
        "commit": _output("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "preloaded": Path(os.environ.get("LD_PRELOAD", "")).name,  # such as another malloc
        "variables": {k: v for k, v in sorted(os.environ.items()) if k.startswith(VARIABLES) and "/" not in v},
        "backend": zen_jax.backend_info(),
    }


def _without_folder(word: str) -> str:
    return f"path/to/{Path(word).name}" if os.path.isabs(word) else word


def _cpu() -> str:
    """The processor's model."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


def _output(*command: str) -> str | None:
    """What a command prints; None if it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as aligned text, a column for every key."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [columns] + [[str(row.get(column, "")) for column in columns] for row in rows]
    return aligned(cells)


def write_json(path: Path | None, result: dict[str, Any]) -> None:
    """Writes the result whole or not at all: a run interrupted while writing leaves what it wrote before."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.unfinished")
        unfinished.write_text(json.dumps(result, indent=1) + "\n")
        unfinished.replace(path)
