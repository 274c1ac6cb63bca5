"""Timing and memory-bandwidth ceilings that the benchmarks share."""

import ctypes
import json
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def seconds(run: Callable[[], Any], repeats: int = 7) -> dict[str, float]:
    """Median and extremes of `repeats` timed calls, after one that is not counted."""
    elapsed(run)
    times = [elapsed(run) for _ in range(repeats)]
    return {"median": statistics.median(times), "min": min(times), "max": max(times)}


def elapsed(run: Callable[[], Any]) -> float:
    """Seconds that one call takes, its results on the device included."""
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def ratio(run: Callable[[], Any], to: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Seconds of `run` and the median ratio of its time to that of `to`, called in turn."""
    elapsed(run), elapsed(to)
    pairs = [(elapsed(run), elapsed(to)) for _ in range(repeats)]
    return {"median": statistics.median(a for a, _ in pairs), "ratio": statistics.median(a / b for a, b in pairs)}


class Ceilings:
    """The fastest ways this device reads and writes memory, timed beside whatever is held against them.

    Machines drift: a floor is worth most when the ceiling was measured in the moments before and after.
    """

    def __init__(self, nbytes: int = 1 << 28, repeats: int = 5) -> None:
        ways = _cpu_ways(nbytes) if jax.default_backend() == "cpu" else _device_ways(nbytes)
        self.nbytes = nbytes
        self._fastest = {
            name: min(runs, key=lambda run: seconds(run, repeats)["min"])
            for name, runs in ways.items()
        }
        self._times: dict[str, list[float]] = {name: [] for name in ways}

    def _seconds_of(self, name: str) -> float:
        self._times[name].append(elapsed(self._fastest[name]))
        return self._times[name][-1]

    def against(self, run: Callable[[], Any], read: int, written: int, repeats: int) -> dict[str, float]:
        """Times `run`, which must read and write so many bytes, and the ceilings in turn.

        Returns:
          "median", "min" and "max" in seconds; "floor": the median time that the bytes take at the ceilings; and as
          medians over repeats "times_floor", the time over the floor, and "of_read", the rate over the read ceiling.
        """
        times, floors, scans = [], [], []
        elapsed(run)
        for _ in range(repeats):
            scan, write = self._seconds_of("read") / self.nbytes, self._seconds_of("write") / self.nbytes
            floors.append(read * scan + written * write)
            scans.append((read + written) * scan)
            times.append(elapsed(run))
        return {
            "median": statistics.median(times),
            "min": min(times),
            "max": max(times),
            "floor": statistics.median(floors),
            "times_floor": statistics.median(t / floor for t, floor in zip(times, floors, strict=True)),
            "of_read": statistics.median(scan / t for t, scan in zip(times, scans, strict=True)),
        }

    def rates(self) -> dict[str, dict[str, float]]:
        """Bytes per second read and written: the median and the best so far."""
        return {
            name: {"median": self.nbytes / statistics.median(times), "best": self.nbytes / min(times)}
            for name, times in self._times.items()
        }


def _cpu_ways(nbytes: int) -> dict[str, list[Callable[[], Any]]]:
    threads = len(os.sched_getaffinity(0))
    pool = ThreadPoolExecutor(threads)
    data = np.ones(nbytes // 8, np.uint64)
    shares = np.array_split(data, threads)

    def threaded(work: Callable[[np.ndarray], Any]) -> Callable[[], Any]:
        return lambda: list(pool.map(work, shares))

    # Blocks that fit a cache keep NumPy's reductions from being bound by anything but the reads.
    reads = [threaded(lambda share: [block.max() for block in np.array_split(share.view(np.float32), 64)])]
    writes = [threaded(lambda share: share.fill(1))]
    native = _native_ceilings()
    if native is not None:
        reads.append(threaded(lambda share: native.read_all(share.ctypes.data, share.size)))
        writes.append(threaded(lambda share: native.write_all(share.ctypes.data, share.size, 1)))
    return {"read": reads, "write": writes}


def _native_ceilings() -> ctypes.CDLL | None:
    """The loops of ceilings.cc, or None without a C++ compiler."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "ceilings.so"
        source = Path(__file__).with_name("ceilings.cc")
        wide = ["-mprefer-vector-width=512"] if platform.machine() == "x86_64" else []
        command = [compiler, "-O3", "-march=native", *wide, "-shared", "-fPIC", str(source), "-o", str(library)]
        subprocess.run(command, check=True)
        native = ctypes.CDLL(str(library))
    native.read_all.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    native.read_all.restype = ctypes.c_uint64
    native.write_all.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64]
    native.write_all.restype = None
    return native


def _device_ways(nbytes: int) -> dict[str, list[Callable[[], Any]]]:
    source = jnp.ones(nbytes // 4, jnp.float32)
    total = jax.jit(lambda x: jnp.max(x))
    fill = jax.jit(lambda value: jnp.full(nbytes // 4, value, jnp.float32))
    return {"read": [lambda: total(source)], "write": [lambda: fill(jnp.float32(2.0))]}


def environment() -> dict[str, Any]:
    """What the figures were measured on."""
    import zen_jax

    device = jax.devices()[0]
    return {
        "device": device.device_kind,
        "platform": jax.default_backend(),
        "driver": str(getattr(device.client, "platform_version", "")).split("\n")[0],
        "cores": len(os.sched_getaffinity(0)),
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
