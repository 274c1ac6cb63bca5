"""Timing and memory-bandwidth ceilings that the benchmarks share."""

import json
import platform
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from os import sched_getaffinity
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def seconds(run: Callable[[], Any], repeats: int = 7) -> dict[str, float]:
    """Median and extremes of `repeats` timed calls, after one that is not counted."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - start)
    return {"median": statistics.median(times[1:]), "min": min(times[1:]), "max": max(times[1:])}


def ceilings(nbytes: int = 1 << 28, repeats: int = 9) -> dict[str, float]:
    """Bytes per second that this device reads, writes and copies (read + written), the best of several ways each."""
    if jax.default_backend() == "cpu":
        runs = _cpu_ceiling_runs(nbytes)
    else:
        runs = _device_ceiling_runs(nbytes)
    moved = {"read": nbytes, "write": nbytes, "copy": 2 * nbytes}
    return {name: max(moved[name] / seconds(run, repeats)["min"] for run in ways) for name, ways in runs.items()}


def _cpu_ceiling_runs(nbytes: int) -> dict[str, list[Callable[[], Any]]]:
    threads = len(sched_getaffinity(0))
    pool = ThreadPoolExecutor(threads)
    source, target = np.ones(nbytes // 4, np.float32), np.ones(nbytes // 4, np.float32)
    # Blocks that fit L2 keep NumPy's reductions from being bound by anything but the reads.
    parts = [
        list(zip(np.array_split(s, 64), np.array_split(t, 64), strict=True))
        for s, t in zip(np.array_split(source, threads), np.array_split(target, threads), strict=True)
    ]

    def threaded(work: Callable[[np.ndarray, np.ndarray], Any]) -> Callable[[], Any]:
        return lambda: list(pool.map(lambda blocks: [work(s, t) for s, t in blocks], parts))

    def reading(reduce: Callable[[np.ndarray], Any], dtype: type) -> Callable[[], Any]:
        return threaded(lambda s, _: reduce(s.view(dtype)))

    return {
        "read": [reading(np.max, np.float32), reading(np.max, np.int32), reading(np.bitwise_or.reduce, np.int32)],
        "write": [threaded(lambda _, t: t.fill(1.0)), threaded(lambda _, t: t.view(np.uint8).fill(0))],
        "copy": [threaded(lambda s, t: np.copyto(t, s))],
    }


def _device_ceiling_runs(nbytes: int) -> dict[str, list[Callable[[], Any]]]:
    source = jnp.ones(nbytes // 4, jnp.float32)
    total = jax.jit(lambda x: jnp.max(x))
    fill = jax.jit(lambda value: jnp.full(nbytes // 4, value, jnp.float32))
    copy = jax.jit(lambda x, value: x + value)
    return {
        "read": [lambda: total(source)],
        "write": [lambda: fill(jnp.float32(2.0))],
        "copy": [lambda: copy(source, jnp.float32(1.0))],
    }


def environment() -> dict[str, Any]:
    """What the figures were measured on."""
    import zen_jax

    device = jax.devices()[0]
    return {
        "device": device.device_kind,
        "platform": jax.default_backend(),
        "driver": str(getattr(device.client, "platform_version", "")).split("\n")[0],
        "cores": len(sched_getaffinity(0)),
        "jax": jax.__version__,
        "python": platform.python_version(),
        "backend": zen_jax.backend_info(),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as aligned text, a column for every key."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [columns] + [[str(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells)


def write_json(path: Path | None, result: dict[str, Any]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
