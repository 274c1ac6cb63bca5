"""Real processes over gloo agree with psum and with each other bit for bit, and never deadlock."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from examples.common.launch import free_ports

WORKER = Path(__file__).parent / "worker_process.py"
TIMEOUT = 240  # a deadlock fails after this; the run takes seconds


def run_workers(count, schemes):
    address = f"localhost:{free_ports()}"
    workers = [
        subprocess.Popen(
            [sys.executable, str(WORKER), address, str(count), str(rank), *schemes],
            env=os.environ | {"XLA_FLAGS": "", "JAX_ENABLE_COMPILATION_CACHE": "false"},  # one device a process
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]
    deadline = time.monotonic() + TIMEOUT
    try:
        outputs = [worker.communicate(timeout=max(1, deadline - time.monotonic()))[0] for worker in workers]
    except subprocess.TimeoutExpired:
        pytest.fail(f"{count} processes did not end within {TIMEOUT} s: a collective waits for ever")
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
            worker.stdout.close()
    for rank, (worker, output) in enumerate(zip(workers, outputs, strict=True)):
        assert worker.returncode == 0, f"worker {rank} of {count} failed:\n{output}"
    return [next(line for line in output.splitlines() if line.startswith("digest")) for output in outputs]


@pytest.mark.multiprocess
@pytest.mark.parametrize(("count", "schemes"), [(3, ()), (4, ("zen", "auto", "sparcml"))], ids=["3", "4"])
def test_processes_agree(count, schemes):
    """Every scheme among three processes; four cover sparcml on a power of two, and the main schemes beside it."""
    digests = run_workers(count, schemes)
    assert len(digests) == count
    assert len(set(digests)) == 1
