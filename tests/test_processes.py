"""Processes that disagree, fail, are killed or get stuck end with an error that says so; their training can go on."""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("orbax.checkpoint")
pytest.importorskip("tqdm")

import kills
from example_runs import assert_same_arrays

from examples.common import launch
from examples.common.errors import BadInput
from examples.common.rank import Rank, launcher_knows, rank_from
from examples.common.watch import Watch, _Peer

ROOT = Path(__file__).parents[1]
TIMEOUT = 2  # seconds of the watch
KILL, STOP = "os.kill(os.getpid(), signal.SIGKILL)", "os.kill(os.getpid(), signal.SIGSTOP)"
UNREAD = "read, write = os.pipe(); os.close(read); sys.stdout = open(write, 'w'); print('unread')"

# A process that only does its deed under the watch; watched processes need no JAX.
WATCHED = """
import ctypes, os, signal, sys, time
from examples.common import watch
from examples.common.errors import BadInput
from examples.common.rank import Rank

watch.ARRIVAL = {arrival}
time.sleep({delay})
with watch.Watch(Rank(sys.argv[-5], int(sys.argv[-3]), int(sys.argv[-1])), {timeout}) as watching:
    batch = watching.guard(time.sleep)
    {deed}
"""


def program(deed: str, arrival: float = 20, delay: float = 0) -> list[str]:
    return [sys.executable, "-c", WATCHED.format(arrival=arrival, timeout=TIMEOUT, deed=deed, delay=delay)]


def started(deeds: list[str], ranks: list[tuple[int, int]], arrival: float = 20, late: float = 0):
    """Processes, each with its deed, count and index. The last one starts `late` seconds after the others."""
    coordinator = f"localhost:{launch.free_ports()}"
    for number, (deed, (count, index)) in enumerate(zip(deeds, ranks, strict=True), 1):
        delay = late if number == len(deeds) else 0
        rank = ["--coordinator", coordinator, "--num-processes", str(count), "--process-id", str(index)]
        command, pipe = [*program(deed, arrival, delay), *rank], subprocess.PIPE
        yield subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)


@contextmanager
def ended() -> Iterator[list[subprocess.Popen]]:
    """A list for processes, none of which outlives the block."""
    processes = []
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def watched(deeds: list[str], ranks: list[tuple[int, int]], **when: float):
    """(exit code, errors) of processes `started`; none of a stopped one."""
    with ended() as processes:
        processes += started(deeds, ranks, **when)
        running = [process for process, deed in zip(processes, deeds, strict=True) if deed != STOP]
        errors = [process.communicate(timeout=60)[1] for process in running]
        return [(process.returncode, error) for process, error in zip(running, errors, strict=True)]


@pytest.mark.multiprocess
@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize(
    ("deed", "code", "message"),
    [
        (KILL, 1, "was killed: its connection closed without a word"),
        (STOP, 1, f"is stuck: nothing heard from it for {TIMEOUT} s"),
        ("batch(60)", 1, f"is stuck: the others have waited for its input for {TIMEOUT} s"),
        (r"raise BadInput('two\nlines')", 2, "failed: two\nlines"),
        ("raise RuntimeError('out of paper')", 1, "failed: RuntimeError: out of paper"),
        (f"{UNREAD}; raise RuntimeError('out of paper')", 1, "failed: RuntimeError: out of paper"),
        ("sys.exit(5)", 5, "failed: exit code 5"),
        ("sys.exit('no paper')", 1, "failed: no paper"),
        ("raise KeyboardInterrupt", 130, "failed: interrupted"),
    ],
)
def test_one_process_ends_the_others_and_they_name_it(deed, code, message, victim):
    deeds = ["batch(0); time.sleep(60)"] * 3
    deeds[victim] = deed
    ends = watched(deeds, [(3, index) for index in range(3)])
    if deed == KILL:
        assert ends.pop(victim)[0] == -signal.SIGKILL
    for returned, errors in ends:
        assert returned == code and errors.endswith(f"process {victim} of 3 {message}\n"), errors


@pytest.mark.multiprocess
def test_processes_that_are_all_suspended_go_on():
    """As with Ctrl-Z and fg; whichever continues first must not blame those that were suspended with it."""
    deed = f"print(flush=True); time.sleep({3 * TIMEOUT})"
    with ended() as processes:
        processes += started([deed] * 3, [(3, index) for index in range(3)])
        for process in processes:
            process.stdout.readline()
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        time.sleep(2 * TIMEOUT)
        for process in processes:
            process.send_signal(signal.SIGCONT)
            time.sleep(TIMEOUT / 20)
        assert [(process.communicate(timeout=60)[1], process.returncode) for process in processes] == [("", 0)] * 3


@pytest.mark.multiprocess
def test_a_first_process_that_was_stopped_learns_that_it_was_the_one():
    deeds = [f"{STOP}; time.sleep(60)", "time.sleep(60)", "time.sleep(60)"]
    with ended() as processes:
        processes += started(deeds, [(3, index) for index in range(3)])
        others = [process.communicate(timeout=60)[1] for process in processes[1:]]
        processes[0].send_signal(signal.SIGCONT)
        stuck = f"process 0 of 3 is stuck: nothing heard from it for {TIMEOUT} s\n"
        assert [processes[0].communicate(timeout=60)[1], *others] == [stuck] * 3


@pytest.mark.parametrize("error", [ConnectionResetError, TimeoutError, OSError(errno.EHOSTUNREACH, "No route to host")])
def test_a_connection_that_the_network_gave_up_is_closed(error):
    """An error left to the thread that watches would end it, and the process that watches would count as stuck."""
    peer = _Peer(mock.Mock(recv=mock.Mock(side_effect=error)))
    assert peer.receive() is None


@pytest.mark.multiprocess
def test_an_abort_by_jax_comes_second():
    deeds = [f"time.sleep(1); {KILL}", "ctypes.CDLL(None).abort()"]
    code, errors = watched(deeds, [(2, index) for index in range(2)])[1]
    assert code == 1 and "process 0 of 2 was killed" in errors


@pytest.mark.multiprocess
def test_processes_that_come_late_and_end_at_different_times_end_well():
    deeds = ["sys.exit()", "time.sleep(0.5)", f"time.sleep({1.5 * TIMEOUT}); sys.exit(0)"]
    assert watched(deeds, [(3, index) for index in range(3)], late=1.5 * TIMEOUT) == [(0, "")] * 3


@pytest.mark.multiprocess
def test_processes_that_take_their_time_together_or_outside_their_input_end_well():
    together, apart = f"batch({2 * TIMEOUT}); ", f"time.sleep({2 * TIMEOUT}); "
    deeds = [together + "batch(0); batch(0)", together + apart + "batch(0)", f"batch({2.5 * TIMEOUT})"]
    assert watched(deeds, [(3, index) for index in range(3)]) == [(0, "")] * 3


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([(3, 0), (3, 1)], "not all 3 processes arrived within 10 s; missing: 2"),
        ([(2, 0), (3, 1)], "process 1 was started as one of 3, but process 0 as one of 2"),
        ([(3, 0), (3, 1), (3, 1)], "two processes were started as process 1 of 3"),
    ],
)
def test_processes_that_do_not_fit_do_not_start(ranks, message):
    for code, errors in watched(["print('started')"] * len(ranks), ranks, arrival=10):
        assert code > 0 and message in errors, errors


@pytest.mark.multiprocess
def test_a_process_that_is_started_again_while_others_have_not_arrived_takes_its_place():
    coordinator = f"localhost:{launch.free_ports()}"

    def start(index):
        rank = ["--coordinator", coordinator, "--num-processes", "3", "--process-id", str(index)]
        return subprocess.Popen([*program("pass"), *rank], cwd=ROOT, stderr=subprocess.PIPE, text=True)

    with ended() as processes:
        processes += map(start, (0, 1))
        time.sleep(3)
        processes[1].kill()
        processes.append(start(1))
        time.sleep(1)
        processes.append(start(2))
        ends = [(process.communicate(timeout=60)[1], process.returncode) for process in processes]
        assert ends == [("", 0), ("", -signal.SIGKILL), ("", 0), ("", 0)]


@pytest.mark.multiprocess
@pytest.mark.parametrize(("deed", "fate"), [(KILL, "was killed"), (STOP, "is stuck")])
@pytest.mark.parametrize("victim", [0, 2])
def test_the_launcher_says_which_process_it_was(deed, fate, victim, monkeypatch, capfd):
    monkeypatch.chdir(ROOT)
    of_victim = f"if int(sys.argv[-1]) == {victim}: {deed}\n    time.sleep(60)"
    assert launch.start(program(of_victim), 3) == 1
    assert f"process {victim} of 3 {fate}" in capfd.readouterr().err


@pytest.mark.multiprocess
def test_a_failed_process_ends_the_others_and_says_why(tmp_path, capfd):
    script = tmp_path / "script.py"
    script.write_text("import sys, time\nif sys.argv[-1] == '1': sys.exit('out of paper')\ntime.sleep(60)\n")
    assert launch.start([sys.executable, str(script)], 3) == 1
    assert "process 1 of 3 ended with exit code 1" in (error := capfd.readouterr().err) and "out of paper" in error


# A process that takes its time to save a checkpoint when told to end.
KEEPING = """
import os, pathlib, signal, sys, time

def keep(*_):
    time.sleep(7)
    (folder / f"{os.getpid()}.kept").touch()
    sys.exit(143)

folder = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, keep)
(folder / f"{os.getpid()}.started").touch()
time.sleep(60)
"""


def launched(command: list[str], folder: Path, before: str = "pass") -> tuple[subprocess.Popen, list[int]]:
    """A launcher and its two processes, once these have left a file in the folder."""
    start = f"import signal; from examples.common import launch; {before}; launch.start({command!r}, 2)"
    launcher = subprocess.Popen([sys.executable, "-c", start], cwd=ROOT, stdout=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while len(children := [int(path.stem) for path in folder.glob("*.started")]) < 2:
        assert time.monotonic() < deadline and launcher.poll() is None
        time.sleep(0.05)
    return launcher, children


@pytest.mark.multiprocess
def test_a_launcher_told_to_end_ends_its_processes_once_they_have_kept_what_they_learnt(tmp_path):
    launcher, children = launched([sys.executable, "-c", KEEPING, str(tmp_path)], tmp_path)
    launcher.terminate()
    launcher.communicate(timeout=30)
    assert launcher.returncode == 128 + signal.SIGTERM
    for child in children:
        assert (tmp_path / f"{child}.kept").exists()
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)


JOINED = f"from examples.common import launch; launch.joined(None, 60).__enter__(); {KEEPING}"


@pytest.mark.multiprocess
def test_processes_on_shared_cores_do_not_interrupt_each_other_on_waking_up(tmp_path):
    usual = "import os; os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))"
    launcher, children = launched([sys.executable, "-c", JOINED, str(tmp_path)], tmp_path, before=usual)
    assert [os.sched_getscheduler(child) for child in children] == [os.SCHED_BATCH] * 2
    launcher.kill()
    launcher.communicate(timeout=30)


@pytest.mark.multiprocess
def test_processes_outlive_a_hang_up_under_nohup_but_not_their_launcher(tmp_path):
    command = [sys.executable, "-c", JOINED, str(tmp_path)]
    launcher, _ = launched(command, tmp_path, before="signal.signal(signal.SIGHUP, signal.SIG_IGN)")
    launcher.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        launcher.wait(1)
    launcher.kill()
    launcher.communicate(timeout=30)  # until process 0, too, has let go of standard output


@pytest.mark.multiprocess
def test_a_run_that_was_killed_and_stuck_ends_with_the_losses_of_one_that_was_not(tmp_path):
    options = ["--steps", "8", "--checkpoint-every", "2", "--timeout", "10", "--resume"]
    for victim, steps, how in ((2, 3, signal.SIGKILL), (0, 5, signal.SIGSTOP)):
        with kills.Run(tmp_path / "killed", 3, *options) as run:
            run.wait_for(steps)
            assert kills.kill(run, victim, how) < 60
    resumed, straight = (kills.finish(tmp_path / name, 3, *options) for name in ("killed", "straight"))
    assert resumed == straight and len(straight) == 8
    assert_same_arrays(tmp_path / "killed" / "zen", tmp_path / "straight" / "zen", 8)


@pytest.mark.multiprocess
def test_a_process_whose_input_hangs_ends_all_and_is_named(tmp_path):
    with kills.Run(tmp_path, 2, "--steps", "100000", "--timeout", "10") as run:
        run.wait_for(1)
        (tmp_path / "hold-1").touch()
        for code, errors in run.ends().values():
            assert code == 1 and "process 1 of 2 is stuck: the others have waited for its input" in errors, errors


@pytest.mark.multiprocess
def test_one_process_told_to_end_has_all_keep_a_checkpoint_of_one_step(tmp_path):
    with kills.Run(tmp_path, 2, "--steps", "100000") as run:
        run.wait_for(1)
        run.processes[1].terminate()
        assert [code for code, _ in run.ends().values()] == [128 + signal.SIGTERM] * 2
    assert [path.name for path in (tmp_path / "zen" / "checkpoints").iterdir()] == [str(run.steps())]


@pytest.mark.multiprocess
def test_a_resumed_run_told_to_end_before_its_first_step_ends_after_it(tmp_path):
    kills.finish(tmp_path, 2, "--steps", "6", "--checkpoint-every", "6")
    hold, held = tmp_path / "hold-1", tmp_path / "held-1"
    hold.touch()
    with kills.Run(tmp_path, 2, "--steps", "100000", "--checkpoint-every", "1", "--resume") as run:
        deadline = time.monotonic() + kills.PATIENCE
        while not held.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        run.processes[0].terminate()
        time.sleep(0.5)  # for JAX to tell the other process
        hold.unlink()
        assert [code for code, _ in run.ends().values()] == [128 + signal.SIGTERM] * 2
    assert run.steps() < 100


@pytest.mark.multiprocess
def test_workers_started_with_another_seed_end_before_they_train(tmp_path):
    with kills.Run(tmp_path, 3, own={1: ["--seed", "7"]}) as run:
        for code, errors in run.ends().values():
            assert code == 2 and "seed is 0 on processes 0, 2, but 7 on process 1" in errors, errors
    assert not run.log.exists()


@pytest.mark.multiprocess
def test_a_host_that_does_not_share_the_folder_of_checkpoints_is_named_before_training(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    with kills.Run(here, 2, own={1: ["--out", str(there)]}) as run:
        for code, errors in run.ends().values():
            assert code == 2 and "see what process 0 writes there: 1\n" in errors, errors
    assert not [*here.iterdir(), *there.iterdir()]


@pytest.mark.multiprocess
def test_a_host_that_does_not_see_the_last_checkpoint_yet_ends_all_before_training(tmp_path):
    kills.finish(tmp_path, 2, "--steps", "2", "--checkpoint-every", "2")
    (tmp_path / "blind-1").touch()
    with kills.Run(tmp_path, 2, "--steps", "4", "--resume") as run:
        for code, errors in run.ends().values():
            assert code == 1 and "same last checkpoint in --out, but those after steps 2, none: " in errors, errors
    assert run.steps() == 2


@pytest.mark.parametrize(
    "environment",
    [
        {"NUM_PROCESSES": "4", "PROCESS_ID": "3"},
        {"SLURM_NTASKS": "4", "SLURM_PROCID": "3"},
        {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"},
        {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"},
        {"NUM_PROCESSES": "4", "JOB_COMPLETION_INDEX": "3"},
    ],
    ids=["plain", "slurm", "open_mpi", "open_mpi_under_slurm", "kubernetes"],
)
def test_rank_from_the_environment(monkeypatch, environment):
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "host:1234")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert rank_from(None, None, None) == Rank("host:1234", 4, 3)
    assert rank_from("other:1", 8, 5) == Rank("other:1", 8, 5)


def test_a_launcher_counts_only_where_jax_detects_it(monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "0")  # also in a batch script, which no srun started
    assert rank_from(None, None, None) is None and not launcher_knows()
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    assert rank_from(None, None, None) is None
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="Open MPI 5 does not say where process 0 listens"):
        rank_from(None, None, None)
    monkeypatch.setenv("OMPI_MCA_orte_hnp_uri", "1.0;tcp://10.0.0.1:1")
    assert rank_from(None, None, None) is None and launcher_knows()


@pytest.mark.parametrize(
    ("rank", "message"),
    [
        (("host:1", 4, 4), "--process-id 4 must be at least 0 and below --num-processes 4"),
        (("host:1", 4, None), "needs --num-processes and --process-id"),
        ((None, 4, None), "need --coordinator"),
        (("host", 4, 0), "must be HOST:PORT"),
        (("host:65535", 4, 0), "must be HOST:PORT"),
    ],
)
def test_ranks_that_cannot_be_are_refused(rank, message):
    with pytest.raises(ValueError, match=message):
        rank_from(*rank)


@pytest.mark.parametrize("behind", [0, 1])
def test_a_port_that_is_taken_is_named(behind):
    coordinator = f"localhost:{launch.free_ports()}"
    rank = Rank(coordinator, 2, 0)
    with socket.create_server(("", rank.address[1] + behind)), pytest.raises(BadInput, match="give another --coord"):
        Watch(rank, TIMEOUT).__enter__()


@pytest.mark.multiprocess
def test_another_program_in_the_place_of_process_0_is_named():
    port = launch.free_ports()
    with socket.create_server(("localhost", port + 1)) as server:
        command = [*program("pass"), "--coordinator", f"localhost:{port}", "--num-processes", "2", "--process-id", "1"]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
            with server.accept()[0] as connection:
                connection.sendall(b"SSH-2.0-OpenSSH\r\n")
                errors = process.communicate(timeout=60)[1]
    message = f"process 0 of 2 does not answer: another program listens on the port after localhost:{port}"
    assert process.returncode == 2 and errors.startswith(message), errors


def test_one_of_several_processes_never_trains_alone(monkeypatch):
    monkeypatch.setenv("NUM_PROCESSES", "4")
    monkeypatch.setenv("PROCESS_ID", "3")
    with pytest.raises(ValueError, match="need --coordinator HOST:PORT or JAX_COORDINATOR_ADDRESS"):
        rank_from(None, None, None)
