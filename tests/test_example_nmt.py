"""The translation example on a tiny bitext: it learns, zen changes no bit, and bad files are refused early."""

import gzip

import numpy as np
import pytest

pytest.importorskip("flax")
pytest.importorskip("matplotlib")
pytest.importorskip("orbax.checkpoint")
pytest.importorskip("tqdm")

from example_runs import losses, refused, summary

from examples.common import app
from examples.nmt import data
from examples.nmt.main import EXAMPLE
from examples.nmt.model import in_sentence

pytestmark = [pytest.mark.promoting, pytest.mark.usefixtures("coarse_ladder")]  # flax promotes dtypes

# Two tables of 4,100 x 64 are just large enough to be synchronised on their own.
TINY = "--vocab 4100 --dim 64 --hidden 16 --batch 4 --length 5 --negatives 32 --steps 8 --workers 4".split()
PAIRS = "Go !\tVa !\nTwo small fish.\tDeux petits poissons.\n"


@pytest.fixture
def tatoeba(tmp_path):
    (tmp_path / "train.tsv").write_text(PAIRS + "far too long a sentence for this\ttrop longue\n")
    (tmp_path / "valid.tsv.gz").write_bytes(gzip.compress(b"Two cats!\tDeux chats !\n"))
    return tmp_path


def test_zen_gives_the_losses_of_a_dense_run_and_moves_fewer_bytes(tmp_path, capsys):
    assert app.main(EXAMPLE, ["--out", str(tmp_path), *TINY, "--sync", "zen,dense_ordered,row_sparse"]) == 0
    rows = summary(tmp_path)
    assert rows["zen"]["bytes_ratio"] < 1 / 8
    assert rows["dense_ordered"]["steps_bitwise_equal"] == 8
    assert rows["row_sparse"]["max_relative_loss_difference"] < 1e-4
    of_steps = losses(tmp_path / "zen" / "metrics.jsonl")
    assert np.mean(of_steps[-2:]) < np.mean(of_steps[:2])
    assert 1 < rows["zen"]["validation"] < 4100
    assert "an invented language" in capsys.readouterr().out


def test_sentences_are_numbered_ended_and_filled_up(tatoeba):
    bitext = data.load(tatoeba, 100, length=4, seed=0)
    assert bitext.vocab == (2 + 6, 2 + 6)
    assert bitext.train.source.tolist() == [[4, 2, 0, 0, 0], [5, 7, 6, 3, 0]]  # equal counts: in alphabetical order
    assert bitext.valid.target.tolist() == [[4, 1, 2, 0, 0]]


def test_an_invented_sentence_turns_round():
    pairs = data.load(None, 100, length=6, seed=0).train
    for source, target in zip(pairs.source[:20], pairs.target[:20], strict=True):
        words = source[source != data.EOS]
        assert len(words) and target[: len(words)].tolist() == words[::-1].tolist()
        assert not target[len(words) :].any()


def test_a_sentence_counts_up_to_its_first_end():
    assert in_sentence(np.array([[5, 0, 0], [0, 0, 0], [5, 6, 0]])).tolist() == [
        [True, True, False],
        [True, False, False],
        [True, True, True],
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.tsv", None, "neither train.tsv nor train.tsv.gz"),
        ("valid.tsv", None, "neither valid.tsv nor valid.tsv.gz"),
        ("train.tsv", b"Go !\n", "line 1: expected 'source<TAB>target', but found 'Go !'"),
        ("train.tsv", b"Go !\tVa !\tOust !\n", "line 1: expected 'source<TAB>target'"),
        ("train.tsv", b"Go !\tVa \xe9\n", "not UTF-8"),
        ("train.tsv", b"", "line 1: expected 'source<TAB>target', but found ''"),
        ("train.tsv", b"far too long a sentence for this\tlong", "none of at most 5 words"),
        ("train.tsv", PAIRS.encode(), "too few"),
    ],
)
def test_unusable_files_end_with_exit_code_2(tmp_path, capsys, name, content, message):
    for file in ("train.tsv", "valid.tsv"):
        (tmp_path / file).write_text(PAIRS)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    code = app.main(EXAMPLE, ["--data", str(tmp_path), "--out", str(tmp_path / "out"), *TINY])
    assert message in refused(code, capsys)
