"""Processes that a benchmark starts and waits for, and how the benchmark itself ends."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.emulated_hosts import HostsError

GROUP_TIMEOUT = 1800  # seconds after which a group of processes is considered hung
PORT = 7700
KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_ARENA_MAX": "1",
    "TCMALLOC_RELEASE_RATE": "0",
}
"""What examples/common/memory.py sets from inside, as glibc's environment variables, and tcmalloc's; for peers too."""


ONE_CPU_WORKER = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
"""One worker in each process, and no two on one GPU."""


class ProcessesError(RuntimeError):
    """Processes failed, or cannot be started; the message says why."""


def run_group(commands: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Runs processes until all have ended, or one has failed; returns the records that the first one printed."""
    # A training loop reuses its memory; without this, faulting in fresh pages would drown out everything else.
    variables = os.environ | KEEP_FREED_MEMORY | ONE_CPU_WORKER
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / f"{i}.log" for i in range(len(commands))]
        processes: list[subprocess.Popen] = []
        try:
            for command, log in zip(commands, logs, strict=True):
                with log.open("w") as output:
                    # The first process reports progress; the others' output matters only if one of them fails.
                    errors = subprocess.STDOUT if processes else None
                    streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": errors}
                    # In a group of its own: Ctrl-C reaches this process alone, which then ends the others.
                    processes.append(subprocess.Popen(command, **streams, env=variables, process_group=0))
            deadline = time.monotonic() + GROUP_TIMEOUT
            while any(p.poll() is None for p in processes) and not any(p.poll() for p in processes):
                if time.monotonic() > deadline:
                    raise ProcessesError(f"processes did not end within {GROUP_TIMEOUT} s")
                time.sleep(0.1)
            for i, (process, log) in enumerate(zip(processes, logs, strict=True)):
                if process.poll():
                    said = log.read_text(errors="replace").strip().splitlines()[-5:]
                    raise ProcessesError("\n".join([f"process {i} of {len(processes)} failed", *said]))
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return [json.loads(line) for line in logs[0].read_text().splitlines() if line.startswith("{")]


def run_main(main: Callable[[], None]) -> None:
    """Runs a benchmark so that its emulated hosts are removed however it ends, and bad input gives one line."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) != signal.SIG_IGN:
            signal.signal(ending, lambda number, _: sys.exit(128 + number))
    try:
        main()
    except (HostsError, ProcessesError, OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
