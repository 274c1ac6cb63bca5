"""Kills random processes of a training run at random moments, resumes it each time, and compares its losses to the bit.

    python -m tests.kills --kills 20 --processes 4

The run is the small example of tests/counting.py over gloo, with a checkpoint every other step, so that many kills come
while one is written. After each the other processes must end by themselves, with exit code 1 and a line that names the
process killed.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from examples.common.launch import free_ports
from tests.example_runs import losses

ROOT = Path(__file__).parents[1]
PATIENCE = 240  # seconds of silence after which a run counts as hung


class Run:
    """The example in separate processes, each started by hand; none outlives its `with` block."""

    def __init__(self, out: Path, count: int, *options: str, own: dict[int, list[str]] | None = None):
        self.log = out / "zen" / "metrics.jsonl"
        where = ["--coordinator", f"localhost:{free_ports()}", "--num-processes", str(count), "--process-id"]
        command = [sys.executable, "-m", "tests.counting", "--sync", "zen", "--out", str(out), *options]
        # One device per process; and a killed process may be writing a cache entry that all the others would find.
        environment = os.environ | {"XLA_FLAGS": "", "JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
        self.processes = [
            subprocess.Popen(
                [*command, *where, str(index), *(own or {}).get(index, [])],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for index in range(count)
        ]

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def steps(self) -> int:
        """How many steps this run and those before it have completed."""
        return len(losses(self.log)) if self.log.exists() else 0

    def wait_for(self, steps: int) -> None:
        """Waits until this run and those before it have completed so many."""
        deadline = time.monotonic() + PATIENCE
        while self.steps() < steps:
            assert time.monotonic() < deadline, f"no step {steps} in {PATIENCE} s"
            if any(process.poll() is not None for process in self.processes):
                raise AssertionError(f"ended before step {steps}: {self._said()}")
            time.sleep(0.002)

    def _said(self) -> list[str]:
        for process in self.processes:
            process.kill()
        return [process.communicate()[1] for process in self.processes]

    def ends(self, *, without: int | None = None) -> dict[int, tuple[int, str]]:
        """Exit code and errors of each process, once it has ended."""
        indices = [index for index in range(len(self.processes)) if index != without]
        errors = {index: self.processes[index].communicate(timeout=PATIENCE)[1] for index in indices}
        return {index: (self.processes[index].returncode, errors[index]) for index in indices}


def kill(run: Run, victim: int, signal_number: int = signal.SIGKILL) -> float:
    """Sends the signal and checks how the others end; returns the seconds until the last one has ended."""
    run.processes[victim].send_signal(signal_number)
    start = time.monotonic()
    count = len(run.processes)
    wanted = f"process {victim} of {count} was killed"
    if signal_number == signal.SIGSTOP:
        wanted = f"process {victim} of {count} is stuck"
    for index, (code, errors) in run.ends(without=victim).items():
        named = any(line.startswith(wanted) for line in errors.splitlines())
        assert code == 1 and named, f"process {index} ended with {code}:\n{errors}"
    return time.monotonic() - start


def finish(out: Path, count: int, *options: str) -> list[float]:
    """Lets a run finish; returns the losses of all steps."""
    with Run(out, count, *options) as run:
        for index, (code, errors) in run.ends().items():
            assert code == 0, f"process {index} ended with {code}:\n{errors}"
    return losses(run.log)


def kill_and_resume(out: Path, count: int, kills: int, seed: int) -> int:
    """The whole trial; returns how many steps it took. An AssertionError says what went wrong."""
    rng, steps = random.Random(seed), 6 * kills + 6
    options = ["--steps", str(steps), "--checkpoint-every", "2", "--timeout", "30", "--resume"]
    for _ in range(kills):
        with Run(out / "killed", count, *options) as run:
            victim = rng.randrange(count)
            run.wait_for(run.steps() + rng.randint(1, 4))
            time.sleep(rng.uniform(0, 0.6))
            behind = run.steps()
            during = ", half-way through a checkpoint" if _writes_checkpoint(out / "killed") else ""
            seconds = kill(run, victim)
            print(f"process {victim} killed behind step {behind}{during}: all ended in {seconds:.1f} s", flush=True)
    resumed, straight = (finish(out / name, count, *options) for name in ("killed", "straight"))
    assert len(straight) == steps and resumed == straight, "the losses differ from those of a run never killed"
    return steps


def _writes_checkpoint(out: Path) -> bool:
    return any("tmp" in path.name for path in (out / "zen" / "checkpoints").glob("*"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        steps = kill_and_resume(Path(folder), options.processes, options.kills, options.seed)
    print(f"{options.kills} kills, each a clean end; all {steps} losses are bitwise those of a run never killed")


if __name__ == "__main__":
    main()
