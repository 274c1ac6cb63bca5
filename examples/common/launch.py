"""Several processes: joins those that a launcher started, or starts them here."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from examples.common.rank import Rank, launcher_knows
from examples.common.watch import Watch
from zen_jax.cli.launch import end_with_starter, share_cores
from zen_jax.cli.workers import compile_anew, devices_under_open_mpi

_STARTED = "ZEN_JAX_EXAMPLE_STARTED"  # set for the processes that `start` starts
_LAST_WORDS = 2.0  # seconds for process 0 to say why, once another has failed
_GRACE = 60.0  # seconds for processes to save a large checkpoint and end by themselves
_PORTS = range(20_000, 32_000, 2)  # below the ephemeral ports, which connections may take while processes start
_LONGEST = 10**6  # seconds, beyond which timers overflow
_JAX_PATIENCE = 2  # timeouts until JAX ends a process whose peer is dead, unless the watch has done so


@contextlib.contextmanager
def joined(rank: Rank | None, timeout: int) -> Iterator[Callable[[Callable], Callable]]:
    """Inside, this process is connected to the others; nothing happens if it runs alone.

    If a process is killed, is stuck for `timeout` seconds, or leaves by an exception, all end and say why. Yields
    `Watch.guard`, for a function that may hang in one of them.
    """
    if os.environ.get(_STARTED):
        end_with_starter()
    if rank is None and not launcher_knows():
        yield lambda fun: fun
        return
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    timeout = min(timeout, _LONGEST)
    seconds = _JAX_PATIENCE * timeout
    limits = {"heartbeat_timeout_seconds": seconds, "shutdown_timeout_seconds": seconds}
    if rank is None:
        jax.distributed.initialize(**limits)
        compile_anew()
        yield lambda fun: fun
        return
    with Watch(rank, timeout) as watch:
        # JAX asks a launcher only for the processes on this host, which share its devices.
        detection = None if launcher_knows() else "deactivate"
        jax.distributed.initialize(
            rank.coordinator,
            rank.count,
            rank.index,
            local_device_ids=devices_under_open_mpi(),
            cluster_detection_method=detection,
            **limits,
        )
        compile_anew()
        yield watch.guard


def start(command: list[str], count: int) -> int:
    """Runs `command` in `count` processes on this machine. Returns an exit code; the first to fail ends them all.

    They train on CPUs unless JAX_PLATFORMS says otherwise: each would take all GPUs for itself. Whatever ends this
    process ends them, too: left alone, they would keep writing where a restarted run writes.
    """
    endings = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) != signal.SIG_IGN]  # nohup
    before = [signal.signal(ending, lambda number, _: sys.exit(128 + number)) for ending in endings]
    coordinator, environment = f"localhost:{free_ports()}", {"JAX_PLATFORMS": "cpu"} | os.environ | {_STARTED: "1"}
    share_cores()
    with tempfile.TemporaryDirectory() as logs:
        paths = [Path(logs) / f"{index}.log" for index in range(count)]
        processes: list[subprocess.Popen] = []
        try:
            for index, path in enumerate(paths):
                rank = ["--coordinator", coordinator, "--num-processes", str(count), "--process-id", str(index)]
                with path.open("w") as log:
                    # Process 0 speaks for all; what the others print matters only if one of them fails.
                    streams = {} if index == 0 else {"stdout": log, "stderr": log}
                    pipe = subprocess.PIPE  # which closes with this process, even if that is killed
                    processes.append(subprocess.Popen([*command, *rank], env=environment, stdin=pipe, **streams))
            while any(process.poll() is None for process in processes):
                if any(process.poll() for process in processes):
                    break
                time.sleep(0.05)
            with contextlib.suppress(subprocess.TimeoutExpired):
                processes[0].wait(_LAST_WORDS)
            return _report(processes, paths)
        except KeyboardInterrupt:
            return 130
        finally:
            _end(processes)
            for ending, handler in zip(endings, before, strict=True):
                signal.signal(ending, handler)


def free_ports() -> int:
    """A port that is free, as is the next one."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as first, socket.socket() as second, contextlib.suppress(OSError):
            first.bind(("localhost", port))
            second.bind(("localhost", port + 1))
            return port


def _report(processes: list[subprocess.Popen], logs: list[Path]) -> int:
    """Prints which processes failed, unless process 0 has done so, and returns an exit code."""
    fates, verdicts, codes = [], [], [process.poll() or 0 for process in processes]
    if not any(codes):
        return 0
    for index, code in enumerate(codes):
        # A killed process gives no reason, and the output of process 0 has been seen.
        words = logs[index].read_text(errors="replace").strip().splitlines()[-1:] if code > 0 and index > 0 else []
        if code:
            cause = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            fates.append(": ".join([f"process {index} of {len(processes)} {cause}", *words]))
        verdicts += [word for word in words if word.startswith("process ")]
    if not (verdicts and codes[0] > 0):
        print(*(verdicts[:1] or fates), sep="\n", file=sys.stderr)
    return next((code for code in codes if code > 0), 1)


def _end(processes: list[subprocess.Popen]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
            process.send_signal(signal.SIGCONT)  # a stopped process would not react
    deadline = time.monotonic() + _GRACE
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdin.close()
