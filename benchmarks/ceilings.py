"""The fastest ways this device reads, writes and copies memory, to compare a kernel's time with."""

import ctypes
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import measure


class Ceilings:
    """The fastest ways this device reads, writes and copies memory, timed beside whatever is compared with them.

    Machines drift: a floor means most when its ceiling was measured just before and after.
    """

    def __init__(self, repeats: int = 5) -> None:
        on_cpu = jax.default_backend() == "cpu"
        # On an accelerator, large enough to hide both its cache and the cost of a call.
        self.nbytes = 1 << (28 if on_cpu else 31)
        ways = (_cpu_ways if on_cpu else _device_ways)(self.nbytes)
        self._fastest = {
            name: min(runs, key=lambda run: measure.seconds(run, repeats)["min"]) for name, runs in ways.items()
        }
        self._calls = {name: measure.queued_calls(run) for name, run in self._fastest.items()}
        self._times: dict[str, list[float]] = {name: [] for name in ways}

    def _seconds_of(self, name: str) -> float:
        """Seconds per byte read, per byte written, or per byte that a copy reads or writes."""
        self._times[name].append(measure.elapsed(self._fastest[name], self._calls[name]) / self.nbytes / _MOVED[name])
        return self._times[name][-1]

    def against(self, run: Callable[[], Any], read: int, written: int, repeats: int) -> dict[str, float]:
        """Times `run`, which must read and write the given bytes, in turn with the ceilings.

        Returns:
          "median", "min" and "max" in seconds; "floor": the median time that the bytes take at the ceilings; and, as
          medians over repeats, "times_floor", the time over the floor, "of_read", the rate over the read ceiling, and
          "of_copy", that over the copy ceiling.
        """
        times, floors, scans, copies = [], [], [], []
        calls = measure.queued_calls(run)
        for _ in range(repeats):
            scan, write, copy = (self._seconds_of(name) for name in ("read", "write", "copy"))
            # XLA's fill is slower than a copy on some GPUs: then it is no ceiling.
            floors.append(read * scan + written * min(write, copy))
            scans.append((read + written) * scan)
            copies.append((read + written) * copy)
            times.append(measure.elapsed(run, calls))
        return {
            **measure.spread(times),
            "floor": statistics.median(floors),
            "times_floor": statistics.median(t / floor for t, floor in zip(times, floors, strict=True)),
            "of_read": statistics.median(scan / t for t, scan in zip(times, scans, strict=True)),
            "of_copy": statistics.median(copy / t for t, copy in zip(times, copies, strict=True)),
        }

    def rates(self) -> dict[str, dict[str, float]]:
        """Bytes per second read, written, and read plus written in a copy: the median and the best so far."""
        return {
            name: {"median": 1 / statistics.median(times), "best": 1 / min(times)}
            for name, times in self._times.items()
        }


_MOVED = {"read": 1, "write": 1, "copy": 2}  # how often each way moves a byte


def _cpu_ways(nbytes: int) -> dict[str, list[Callable[[], Any]]]:
    threads = len(os.sched_getaffinity(0))
    pool = ThreadPoolExecutor(threads)
    data = np.ones(nbytes // 8, np.uint64)
    shares = _shares(data, threads)

    def threaded(work: Callable[[np.ndarray], Any]) -> Callable[[], Any]:
        return lambda: list(pool.map(work, shares))

    # With blocks that fit in a cache, NumPy's reductions are bound by the reads alone.
    reads = [threaded(lambda share: [block.max() for block in np.array_split(share.view(np.float32), 64)])]
    writes = [threaded(lambda share: share.fill(1))]
    targets = _shares(np.empty_like(data), threads)
    copies = [lambda: list(pool.map(np.copyto, targets, shares))]
    native = _native_ceilings()
    if native is not None:
        reads.append(threaded(lambda share: native.read_all(share.ctypes.data, share.size)))
        writes.append(threaded(lambda share: native.write_all(share.ctypes.data, share.size, 1)))
    return {"read": reads, "write": writes, "copy": copies}


def _shares(words: np.ndarray, count: int) -> list[np.ndarray]:
    """Views of equal shares of 8-byte words, cut at multiples of 64 bytes: ceilings.cc must store at those of 16."""
    return [share.reshape(-1) for share in np.array_split(words.reshape(-1, 8), count)]


def _native_ceilings() -> ctypes.CDLL | None:
    """The loops of ceilings.cc, or None without a C++ compiler that works."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "ceilings.so"
        source = Path(__file__).with_name("ceilings.cc")
        wide = ["-mprefer-vector-width=512"] if platform.machine() == "x86_64" else []
        command = [compiler, "-O3", "-march=native", *wide, "-shared", "-fPIC", str(source), "-o", str(library)]
        if subprocess.run(command).returncode:  # the compiler has said why
            return None
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
    two = jnp.float32(2.0)
    negated, copied = jax.jit(lambda x: -x), jax.jit(lambda x: jnp.array(x, copy=True))
    return {
        "read": [lambda: total(source)],
        "write": [lambda: fill(two)],
        "copy": [lambda: negated(source), lambda: copied(source)],
    }
