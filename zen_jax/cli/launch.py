"""`bench --launch-on`: runs the same command on every host; each process ends with the one that started it."""

import argparse
import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import IO

LOCAL = "localhost"  # started without ssh
_PORT = 7700
# Environment variables that ssh would drop.
_FORWARDED = (
    *("JAX_", "XLA_", "ZEN_JAX_", "NCCL_", "CUDA_VISIBLE_DEVICES", "PYTHONPATH"),
    *("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_", "TCMALLOC_"),
)
_LAST_WORDS = 2.0  # seconds for process 0 to say why, once another has failed
_GRACE = 10.0  # seconds for processes to end


def host_names(word: str) -> tuple[str, ...]:
    """The type of an option: hosts as ssh takes them, comma-separated."""
    names = tuple(word.split(","))
    if not all(name.split() == [name] and not name.startswith("-") for name in names):
        raise argparse.ArgumentTypeError(f"{word!r} must be hosts separated by commas, such as host1,host2")
    return names


def coordinator(hosts: Sequence[str]) -> str:
    """The HOST:PORT at which processes on these hosts meet unless another is given.

    Raises:
      ValueError: if the first is localhost, and others are not.
    """
    first = hosts[0].rpartition("@")[2]
    if first == LOCAL and {*hosts} != {LOCAL}:
        raise ValueError(
            f"process 0 is on {LOCAL}, which every host takes for itself. Give --coordinator HOST:PORT with an address "
            "of this machine."
        )
    return f"{first}:{_PORT}"


def run_on(hosts: Sequence[str], arguments: Sequence[str]) -> None:
    """Runs `zen-jax` with these arguments and its own --launch-index on every host, until all have ended.

    Only process 0 prints. If a process fails, the others are ended.

    Raises:
      RuntimeError: if a process fails, with what it said last unless that is process 0, which has said it.
    """
    subcommand, *options = arguments
    processes: list[subprocess.Popen] = []
    outputs: list[IO[bytes]] = []
    if {*hosts} == {LOCAL}:
        share_cores()
    try:
        for index, host in enumerate(hosts):
            command = [sys.executable, "-P", "-m", "zen_jax.cli", subcommand, "--launch-index", str(index), *options]
            outputs.append(tempfile.TemporaryFile())
            streams = {"stdout": outputs[-1], "stderr": subprocess.STDOUT} if index else {}
            command = command if host == LOCAL else _over_ssh(host, command)
            processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, **streams))
        codes = _first_codes(processes)
    finally:
        _end(processes)
    fates = [
        f"process {index} on {host} {_fate(code, output)}"
        for index, (host, code, output) in enumerate(zip(hosts, codes, outputs, strict=True))
        if code
    ]
    if fates:
        raise RuntimeError(fates[0] if codes[0] else "; ".join(fates))


def share_cores() -> None:
    """From now on, no thread of this process, or of processes that it starts, interrupts another when it wakes up.

    Gloo's own thread polls as long as another holds a connection. Where it has interrupted that very thread, it polls
    for a whole turn on the core: 4 ms, where a small collective takes 0.4. Only Linux can do this; elsewhere, and where
    a sandbox forbids it, processes merely stay slower.
    """
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def end_with_starter() -> None:
    """From now on, this process ends when its standard input does, which `run_on` holds open while it runs."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _over_ssh(host: str, command: Sequence[str]) -> list[str]:
    environment = [f"{name}={value}" for name, value in os.environ.items() if name.startswith(_FORWARDED)]
    there = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(['env', *environment, *command])}"
    return ["ssh", "-o", "BatchMode=yes", host, there]  # several passwords cannot be asked for at once


def _first_codes(processes: Sequence[subprocess.Popen]) -> list[int | None]:
    """The exit codes once all processes have ended, or one has failed: then None for those that still run."""
    while True:
        codes = [process.poll() for process in processes]
        if any(codes):
            break
        if None not in codes:
            return codes
        time.sleep(0.05)
    try:
        codes[0] = processes[0].wait(_LAST_WORDS)
    except subprocess.TimeoutExpired:
        pass
    return codes


def _end(processes: Sequence[subprocess.Popen]) -> None:
    for process in processes:
        process.stdin.close()
    for process in processes:
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _fate(code: int, output: IO[bytes]) -> str:
    fate = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    output.seek(0)
    words = output.read().decode(errors="replace").strip().splitlines()
    return f"{fate}: {words[-1]}" if words else fate
