"""The transformer example on a tiny text: it learns with and without compression, and the scheme changes no bit."""

import unittest.mock

import numpy as np
import pytest

pytest.importorskip("flax")
pytest.importorskip("matplotlib")
pytest.importorskip("orbax.checkpoint")
pytest.importorskip("tqdm")

import example_runs
from example_runs import losses, metrics, refused, summary

from examples.common import app
from examples.transformer.main import EXAMPLE
from examples.transformer.task import _validation_loss
from zen_jax.transforms import feedback

pytestmark = [pytest.mark.promoting, pytest.mark.usefixtures("coarse_ladder")]  # flax promotes dtypes

# Of the parameters only the table of 4,200 x 32 is large enough to be synchronised on its own.
TINY = "--vocab 4200 --dim 32 --heads 2 --batch 2 --length 6 --steps 8 --workers 4".split()


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    return example_runs.books(tmp_path_factory.mktemp("books"))


@pytest.fixture(scope="module")
def listed():
    """A spy on what turns gradients into lists; the table counts as large."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feedback, "list_largest", listed := unittest.mock.Mock(side_effect=feedback.list_largest))
        patch.setattr(feedback, "DENSE_BELOW", 1 << 16)
        yield listed


@pytest.fixture(scope="module")
def trained(books, listed, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained")
    assert app.main(EXAMPLE, ["--data", str(books), "--out", str(out), *TINY, "--sync", "zen,dense_ordered"]) == 0
    assert not listed.called
    return out


def test_zen_gives_the_losses_of_a_dense_run_and_moves_fewer_bytes(trained):
    rows = summary(trained)
    assert rows["dense_ordered"]["steps_bitwise_equal"] == 8
    assert rows["zen"]["bytes_ratio"] < 1 / 3
    assert falls(trained / "zen")


def test_lists_give_the_losses_of_arrays(books, trained, listed, tmp_path):
    options = ["--data", str(books), "--out", str(tmp_path), *TINY, "--sync", "zen", "--compact"]
    assert app.main(EXAMPLE, options) == 0
    assert listed.called
    assert losses(tmp_path / "zen" / "metrics.jsonl") == losses(trained / "zen" / "metrics.jsonl")


def test_a_warm_up_sends_more_at_first_and_training_goes_on_with_lists(books, listed, tmp_path):
    options = ["--data", str(books), "--out", str(tmp_path), *TINY, "--sync", "zen"]
    assert app.main(EXAMPLE, [*options, "--warmup", "6", "--checkpoint-every", "6"]) == 0
    of_steps = metrics(tmp_path / "zen" / "metrics.jsonl")
    moved = [step["info"]["bytes_pushed"] for step in of_steps]
    assert moved[0] > 2 * moved[-1] and moved == sorted(moved, reverse=True)

    listed.reset_mock()
    assert app.main(EXAMPLE, [*options, "--compact", "--resume"]) == 0
    assert listed.called
    assert losses(tmp_path / "zen" / "metrics.jsonl") == [step["loss"] for step in of_steps]


@pytest.mark.parametrize(("before", "after"), [("40", "0"), ("0", "40")])
def test_a_run_does_not_resume_inside_another_warm_up(books, tmp_path, capsys, before, after):
    options = ["--data", str(books), "--out", str(tmp_path), *TINY, "--sync", "zen", "--steps", "2"]
    assert app.main(EXAMPLE, [*options, "--warmup", before, "--checkpoint-every", "2"]) == 0
    error = refused(app.main(EXAMPLE, [*options, "--warmup", after, "--resume"]), capsys)
    assert f"warmup={before}, but this run has warmup={after}" in error


def test_without_compression_it_learns_too(books, tmp_path, capsys):
    options = ["--data", str(books), "--out", str(tmp_path), *TINY, "--density", "1", "--sync", "dense"]
    assert app.main(EXAMPLE, options) == 0
    assert falls(tmp_path / "dense")
    assert "whole gradients" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--density 1.5", "--density 1.5 must be at most 1"),
        ("--compact --warmup 5", "leave it out with --warmup 5"),
        ("--density 1 --compact", "--density 1 trains without DGC: leave out --compact"),
        ("--heads 3", "--dim 32 must be a multiple of --heads 3"),
        ("--batch 9999", "need"),
    ],
)
def test_unusable_options_end_with_exit_code_2(books, tmp_path, capsys, options, message):
    code = app.main(EXAMPLE, ["--data", str(books), "--out", str(tmp_path), *TINY, *options.split()])
    assert message in refused(code, capsys)


def falls(run) -> bool:
    of_steps = losses(run / "metrics.jsonl")
    return np.mean(of_steps[-2:]) < np.mean(of_steps[:2])


def test_too_little_text_to_validate_on():
    assert _validation_loss(None, np.arange(5, dtype=np.int32), 32)(None) is None
