"""The transformer example on a tiny text: it learns compressed and not, and the scheme changes no bit of it."""

import json
import unittest.mock

import numpy as np
import pytest

pytest.importorskip("flax")
pytest.importorskip("matplotlib")
pytest.importorskip("tqdm")

from examples.common import app
from examples.transformer.main import EXAMPLE
from examples.transformer.task import _validation_loss
from zen_jax.transforms import feedback

pytestmark = [pytest.mark.promoting, pytest.mark.usefixtures("coarse_ladder")]  # flax promotes dtypes

# Of the parameters only the table of 4,200 x 32 is large enough to be synchronised on its own.
TINY = "--vocab 4200 --dim 32 --heads 2 --batch 2 --length 6 --steps 8 --workers 4".split()


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    rng = np.random.default_rng(0)
    words = np.array([f"w{i}" for i in range(6000)])
    lines = [" ".join(words[rng.zipf(1.3, 20) % len(words)]) for _ in range(200)] + [" ".join(words)]
    folder = tmp_path_factory.mktemp("books")
    (folder / "train.txt").write_text("\n".join(lines))
    (folder / "valid.txt").write_text("\n".join(lines[:60]))
    return folder


def test_zen_gives_the_losses_of_a_dense_run_and_moves_fewer_bytes(books, tmp_path):
    assert app.main(EXAMPLE, ["--data", str(books), "--out", str(tmp_path), *TINY, "--sync", "zen,dense_ordered"]) == 0
    runs = {row["sync"]: row for row in json.loads((tmp_path / "summary.json").read_text())["runs"]}
    assert runs["dense_ordered"]["steps_bitwise_equal"] == 8
    assert runs["zen"]["bytes_ratio"] < 1 / 3
    assert falls(tmp_path / "zen")


def test_lists_give_the_losses_of_arrays(books, tmp_path, monkeypatch):
    listed = unittest.mock.Mock(side_effect=feedback.list_largest)
    monkeypatch.setattr(feedback, "list_largest", listed)
    monkeypatch.setattr(feedback, "DENSE_BELOW", 1 << 16)
    for out, way in ((tmp_path / "arrays", []), (tmp_path / "lists", ["--compact"])):
        assert not listed.called
        assert app.main(EXAMPLE, ["--data", str(books), "--out", str(out), *TINY, "--sync", "zen", *way]) == 0
    assert listed.called
    assert losses(tmp_path / "arrays" / "zen") == losses(tmp_path / "lists" / "zen")


def test_a_warm_up_sends_more_at_first(books, tmp_path):
    options = ["--data", str(books), "--out", str(tmp_path), *TINY, "--sync", "zen", "--warmup", "6"]
    assert app.main(EXAMPLE, options) == 0
    metrics = [json.loads(line) for line in (tmp_path / "zen" / "metrics.jsonl").read_text().splitlines()]
    moved = [row["info"]["bytes_pushed"] for row in metrics]
    assert moved[0] > 2 * moved[-1] and moved == sorted(moved, reverse=True)


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
        ("--heads 3", "--dim 32 must be a multiple of --heads 3"),
        ("--batch 9999", "need"),
    ],
)
def test_unusable_options_end_with_exit_code_2(books, tmp_path, capsys, options, message):
    assert app.main(EXAMPLE, ["--data", str(books), "--out", str(tmp_path), *TINY, *options.split()]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def losses(run) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def falls(run) -> bool:
    return np.mean(losses(run)[-2:]) < np.mean(losses(run)[:2])


def test_too_little_text_to_validate_on():
    assert _validation_loss(None, np.arange(5, dtype=np.int32), 32)(None) is None
