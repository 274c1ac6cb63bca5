"""The scripts of examples/multihost start what they say, here with launchers that put every process on this machine."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flax")
pytest.importorskip("matplotlib")
pytest.importorskip("orbax.checkpoint")
pytest.importorskip("tqdm")

import counting
import jax
import numpy as np
from kills import losses

from examples.common import app, launch
from examples.common.rank import Rank, rank_from
from examples.lm.main import EXAMPLE
from zen_jax.cli.launch import _FORWARDED

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "multihost"

FAKES = {
    "scontrol": '[[ $* == "show hostnames node[1-2]" ]] && printf "localhost\\nelsewhere\\n"',
    "srun": """
[[ $1 == --kill-on-bad-exit=1 ]] && shift
export SLURM_NTASKS=2 SLURM_STEP_NODELIST=localhost SLURM_LOCALID=0
SLURM_PROCID=0 "$@" & first=$!
SLURM_PROCID=1 "$@" && wait $first
""",
    "ssh": """
[[ "$1 $2 $3" == "-tt -o BatchMode=yes" && $4 == me@localhost ]] && cd / && env -i "PATH=$PATH" bash -c "$5"
""",
}


@pytest.fixture
def environment(tmp_path):
    """An environment with launchers first on PATH that know no other machine."""
    for name, body in FAKES.items():
        fake = tmp_path / "bin" / name
        fake.parent.mkdir(exist_ok=True)
        fake.write_text(f"#!/bin/bash\n{body}\n")
        fake.chmod(0o755)
    path = f"{fake.parent}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "PYTHON": sys.executable, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}


@pytest.mark.multiprocess
def test_slurm(tmp_path, environment):
    environment |= {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NODELIST": "node[1-2]"}
    trains([FOLDER / "slurm.sbatch"], environment, tmp_path / "out")


@pytest.mark.multiprocess
def test_ssh(tmp_path, environment):
    environment |= {"PORT": str(launch.free_ports()), "JAX_NUM_CPU_DEVICES": "2"}
    trains([FOLDER / "ssh.sh", "me@localhost me@localhost"], environment, tmp_path / "the results' folder", workers=4)


def trains(start: list, environment: dict[str, str], out: Path, workers: int = 2) -> None:
    command = ["bash", *start, "tests.counting", "--steps", "4", "--sync", "zen", "--out", out]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    assert f"{workers} workers on 2 processes" in ran.stdout and len(losses(out / "zen" / "metrics.jsonl")) == 4


@pytest.mark.multiprocess
def test_machines_of_several_devices_train_as_emulated_workers(tmp_path, environment):
    """Two processes of two devices each sum among themselves first; every scheme but psum gives the same bits."""

    def train(schemes, *options, devices):
        command = [sys.executable, "-m", "tests.counting", "--sync", ",".join(schemes), *options]
        flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
        ran = subprocess.run(command, cwd=ROOT, env=environment | flags, capture_output=True, text=True, timeout=240)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout, [losses(Path(options[-1]) / scheme / "metrics.jsonl") for scheme in schemes]

    options = ["--processes", "2", "--machines", "2", "--out", str(tmp_path / "machines")]
    said, machines = train(["zen", "dense_ordered", "planned"], *options, devices=2)
    assert "4 workers on 2 processes, 2 machines" in said and "plan for 2 hosts with 2 devices each" in said
    assert machines[0] == machines[1] == machines[2]
    _, [emulated] = train(["zen"], "--workers", "4", "--out", str(tmp_path / "emulated"), devices=1)
    np.testing.assert_allclose(machines[0], emulated, 1e-5)


@pytest.mark.parametrize(("machines", "message"), [("3", "must divide the number of devices"), ("2", "emulated")])
def test_machines_that_cannot_be(tmp_path, machines, message, monkeypatch, capsys):
    monkeypatch.setattr(jax, "device_count", lambda: 4 if machines == "3" else 1)
    assert app.main(counting.EXAMPLE, ["--machines", machines, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.multiprocess
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ssh_ends_what_it_started(tmp_path, environment, number):
    fake = 'trap "exec touch $1/ended$$" TERM; touch "$1/started$$"; while sleep 0.1; do :; done'
    (tmp_path / "bin" / "ssh").write_text(f"#!/bin/bash\nset -- {tmp_path}\n{fake}\n")
    # Tests that run in the background ignore Ctrl-C, and so would what they start.
    command = ["env", "--default-signal=INT", "bash", FOLDER / "ssh.sh", "host1 host2", "examples.lm.main"]
    script = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    wait_for(tmp_path, "started*")
    os.killpg(script.pid, number) if number == signal.SIGINT else script.terminate()  # Ctrl-C goes to all
    assert script.wait(30) == -number
    wait_for(tmp_path, "ended*")


def wait_for(folder: Path, pattern: str) -> None:
    deadline = time.monotonic() + 30
    while len([*folder.glob(pattern)]) < 2:
        assert time.monotonic() < deadline, pattern
        time.sleep(0.05)


def test_ssh_passes_on_what_zen_jax_bench_does():
    [names] = re.findall(r"^pattern='\^\((.*)\)'$", (FOLDER / "ssh.sh").read_text(), re.MULTILINE)
    assert {name.removesuffix("$") for name in names.split("|")} == set(_FORWARDED)


@pytest.mark.multiprocess
def test_ssh_reports_a_failure(environment):
    command = ["bash", FOLDER / "ssh.sh", "me@localhost me@localhost", "no.such.module"]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1 and "no.such" in ran.stderr


def test_kubernetes(tmp_path, monkeypatch, capsys):
    yaml = pytest.importorskip("yaml")
    service, job = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
    pods = job["spec"]["template"]["spec"]
    [container] = pods["containers"]
    count = job["spec"]["completions"]
    rules = job["spec"]["podFailurePolicy"]["rules"]
    assert [(rule["action"], rule["onExitCodes"]["values"]) for rule in rules] == [
        ("FailJob", [2]),
        ("Ignore", [app.TERMINATED]),
    ]
    assert job["spec"]["parallelism"] == count and job["spec"]["completionMode"] == "Indexed"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert service["spec"]["clusterIP"] == "None" and service["metadata"]["name"] == pods["subdomain"]

    for variable in container["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "3")
    coordinator = f"{job['metadata']['name']}-0.{pods['subdomain']}:7700"
    assert rank_from(None, None, None) == Rank(coordinator, count, 3)

    for variable in container["env"]:
        monkeypatch.delenv(variable["name"])
    assert container["command"] == ["python", "-m", EXAMPLE.name]
    assert app.main(EXAMPLE, [*container["args"], "--data", "/no/books", "--out", str(tmp_path)]) == 2
    assert "/no/books does not exist" in capsys.readouterr().err
