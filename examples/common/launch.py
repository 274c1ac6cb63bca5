"""Several processes: joining those that a launcher started, or starting them here."""

import dataclasses
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax

_LAUNCHERS = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK")  # jax.distributed reads the rest by itself
_GRACE = 5.0  # seconds for processes to end by themselves


@dataclasses.dataclass(frozen=True)
class Rank:
    """This process among `count`; the coordinator is `host:port` of process 0."""

    coordinator: str
    count: int
    index: int


def rank_from(coordinator: str | None, count: int | None, index: int | None) -> Rank | None:
    """The rank that options or the environment set, None where neither does; a ValueError where it is half set."""

    def from_environment(name: str) -> int | None:
        text = os.environ.get(f"JAX_{name}") or os.environ.get(name)
        try:
            return None if text is None else int(text)
        except ValueError:
            raise ValueError(f"environment variable {name}={text!r} is not an integer") from None

    coordinator = coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS")
    if coordinator is None:
        if count is None and index is None:
            return None
        raise ValueError("--num-processes and --process-id need --coordinator HOST:PORT")
    count = from_environment("NUM_PROCESSES") if count is None else count
    index = from_environment("PROCESS_ID") if index is None else index
    if count is None or index is None:
        raise ValueError(f"--coordinator {coordinator} needs --num-processes and --process-id")
    if not 0 <= index < count:
        raise ValueError(f"--process-id {index} must be at least 0 and below --num-processes {count}")
    return Rank(coordinator, count, index)


def join(rank: Rank | None) -> None:
    """Connects this process with the others; does nothing where it runs alone."""
    if rank is None and not any(name in os.environ for name in _LAUNCHERS):
        return
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if rank is None:
        jax.distributed.initialize()
    else:
        jax.distributed.initialize(rank.coordinator, rank.count, rank.index)


def start(command: list[str], count: int) -> int:
    """Runs `command` in `count` processes on this machine. Returns an exit code; the first to fail ends them all."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        coordinator = f"localhost:{probe.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as logs:
        paths = [Path(logs) / f"{index}.log" for index in range(count)]
        processes: list[subprocess.Popen] = []
        try:
            for index, path in enumerate(paths):
                rank = ["--coordinator", coordinator, "--num-processes", str(count), "--process-id", str(index)]
                with path.open("w") as log:
                    # Process 0 speaks for all; what the others say matters only where one of them fails.
                    streams = {} if index == 0 else {"stdout": log, "stderr": log}
                    processes.append(subprocess.Popen([*command, *rank], **streams))
            while any(process.poll() is None for process in processes):
                if any(process.poll() for process in processes):
                    break
                time.sleep(0.05)
            return _report(processes, paths)
        except KeyboardInterrupt:
            return 130
        finally:
            _end(processes)


def _report(processes: list[subprocess.Popen], logs: list[Path]) -> int:
    failed = [(index, process.returncode) for index, process in enumerate(processes) if process.poll()]
    if not failed:
        return 0
    for index, code in failed:
        cause = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        # A killed process leaves no word on why.
        last = logs[index].read_text(errors="replace").strip().splitlines()[-1:] if code > 0 and index > 0 else []
        print(f"process {index} of {len(processes)} {cause}", *last, sep=": ", file=sys.stderr)
    code = failed[0][1]
    return code if code > 0 else 1


def _end(processes: list[subprocess.Popen]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + _GRACE
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
