"""Prepared data sets train to the same bits, are read in part, and are refused if they do not fit."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flax")
pytest.importorskip("matplotlib")
pytest.importorskip("orbax.checkpoint")
pytest.importorskip("tqdm")

import example_runs
from example_runs import refused

from examples.common import app, prepared, text
from examples.deepfm import data as deepfm
from examples.lm.main import EXAMPLE
from examples.nmt import data as nmt
from examples.text_classification import data as text_classification

pytestmark = [pytest.mark.promoting, pytest.mark.usefixtures("coarse_ladder")]  # flax promotes dtypes

TINY = "--vocab 50 --dim 8 --hidden 8 --batch 2 --unroll 5 --negatives 8 --workers 4 --sync dense".split()


@pytest.fixture
def books(tmp_path):
    folder = tmp_path / "books"
    folder.mkdir()
    words = np.random.default_rng(0).integers(0, 60, 4000)
    (folder / "a.txt").write_text("\n".join(" ".join(f"w{i}" for i in line) for line in words.reshape(-1, 10)))
    return folder


@pytest.fixture
def ready(books, tmp_path):
    """The books, prepared with --vocab 50."""
    assert run(tmp_path, "--data", str(books), "--prepare", str(tmp_path / "ready")) == 0
    return tmp_path / "ready"


def run(tmp_path, *options: str) -> int:
    return app.main(EXAMPLE, ["--out", str(tmp_path / "out"), *TINY, *options])


def test_training_goes_on_from_prepared_text_to_the_bit(books, ready, tmp_path):
    def losses(name, *options):
        assert app.main(EXAMPLE, ["--out", str(tmp_path / name), *TINY, "--checkpoint-every", "2", *options]) == 0
        return example_runs.losses(tmp_path / name / "dense" / "metrics.jsonl")

    whole = losses("whole", "--data", str(books), "--steps", "4")
    assert losses("part", "--data", str(books), "--steps", "2") == whole[:2]
    assert losses("part", "--data", str(ready), "--steps", "4", "--resume") == whole


@pytest.mark.parametrize(
    "load",
    [
        lambda: deepfm.load(None, seed=0),
        lambda: nmt.load(None, 100, length=6, seed=0),
        lambda: text_classification.load(None, vocab=900, length=6, seed=0),
        lambda: text.Corpus("too short to hold any out", ["a"], np.arange(5, dtype=np.int32), np.zeros(0, np.int32)),
    ],
    ids=["deepfm", "nmt", "text_classification", "corpus"],
)
def test_what_is_opened_is_what_was_written(tmp_path, load):
    dataset = load()
    prepared.write(tmp_path / "ready", dataset, {})
    again, digest = prepared.opened(tmp_path / "ready", type(dataset), {})
    assert digest == prepared.digest(dataset) == prepared.digest(again)
    np.testing.assert_equal(prepared._flat(again), prepared._flat(dataset))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/smaps")
def test_a_process_reads_the_rows_of_its_own_workers_alone(tmp_path):
    words = np.arange(1 << 22, dtype=np.int32)
    prepared.write(tmp_path, text.Corpus("words", ["a"], words, words[:9]), {})
    corpus, _ = prepared.opened(tmp_path, text.Corpus, {})
    streams = text.streams(corpus.train, workers=8, batch=1, unroll=1 << 16)
    batches = [text.window(streams, step, 1 << 16)[[5]] for step in range(7)]
    assert np.concatenate(batches, axis=2).size > 0.8 * words.size / 8
    # The kernel maps a little ahead of what is read.
    assert 0.8 / 8 < resident(tmp_path / "train.npy") / words.nbytes < 1.2 / 8


def resident(path) -> int:
    """Bytes of a file that this process has read through a mapping."""
    total, here = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split(maxsplit=1)
        if not name.endswith(":"):
            here = line.endswith(str(path))
        elif here and name == "Rss:":
            total += int(rest[0].split()[0]) << 10
    return total


def test_data_of_other_options_are_refused(ready, tmp_path, capsys):
    error = refused(run(tmp_path, "--data", str(ready), "--vocab", "40"), capsys)
    assert "prepared with --vocab 50, but this run has 40: give --vocab 50" in error


def test_another_examples_data_are_refused(ready):
    with pytest.raises(
        ValueError, match=r"prepared as examples\.common\.text\.Corpus, but .* examples\.nmt\.data\.Bit"
    ):
        prepared.opened(ready, nmt.Bitext, {})


def test_a_folder_in_use_is_kept(books, ready, tmp_path, capsys):
    error = refused(run(tmp_path, "--data", str(books), "--prepare", str(ready)), capsys)
    assert "already holds a prepared data set" in error


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("prepared.json", b"{", "is damaged"),
        ("prepared.json", b"[]", "is damaged"),
        ("prepared.json", b'{"kind": "examples.common.text.Corpus", "options": {"vocab": 50}}', "is damaged: 'arrays'"),
        ("train.npy", None, "is damaged"),
        ("train.npy", b"", "is damaged"),
        ("train.npy", b"\x93NUMPY\x01\x00", "is damaged"),
        ("valid.npy", "another", "is damaged: valid.npy is <f8 [3], not <i4"),
    ],
)
def test_damaged_data_are_refused(ready, tmp_path, capsys, name, content, message):
    if content is None:
        (ready / name).unlink()
    elif content == "another":
        np.save(ready / name, np.zeros(3))
    else:
        (ready / name).write_bytes(content)
    error = refused(run(tmp_path, "--data", str(ready)), capsys)
    assert message in error and "Prepare the data again." in error
