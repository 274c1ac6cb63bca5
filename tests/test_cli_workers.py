"""The workers of `zen-jax bench`: how they are placed, how they are timed, and real processes."""

import argparse
import itertools
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from examples.common.launch import free_ports
from zen_jax.cli import gradients, launch, output, workers
from zen_jax.cli.main import BAD_INPUT, DONE, FAILED, main
from zen_jax.cli.timing import time_cases

ROOT = Path(__file__).parents[1]
LINKS = ("--gbps", "1", "--latency-us", "20")


def test_launchers_place_a_process_unless_it_is_to_be_alone(monkeypatch):
    nothing = (None, None, None)
    for name in ("OMPI_COMM_WORLD_SIZE", "OMPI_MCA_orte_hnp_uri", "SLURM_STEP_NODELIST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_PROCID", "0")  # also in a batch script, which no srun started
    assert workers.find_place(*nothing, alone=False) is None
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="Open MPI 5 does not say"):
        workers.find_place(*nothing, alone=False)
    monkeypatch.setenv("SLURM_STEP_NODELIST", "node1")
    assert workers.find_place(*nothing, alone=False) == nothing
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE")
    monkeypatch.setenv("SLURM_NTASKS", "1")  # srun --pty bash
    assert workers.find_place(*nothing, alone=False) is None
    monkeypatch.setenv("SLURM_NTASKS", "2")
    assert workers.find_place(*nothing, alone=False) == nothing
    assert workers.find_place(*nothing, alone=True) is None
    assert workers.find_place("host:1", 2, 1, alone=False) == ("host:1", 2, 1)


def test_a_process_of_open_mpi_takes_one_device(monkeypatch):
    """Otherwise each would take all of its host's."""
    joined = []
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "2")
    monkeypatch.delenv("JAX_LOCAL_DEVICE_IDS", raising=False)
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    monkeypatch.setattr(jax.distributed, "initialize", lambda *place, **_: joined.append(place))
    workers.join(workers.Place("host:1", 4, 3))
    assert joined == [("host:1", 4, 3, [2])]


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


def start(*arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "zen_jax.cli", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": ""} | environment,  # one device per process
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
    assert (found["cluster"]["hosts"], found["cluster"]["devices_per_host"]) == (1, 2)  # both on this machine
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


# --- processes on several hosts -----------------------------------------------------------------------------------


@pytest.fixture
def ssh(tmp_path):
    """An environment with an ssh first on PATH that knows one other host: this machine, with variables of its own."""
    fake = tmp_path / "ssh"
    fake.write_text(
        """#!/bin/bash
[[ $1 == -o && $2 == BatchMode=yes ]] || exit 254
[[ $3 == slow ]] && exec cat
[[ $3 == other ]] || { echo "ssh: Could not resolve hostname $3" >&2; exit 255; }
export XLA_FLAGS=--xla_force_host_platform_device_count=2
cd / && exec bash -c "$4"
"""
    )
    fake.chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


def place():
    return "--coordinator", f"localhost:{free_ports()}"


def test_variables_that_ssh_would_drop_are_passed_on(monkeypatch):
    names = ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD", "GLIBC_TUNABLES", "TCMALLOC_RELEASE_RATE")
    for name in names:
        monkeypatch.setitem(os.environ, name, "its value")
    monkeypatch.setitem(os.environ, "HOSTNAME", "its value")
    there = shlex.split(launch._over_ssh("host", ["zen-jax"])[-1])
    assert {word.partition("=")[0] for word in there if word.endswith("=its value")} == set(names)


def test_of_several_processes_only_the_first_needs_the_folder(monkeypatch, tmp_path):
    options = argparse.Namespace(json=[str(tmp_path / "absent" / "out.json")], process_id=None)
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK", raising=False)
    for name in ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.setenv(name, "0")
        with pytest.raises(ValueError, match="there is no folder"):
            output.check_files(options)
        monkeypatch.setenv(name, "1")
        output.check_files(options)
        monkeypatch.delenv(name)


@pytest.mark.multiprocess
def test_hosts_run_the_same_command(ssh, tmp_path):
    """With JAX's environment variables and in the same folder, whose file has a name that shells would split."""
    file = tmp_path / "the user's step.npz"
    np.savez(file, **gradients.synthetic(2, rows=32_000, columns=4, density=0.01))
    made = (os.path.relpath(file, ROOT), "--schemes", "dense", "--repeats", 2, *LINKS, "--json", "-", *place())
    running = start("bench", *made, "--launch-on", "localhost,other", **ssh)
    printed, said = running.communicate(timeout=120)
    assert running.returncode == DONE, said
    found = json.loads(printed)
    assert (found["n"], found["processes"]) == (2, 2)


@pytest.mark.multiprocess
def test_a_host_that_fails_ends_the_others_and_is_named(ssh):
    where = place()
    running = start("bench", *where, "--launch-on", "localhost,absent", **ssh)
    printed, said = running.communicate(timeout=60)
    assert (running.returncode, printed) == (FAILED, "")
    expected = "zen-jax bench: process 1 on absent ended with exit code 255: ssh: Could not resolve hostname absent"
    assert said.splitlines()[-1] == expected
    assert is_free(where[1])


@pytest.mark.multiprocess
def test_a_first_process_that_fails_is_not_quoted(ssh):
    """It has said why."""
    running = start("bench", "absent.npz", *place(), "--launch-on", "localhost,other", **ssh)
    _, said = running.communicate(timeout=60)
    assert running.returncode == FAILED
    assert said.splitlines() == [
        "zen-jax bench: absent.npz: No such file or directory. Check the path.",
        f"zen-jax bench: process 0 on localhost ended with exit code {BAD_INPUT}",
    ]


@pytest.mark.multiprocess
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_the_one_that_started_them(ssh, number):
    """However it ends: the first waits for the other, whose host is slow."""
    where = place()
    running = start("bench", *where, "--launch-on", "localhost,slow", **ssh)
    try:
        assert running.stderr.readline() == "waiting for the other processes, for at most five minutes\n"
    finally:
        running.send_signal(number)
    running.communicate(timeout=20)  # their standard error is this one's, and closes when they end
    assert running.returncode == -number
    assert is_free(where[1])


def is_free(address):
    host, port = address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0
