"""The language model example on a tiny text: it learns, zen changes no bit, and bad input is refused early."""

import numpy as np
import pytest

pytest.importorskip("flax")
pytest.importorskip("matplotlib")
pytest.importorskip("orbax.checkpoint")
pytest.importorskip("tqdm")

import example_runs
from example_runs import losses, refused, summary

from examples.common import app, text
from examples.lm.config import Config
from examples.lm.main import EXAMPLE
from examples.lm.task import language_modelling, load

pytestmark = [pytest.mark.promoting, pytest.mark.usefixtures("coarse_ladder")]  # flax promotes dtypes

# Two tables of 4,100 x 64 are just large enough to be synchronised on their own.
TINY = "--vocab 4100 --dim 64 --hidden 16 --batch 2 --unroll 5 --negatives 32 --steps 8 --workers 4".split()


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    return example_runs.books(tmp_path_factory.mktemp("books"))


def test_zen_gives_the_losses_of_a_dense_run_and_moves_fewer_bytes(books, tmp_path, capsys):
    assert (
        app.main(
            EXAMPLE,
            ["--data", str(books), "--out", str(tmp_path), *TINY, "--sync", "zen,dense_ordered,dense,row_sparse"],
        )
        == 0
    )
    rows = summary(tmp_path)
    assert rows["zen"]["bytes_ratio"] < 1 / 8 and rows["zen"]["imbalance_push"] >= 1
    assert rows["dense_ordered"]["steps_bitwise_equal"] == 8
    assert rows["dense"]["max_relative_loss_difference"] < 1e-4
    assert rows["row_sparse"]["max_relative_loss_difference"] < 1e-4
    of_steps = losses(tmp_path / "zen" / "metrics.jsonl")
    assert len(of_steps) == 8 and of_steps[7] < of_steps[0]
    assert (tmp_path / "curves.png").stat().st_size > 1000
    assert "dense_ordered" in capsys.readouterr().out


def test_text_without_names_is_tokenised_and_its_tail_held_out(tmp_path):
    (tmp_path / "a.md").write_text("One fish, two fish.\n\n" * 100)
    corpus = text.load_corpus(tmp_path, 100)
    assert corpus.words[:3] == ["<eos>", "<unk>", "fish"]
    assert [corpus.words[i] for i in corpus.train[:7]] == ["One", "fish", ",", "two", "fish", ".", "<eos>"]
    assert len(corpus.train) == 96 * 7 and len(corpus.valid) == 4 * 7


def test_rare_words_become_unknown(tmp_path):
    (tmp_path / "train.txt").write_text("a a a b b c")
    corpus = text.load_corpus(tmp_path / "train.txt", 4)
    assert corpus.words == ["<eos>", "<unk>", "a", "b"]
    assert corpus.train.tolist() == [2, 2, 2, 3, 3, 1, 0]


def test_programs_called_train_are_text_like_any_other(tmp_path):
    (tmp_path / "train.py").write_text("import this\n" * 50)
    (tmp_path / "a.md").write_text("One fish.\n" * 50)
    assert len(text.load_corpus(tmp_path, 100).train) == 48 * (3 + 4)


def test_windows_follow_each_other_and_start_again():
    rows = text.streams(np.arange(20), 2, 1, 3)
    assert [text.window(rows, step, 3)[0, 0].tolist() for step in range(4)] == [
        [0, 1, 2, 3],
        [3, 4, 5, 6],
        [6, 7, 8, 9],
        [0, 1, 2, 3],
    ]


def test_a_process_builds_the_rows_of_its_own_workers_alone(books):
    config = Config(data=books, vocab=50, dim=4, hidden=4, workers=4, batch=2, unroll=5)
    task = language_modelling(config, load(config))
    whole = task.batch(3, range(4))
    assert whole.shape == (4, 2, 6)
    for workers in ([2], [1, 3]):
        assert np.array_equal(task.batch(3, workers), whole[workers])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("book.txt", b"caf\xe9", "not UTF-8"),
        ("book.txt.gz", b"no gzip", "cannot read"),
        ("book.txt", b"", "no words"),
        ("book.txt", b"too short", "need"),
        ("train.txt.gz", b"", "has train.txt.gz, but no file named valid*: add one, or rename train.txt.gz"),
        ("valid.md", b"", "has valid.md, but no file named train*"),
        ("image.png", b"", "holds no text files"),
    ],
)
def test_unusable_text_ends_with_exit_code_2(tmp_path, capsys, name, content, message):
    (tmp_path / name).write_bytes(content)
    assert message in refused(app.main(EXAMPLE, ["--data", str(tmp_path), "--out", str(tmp_path / "out")]), capsys)


def test_the_standard_library_is_text():
    corpus = text.load_corpus(None, 20_000)
    assert "Python's standard library" in corpus.source and len(corpus.train) > 1e6 and len(corpus.valid) > 1e4


def test_missing_text_ends_with_exit_code_2(tmp_path, capsys):
    code = app.main(EXAMPLE, ["--data", str(tmp_path / "nowhere"), "--out", str(tmp_path)])
    assert "does not exist" in refused(code, capsys)


@pytest.mark.parametrize(
    "options",
    ["--sync zne", "--sync zen,zen", "--steps 0", "--workers x", "--learning-rate -1", "--batch -3", "--nonsense"],
)
def test_unusable_options_end_with_exit_code_2(options, capsys):
    with pytest.raises(SystemExit) as stop:
        app.main(EXAMPLE, options.split())
    assert stop.value.code == 2 and "error:" in capsys.readouterr().err


@pytest.mark.multiprocess
def test_workers_and_processes_must_agree(capfd, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")  # one device a process
    code = app.main(EXAMPLE, ["--processes", "2", "--workers", "3"])
    assert "--workers 3 must be 2, one on each device of the 2 processes" in refused(code, capfd)
