"""Comments as word ids, each with its labels: GoEmotions, or a synthetic set."""

import dataclasses
import itertools
import re
from pathlib import Path

import numpy as np

from examples.common.errors import BadInput
from examples.common.synthetic import zipf
from examples.common.text import EOS, encode, read, vocabulary

_WORD = re.compile(r"\w+|[^\w\s]")
_SYNTHETIC_COMMENTS, _SYNTHETIC_LABELS, _SYNTHETIC_WORDS = 40_000, 28, 20_000


@dataclasses.dataclass(frozen=True)
class Comments:
    """What the model reads and what it is to predict."""

    words: np.ndarray  # ids, int32 [comments, length]
    count: np.ndarray  # how many of them belong to the comment, int32 [comments], at least 1
    targets: np.ndarray  # float32 [comments, labels], 1 for each label that a comment has

    def __getitem__(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.words[rows], self.count[rows], self.targets[rows]


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Training and validation comments over a vocabulary of `vocab` words."""

    source: str
    vocab: int
    train: Comments
    valid: Comments


def load(folder: Path | None, vocab: int, length: int, seed: int) -> Dataset:
    """The data set in `folder`, or a synthetic one; raises BadInput if it cannot be used."""
    return synthetic(vocab, length, seed) if folder is None else _goemotions(folder, vocab, length)


def micro_f1(predicted: np.ndarray, targets: np.ndarray) -> float:
    """F1 over all (comment, label) pairs: 2 hits / (predicted + true), 0 if there are none."""
    predicted, targets = predicted > 0.5, targets > 0.5
    return float(2 * np.sum(predicted & targets) / max(1, predicted.sum() + targets.sum()))


def synthetic(vocab: int, length: int, seed: int) -> Dataset:
    """Words distributed by Zipf's law, half of each comment drawn from the few that belong to its labels."""
    rng = np.random.default_rng(seed)
    vocab = min(vocab, _SYNTHETIC_WORDS)
    shape = (_SYNTHETIC_COMMENTS, length)
    labels = rng.integers(0, _SYNTHETIC_LABELS, (_SYNTHETIC_COMMENTS, 2))
    words = zipf(rng, vocab, shape)
    theirs = words % 16 * _SYNTHETIC_LABELS + labels[:, np.arange(length) % 2]
    words = np.where(rng.random(shape) < 0.5, theirs, words).clip(0, vocab - 1).astype(np.int32)
    targets = np.zeros((_SYNTHETIC_COMMENTS, _SYNTHETIC_LABELS), np.float32)
    np.put_along_axis(targets, labels, 1, axis=1)
    comments = Comments(words, rng.integers(1, length + 1, _SYNTHETIC_COMMENTS).astype(np.int32), targets)
    cut = _SYNTHETIC_COMMENTS * 9 // 10
    source = "synthetic, drawn with NumPy: half of a comment's words belong to its labels"
    return Dataset(source, vocab, Comments(*comments[:cut]), Comments(*comments[cut:]))


def _goemotions(folder: Path, vocab: int, length: int) -> Dataset:
    labels = read(folder / "labels.txt").strip().splitlines()
    train, valid = (_lines(folder / name, len(labels)) for name in ("train.tsv.gz", "valid.tsv.gz"))
    words = vocabulary(itertools.chain.from_iterable(words for words, _ in train), vocab)
    ids = {word: i for i, word in enumerate(words)}

    def encoded(lines: list[tuple[list[str], list[int]]]) -> Comments:
        comments = Comments(
            np.zeros((len(lines), length), np.int32),
            np.array([min(len(words), length) for words, _ in lines], np.int32),
            np.zeros((len(lines), len(labels)), np.float32),
        )
        for i, (words, true) in enumerate(lines):
            comments.words[i, : comments.count[i]] = encode(words[:length], ids)
            comments.targets[i, true] = 1
        return comments

    return Dataset(str(folder), len(words), encoded(train), encoded(valid))


def _lines(path: Path, labels: int) -> list[tuple[list[str], list[int]]]:
    """The words of each line in lower case, followed by <eos>, and its label ids."""
    comments = []
    for number, line in enumerate(read(path).removesuffix("\n").split("\n"), 1):
        true, tab, text = line.partition("\t")
        if not (tab and all(label.isdecimal() and int(label) < labels for label in true.split(","))):
            raise BadInput(
                f"{path}, line {number}: expected label ids below {labels} (the lines of labels.txt), comma-separated, "
                f"a tab and a text, but found {line[:40]!r}"
            )
        comments.append(([*_WORD.findall(text.lower()), EOS], [int(label) for label in true.split(",")]))
    return comments
