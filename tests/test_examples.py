"""What all examples share: a small one is trained, stopped, resumed and refused."""

import dataclasses
import errno
import itertools
import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("orbax.checkpoint")
pytest.importorskip("tqdm")

import example_runs
import jax
import numpy as np
import optax
from counting import EXAMPLE
from example_runs import assert_same_arrays, refused, saved_arrays, summary

import zen_jax as zen
from examples.common import app, metrics, prepared, text
from examples.common.checkpoint import Checkpoints
from examples.common.errors import errors_as_bad_input
from examples.common.workers import find_workers

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.promoting  # Orbax promotes dtypes


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """An uninterrupted run of 8 steps, which saves its end."""
    out = tmp_path_factory.mktemp("straight")
    assert run(out, "--steps", "8", "--checkpoint-every", "8") == 0
    return out


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A run of 2 steps that saves a checkpoint."""
    out = tmp_path_factory.mktemp("checkpoint")
    assert run(out, "--steps", "2", "--checkpoint-every", "2") == 0
    return out


@pytest.fixture
def kept(checkpoint, tmp_path):
    return shutil.copytree(checkpoint, tmp_path / "kept")


def test_storage_that_fails_for_a_while_is_no_bad_input(kept, monkeypatch):
    """Kubernetes starts again what ends with another exit code than 2; nobody is told to remove a checkpoint."""

    def fail(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    config = EXAMPLE.config(out=kept, workers=4)
    checkpoints = Checkpoints(kept / "zen" / "checkpoints", config, find_workers(4, 4), "")
    reads = {
        "read_bytes": lambda: text.read(kept / "words.txt"),
        "open": lambda: metrics.read(kept / "zen" / "metrics.jsonl", 1),
        "read_text": lambda: prepared.opened(kept, object, {}),
    }
    for name, read in reads.items():
        with monkeypatch.context() as patch, pytest.raises(OSError, match="Input/output error"), errors_as_bad_input():
            patch.setattr(Path, name, fail)
            read()
    monkeypatch.setattr(checkpoints._manager, "restore", fail)
    with pytest.raises(OSError, match="Input/output error"), errors_as_bad_input():
        checkpoints.check()


def run(out: Path, *options: str) -> int:
    return app.main(EXAMPLE, ["--out", str(out), "--sync", "zen", "--workers", "4", *options])


def losses(out: Path, sync: str = "zen") -> list[float]:
    return example_runs.losses(out / sync / "metrics.jsonl")


def test_a_planned_run_says_its_plan_and_changes_no_bit(tmp_path, straight, capsys):
    assert run(tmp_path, "--steps", "8", "--sync", "planned") == 0
    assert losses(tmp_path, "planned") == losses(straight)
    assert "plan for 4 workers" in capsys.readouterr().out


def test_rows_alone_are_refused_where_a_step_names_none(tmp_path, capsys):
    message = "--sync row_sparse: a step of tests.counting reads whole tables"
    assert message in refused(run(tmp_path, "--sync", "row_sparse"), capsys)


def test_a_file_cannot_hold_the_results(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert refused(run(tmp_path / "file"), capsys).endswith(f"{tmp_path / 'file'}: File exists: check the path\n")


def test_processes_that_start_others_are_none_of_several(tmp_path, capsys):
    code = run(tmp_path, "--processes", "4", "--coordinator", "host:7700")
    assert "--processes 4 starts all processes here: leave out --coordinator" in refused(code, capsys)


def test_a_run_whose_output_nobody_reads_ends(tmp_path, monkeypatch, capsys):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        monkeypatch.setattr("sys.stdout", pipe)
        assert run(tmp_path, "--steps", "1") == 1
    assert capsys.readouterr().err == ""


@pytest.mark.multiprocess
def test_three_processes_over_gloo_train_as_three_emulated_workers(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("XLA_FLAGS")  # one device in each process
    assert run(tmp_path / "real", "--workers", "3", "--processes", "3", "--sync", "zen,dense_ordered,dense") == 0
    assert run(tmp_path / "emulated", "--workers", "3") == 0
    assert summary(tmp_path / "real")["dense_ordered"]["steps_bitwise_equal"] == 8
    assert summary(tmp_path / "real")["dense"]["max_relative_loss_difference"] < 1e-4
    # Under vmap XLA may round a worker's own arithmetic differently.
    assert losses(tmp_path / "real") == pytest.approx(losses(tmp_path / "emulated"), rel=1e-6)
    ratios = [summary(tmp_path / way)["zen"]["bytes_ratio"] for way in ("real", "emulated")]
    assert ratios[0] == ratios[1] > 0


def test_a_resumed_run_is_bitwise_the_one_that_was_never_stopped(tmp_path, straight):
    assert run(tmp_path, "--steps", "7", "--checkpoint-every", "3") == 0  # its seventh step is lost
    assert run(tmp_path, "--steps", "8", "--checkpoint-every", "4", "--resume") == 0
    assert losses(tmp_path) == losses(straight)
    assert_same_arrays(tmp_path / "zen", straight / "zen", 8)
    assert summary(tmp_path)["zen"]["steps"] == 8


def test_resuming_before_the_first_checkpoint_starts_at_the_beginning(tmp_path, straight):
    assert run(tmp_path, "--resume") == 0
    assert losses(tmp_path) == losses(straight)


def test_the_metrics_of_a_step_are_on_disk_before_its_checkpoint(tmp_path, monkeypatch):
    on_disk, saved = [], []
    monkeypatch.setattr(metrics.os, "fsync", lambda file: on_disk.append(len(losses(tmp_path))))
    monkeypatch.setattr(Checkpoints, "save", lambda self, steps, state: saved.append((steps, on_disk[-1])))
    (tmp_path / "zen").mkdir()
    (tmp_path / "zen" / "metrics.jsonl").touch()
    assert run(tmp_path, "--steps", "4", "--checkpoint-every", "2") == 0
    assert saved == [(2, 2), (4, 4)]


def test_another_number_of_workers_goes_on_where_the_others_stopped(tmp_path, straight, monkeypatch):
    restored, restore = None, Checkpoints.restore

    def spy(self, fresh):
        nonlocal restored
        state = restore(self, fresh)
        restored = jax.tree.map(np.array, state)  # training donates it
        return state

    monkeypatch.setattr(Checkpoints, "restore", spy)
    assert run(tmp_path, "--steps", "4", "--checkpoint-every", "4") == 0
    assert run(tmp_path, "--steps", "8", "--workers", "2", "--resume") == 0
    before, after = losses(tmp_path)[:4], losses(tmp_path)[4:]
    assert before == losses(straight)[:4] and len(after) == 4
    assert np.allclose(after, losses(straight)[4:], rtol=0.3)  # other batches, but starting from the same parameters

    four, residual = saved_arrays(tmp_path / "zen", 4), ".sparsifier.residual['table']"
    two = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(restored)}
    assert four[residual].any()
    assert np.array_equal(two[residual], [four[residual].mean(axis=0)] * 2)  # what a mean over workers sends is kept
    for name, leaf in two.items():
        assert name.startswith((".sparsifier", ".carry")) or np.array_equal(leaf, four[name]), name


def test_a_host_told_to_end_at_the_last_step_of_a_scheme_starts_no_other(tmp_path, monkeypatch, capsys):
    steps = itertools.count(1)
    with monkeypatch.context() as told:
        told.setattr(app, "reached_preemption", lambda: next(steps) == 2)
        assert run(tmp_path, "--steps", "2", "--sync", "dense,zen") == app.TERMINATED
    assert "stopped after 2 steps of dense: start it again with --resume" in capsys.readouterr().out
    assert run(tmp_path, "--steps", "2", "--sync", "dense,zen", "--resume") == 0
    assert list(summary(tmp_path)) == ["dense", "zen"]


def test_a_run_that_diverges_ends_before_it_replaces_a_good_checkpoint(tmp_path, capsys):
    error = refused(run(tmp_path, "--learning-rate", "1e37", "--checkpoint-every", "1"), capsys)
    assert "the loss of step 2 is inf: check the data, or give a lower --learning-rate" in error
    assert "checkpoints/1 is intact" in error
    assert [path.name for path in (tmp_path / "zen" / "checkpoints").iterdir()] == ["1"]
    assert len(losses(tmp_path)) == 1


def test_parameters_that_are_not_finite_are_not_saved(tmp_path, capsys):
    def poisoned(config, data):
        return dataclasses.replace(EXAMPLE.task(config, data), optimizer=optax.scale(np.nan))

    options = ["--out", str(tmp_path), "--sync", "dense", "--workers", "2", "--checkpoint-every", "1"]
    error = refused(app.main(dataclasses.replace(EXAMPLE, task=poisoned), options), capsys)
    assert "the parameters after step 1 are NaN or infinite" in error and "no checkpoint was saved" in error
    assert not any((tmp_path / "dense" / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "holds checkpoints"),
        (["--resume", "--seed", str(1 << 32)], f"seed=0, but this run has seed={1 << 32}"),
        (["--resume", "--rows", "41"], "rows=40, but this run has rows=41"),
        (["--resume", "--learning-rate", "0.2"], "learning_rate=0.1"),
        (["--resume", "--data", "other"], "training_data="),
        (["--resume", "--steps", "1"], "was made after step 2, but --steps is 1"),
        (["--resume", "--steps", "1", "--sync", "dense,zen"], "was made after step 2, but --steps is 1"),
    ],
)
def test_another_runs_checkpoint_is_refused_and_kept(kept, capsys, options, message):
    before = losses(kept)
    assert message in refused(run(kept, *options), capsys)
    assert losses(kept) == before and (kept / "zen" / "checkpoints" / "2").is_dir()


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("checkpoints/2/about", "checkpoints/2 is damaged: remove it to continue from the one before"),
        ("checkpoints/2/about/metadata", "checkpoints/2 is damaged"),
        ("checkpoints/2/state", "checkpoints/2 is damaged"),
        ("checkpoints/2/state/_METADATA", "checkpoints/2 is damaged"),
        ("metrics.jsonl", "metrics.jsonl is damaged"),
    ],
)
def test_damage_is_named(kept, capsys, part, message):
    path = kept / "zen" / part
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])  # not whole lines of metrics
    assert message in refused(run(kept, "--resume"), capsys)


def test_missing_metrics_and_a_folder_that_cannot_be_written_are_named(kept, capsys, monkeypatch):
    (kept / "zen" / "metrics.jsonl").unlink()
    assert "metrics.jsonl is damaged (FileNotFoundError" in refused(run(kept, "--resume"), capsys)
    monkeypatch.setattr(app.os, "access", lambda path, mode: path != kept / "zen")
    assert f"{kept / 'zen'} cannot be written" in refused(run(kept, "--resume"), capsys)


def test_a_checkpoint_of_another_version_is_refused(kept, capsys, monkeypatch):
    monkeypatch.setattr(zen, "__version__", "9.9.9")
    error = refused(run(kept, "--resume"), capsys)
    assert "zen_jax=0" in error and "9.9.9" in error
