"""The comment classifier on a few comments: it learns, zen changes no bit, and bad data is refused early."""

import gzip

import numpy as np
import pytest

pytest.importorskip("flax")
pytest.importorskip("matplotlib")
pytest.importorskip("orbax.checkpoint")
pytest.importorskip("tqdm")

from example_runs import losses, refused, summary

from examples.common import app
from examples.text_classification import data
from examples.text_classification.main import EXAMPLE

pytestmark = [pytest.mark.promoting, pytest.mark.usefixtures("coarse_ladder")]  # flax promotes dtypes

# A table of 4,200 x 64 is just large enough to be synchronised on its own.
TINY = "--vocab 4200 --dim 64 --hidden 8 --length 6 --batch 8 --steps 8 --workers 4".split()


def write(folder, **files: str):
    """Writes the files of a data set; `None` leaves a file out."""
    whole = {"labels": "joy\nanger\n", "train": "0\tHow nice!\n0,1\tOh no, nice\n", "valid": "1\tOh\n"} | files
    for name, text in whole.items():
        if text is not None and name == "labels":
            (folder / "labels.txt").write_text(text)
        elif text is not None:
            (folder / f"{name}.tsv.gz").write_bytes(gzip.compress(text.encode()))
    return folder


@pytest.fixture(scope="module")
def comments(tmp_path_factory):
    """4,200 words or more; the first word of a comment decides its label."""
    rng = np.random.default_rng(0)
    lines = [
        f"{label}\t{'good' if label else 'bad'} " + " ".join(f"w{i}" for i in rng.integers(0, 9000, 9))
        for label in rng.integers(0, 2, 1000)
    ]
    text = "".join(line + "\n" for line in lines)
    return write(tmp_path_factory.mktemp("comments"), train=text, valid=text[:2000].rpartition("\n")[0])


def test_zen_gives_the_losses_of_a_dense_run_and_moves_fewer_bytes(comments, tmp_path):
    options = ["--data", str(comments), "--out", str(tmp_path), *TINY, "--sync", "zen,dense_ordered,row_sparse"]
    assert app.main(EXAMPLE, options) == 0
    rows = summary(tmp_path)
    assert rows["dense_ordered"]["steps_bitwise_equal"] == 8
    assert rows["zen"]["bytes_ratio"] < 1 / 4 and rows["zen"]["dense_share"] < 0.1
    of_steps = losses(tmp_path / "zen" / "metrics.jsonl")
    # From the second update on, a lazy Adam leaves alone the rows that Adam's momentum moves.
    assert losses(tmp_path / "row_sparse" / "metrics.jsonl")[:2] == pytest.approx(of_steps[:2], rel=1e-5)
    assert of_steps[7] < of_steps[0] and rows["zen"]["validation"] > 0.5


def test_comments_are_words_in_lower_case_with_an_end_and_their_labels(tmp_path):
    dataset = data.load(write(tmp_path), vocab=99, length=4, seed=0)
    # <eos> 0, <unk> 1, nice 2, then "!" "," how no oh, equally frequent, in the order of their characters.
    assert dataset.vocab == 8
    assert dataset.train.words.tolist() == [[5, 2, 3, 0], [7, 6, 4, 2]]
    assert dataset.train.count.tolist() == [4, 4]
    assert dataset.train.targets.tolist() == [[1, 0], [1, 1]]
    assert dataset.valid.words.tolist() == [[7, 0, 0, 0]] and dataset.valid.count.tolist() == [2]


def test_rare_words_become_unknown(tmp_path):
    assert data.load(write(tmp_path), vocab=3, length=4, seed=0).train.words.tolist() == [[1, 2, 1, 0], [1, 1, 1, 2]]


def test_half_of_a_synthetic_comment_belongs_to_its_labels():
    dataset = data.load(None, vocab=20_000, length=8, seed=0)
    train = dataset.train
    assert train.words.min() >= 0 and train.words.max() < dataset.vocab == 20_000
    assert set(train.targets.sum(axis=1)) == {1, 2}
    theirs = np.take_along_axis(train.targets, train.words % train.targets.shape[1], axis=1)
    assert 0.5 < theirs.mean() < 0.6


def test_micro_f1_counts_pairs_of_a_comment_and_a_label():
    predicted, targets = np.array([[1, 1, 0], [0, 0, 0]]), np.array([[1, 0, 0], [0, 1, 0]])
    assert data.micro_f1(predicted, targets) == pytest.approx(2 * 1 / (2 + 2))
    assert data.micro_f1(np.zeros((1, 2)), np.zeros((1, 2))) == 0


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"labels": None}, "labels.txt"),
        ({"valid": None}, "valid.tsv.gz"),
        ({"train": "0\tgood\n2\tbad\n"}, "train.tsv.gz, line 2: expected label ids below 2"),
        ({"labels": "great joy\nsadness\n", "train": "2\tbad\n"}, "train.tsv.gz, line 1: expected label ids below 2"),
        ({"valid": "0 good\n"}, "valid.tsv.gz, line 1: expected label ids"),
        ({"valid": "joy\tgood\n"}, "valid.tsv.gz, line 1: expected label ids"),
        ({}, "2 training examples are too few for a step of 8 workers"),
    ],
)
def test_unusable_data_ends_with_exit_code_2(tmp_path, capsys, files, message):
    write(tmp_path, **files)
    assert message in refused(app.main(EXAMPLE, ["--data", str(tmp_path), "--out", str(tmp_path / "out")]), capsys)
