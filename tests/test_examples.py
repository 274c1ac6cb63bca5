"""What all examples share: a small one is trained, stopped, resumed and refused."""

import json
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("orbax.checkpoint")
pytest.importorskip("tqdm")

import numpy as np
from counting import EXAMPLE

import zen_jax as zen
from examples.common import app

pytestmark = pytest.mark.promoting  # Orbax promotes dtypes


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run of 8 steps that nothing stopped."""
    out = tmp_path_factory.mktemp("straight")
    assert run(out, "--steps", "8") == 0
    return losses(out)


def run(out: Path, *options: str) -> int:
    return app.main(EXAMPLE, ["--out", str(out), "--sync", "zen", "--workers", "4", *options])


def losses(out: Path, sync: str = "zen") -> list[float]:
    return [json.loads(line)["loss"] for line in (out / sync / "metrics.jsonl").read_text().splitlines()]


def test_a_planned_run_says_its_plan_and_changes_no_bit(tmp_path, straight, capsys):
    assert run(tmp_path, "--steps", "8", "--sync", "planned") == 0
    assert losses(tmp_path, "planned") == straight
    assert "plan for 4 workers" in capsys.readouterr().out


def test_rows_alone_are_refused_where_a_step_names_none(tmp_path, capsys):
    assert run(tmp_path, "--sync", "row_sparse") == 2
    error = capsys.readouterr().err
    assert "--sync row_sparse: a step of tests.counting reads whole tables" in error and error.count("\n") == 1


def test_processes_that_start_others_are_none_of_several(tmp_path, capsys):
    assert run(tmp_path, "--processes", "4", "--coordinator", "host:7700") == 2
    assert "--processes 4 starts all processes here: leave out --coordinator" in capsys.readouterr().err


def test_a_resumed_run_is_bitwise_the_one_that_was_never_stopped(tmp_path, straight):
    assert run(tmp_path, "--steps", "7", "--checkpoint-every", "3") == 0  # its seventh step is lost
    assert run(tmp_path, "--steps", "8", "--checkpoint-every", "3", "--resume") == 0
    assert losses(tmp_path) == straight
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["runs"][0]["steps"] == 8


def test_resuming_before_the_first_checkpoint_starts_at_the_beginning(tmp_path, straight):
    assert run(tmp_path, "--resume") == 0
    assert losses(tmp_path) == straight


def test_another_number_of_workers_goes_on_where_the_others_stopped(tmp_path, straight):
    assert run(tmp_path, "--steps", "4", "--checkpoint-every", "4") == 0
    assert run(tmp_path, "--steps", "8", "--workers", "2", "--resume") == 0
    before, after = losses(tmp_path)[:4], losses(tmp_path)[4:]
    assert before == straight[:4] and len(after) == 4
    assert np.allclose(after, straight[4:], rtol=0.3)  # other batches, but from the same parameters on


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "holds checkpoints"),
        (["--resume", "--rows", "41"], "rows=40, but this run has rows=41"),
        (["--resume", "--learning-rate", "0.2"], "learning_rate=0.1"),
        (["--resume", "--data", "other"], "training_data="),
        (["--resume", "--steps", "1"], "lies behind step 2, but --steps is 1"),
        (["--resume", "--steps", "1", "--sync", "dense,zen"], "lies behind step 2, but --steps is 1"),
    ],
)
def test_another_runs_checkpoint_is_refused_and_kept(tmp_path, capsys, options, message):
    assert run(tmp_path, "--steps", "2", "--checkpoint-every", "2") == 0
    before = losses(tmp_path)
    assert run(tmp_path, *options) == 2
    assert message in capsys.readouterr().err
    assert losses(tmp_path) == before and (tmp_path / "zen" / "checkpoints" / "2").is_dir()


def test_a_checkpoint_of_another_version_is_refused(tmp_path, capsys, monkeypatch):
    assert run(tmp_path, "--steps", "2", "--checkpoint-every", "2") == 0
    monkeypatch.setattr(zen, "__version__", "9.9.9")
    assert run(tmp_path, "--resume") == 2
    assert "zen_jax=0" in (error := capsys.readouterr().err) and "9.9.9" in error
