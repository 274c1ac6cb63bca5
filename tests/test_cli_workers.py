"""The workers of `zen-jax bench`: how they are placed, how they are timed, and real processes."""

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from examples.common.launch import free_ports
from zen_jax.cli import workers
from zen_jax.cli.main import BAD_INPUT, DONE, main
from zen_jax.cli.timing import time_cases

ROOT = Path(__file__).parents[1]
LINKS = ("--gbps", "1", "--latency-us", "20")


def test_launchers_place_a_process_unless_it_is_to_be_alone(monkeypatch):
    nothing = (None, None, None)
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK", raising=False)
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    assert workers.find_place(*nothing, alone=False) is None
    monkeypatch.setenv("SLURM_PROCID", "0")
    assert workers.find_place(*nothing, alone=False) == nothing
    assert workers.find_place(*nothing, alone=True) is None
    assert workers.find_place("host:1", 2, 1, alone=False) == ("host:1", 2, 1)


def test_gather_keeps_float64():
    numbers = np.asarray([[1 / 3, 1e-300], [2.0**53 + 1, -0.0]])
    np.testing.assert_array_equal(workers.gather(numbers), numbers[None], strict=True)


def test_time_of_a_call_is_that_of_its_slowest_process():
    """Cases take turns and cycle through the steps; the other process always takes a second longer."""
    calls = []

    class Case:
        def __init__(self, name):
            self.name = name

        def prepare(self, step):
            return lambda: calls.append((self.name, step)) or step

        def info(self, result):
            return {"step": result}

    def gather(numbers):
        return np.stack([numbers, numbers + 1])

    counter = itertools.count(0, 10)
    how = {"gather": gather, "received": partial(next, counter), "report": lambda line: None}
    timings = time_cases([Case("a"), Case("b")], steps=2, repeats=3, **how)
    assert calls == [("a", 0), ("b", 0)] + [(name, step) for step in (0, 1, 0) for name in "ab"]
    for timing, name in zip(timings, "ab", strict=True):
        assert timing.name == name
        assert len(timing.seconds) == 3
        assert all(1 <= seconds < 2 for seconds in timing.seconds)
        assert timing.received == 10.5
        assert timing.info == {"step": pytest.approx(1 / 3)}


# --- real processes ---------------------------------------------------------------------------------------------


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "zen_jax.cli", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": ""},  # one device per process
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.multiprocess
def test_bench_among_processes():
    """Only the first process prints, and only JSON, whatever libraries say."""
    made = ("--rows", 32_000, "--columns", 4, "--schemes", "dense", "--repeats", 2, *LINKS, "--json", "-")
    made += ("--interface", "lo")
    made += ("--coordinator", f"localhost:{free_ports()}", "--num-processes", 2)
    processes = [start("bench", *made, "--process-id", index) for index in range(2)]
    try:
        outputs = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [DONE, DONE], outputs
    found = json.loads(outputs[0][0])
    assert (found["n"], found["processes"]) == (2, 2)
    assert found["cluster"]["hosts"] == 2
    (dense,) = found["schemes"]
    # The counter of lo, which both share, also has what other tests send meanwhile.
    assert dense["received"] >= 2 * dense["bytes"]
    assert outputs[1][0] == ""


def test_a_port_that_is_taken_is_named(capsys):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(f"bench --coordinator localhost:{port} --num-processes 2 --process-id 0".split()) == BAD_INPUT
    assert f"process 0 cannot listen on port {port}" in capsys.readouterr().err


@pytest.mark.multiprocess
def test_interrupt_is_quiet():
    """Ctrl-C while a process waits for others, inside JAX; shells call this exit code 130."""
    waiting = start("bench", "--coordinator", f"localhost:{free_ports()}", "--num-processes", 2, "--process-id", 0)
    try:
        assert waiting.stderr.readline() == "waiting for the other processes, for at most five minutes\n"
        waiting.send_signal(signal.SIGINT)
        printed, said = waiting.communicate(timeout=20)
    finally:
        waiting.kill()
    assert waiting.returncode == -signal.SIGINT
    assert (printed, said) == ("", "")
