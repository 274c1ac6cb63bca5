"""Sentence pairs as token ids: two files of 'source<TAB>target' lines, or an invented language."""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from examples.common import text
from examples.common.errors import BadInput
from examples.common.synthetic import zipf

EOS = 0
"""Ends a sentence, pads it, and starts a translation."""

Languages = tuple[tuple[list[str], ...], tuple[list[str], ...]]
"""The sentences of both languages, each a list of words."""

_INVENTED = 20_000, 1_000  # pairs to train on and to hold out


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Sentences of the two languages, int32 [pairs, length + 1] each."""

    source: np.ndarray
    target: np.ndarray


@dataclasses.dataclass(frozen=True)
class Bitext:
    """Sentence pairs of `vocab` (source, target) distinct words, numbered by decreasing frequency."""

    about: str
    vocab: tuple[int, int]
    train: Pairs
    valid: Pairs


def load(data: Path | None, max_words: int, length: int, seed: int) -> Bitext:
    """Reads train.tsv and valid.tsv (or .tsv.gz) from `data`, leaving out pairs with more than `length` words."""
    if data is None:
        return _invent(max_words, length, seed)
    train, valid = (_read(_find(data, kind), length) for kind in ("train", "valid"))
    words = [text.vocabulary(itertools.chain.from_iterable(sentences), max_words) for sentences in train]
    ids = [{word: i for i, word in enumerate(language)} for language in words]

    def encode(languages: Languages) -> Pairs:
        return Pairs(*(_table(*each, length) for each in zip(languages, ids, strict=True)))

    return Bitext(str(data), (len(words[0]), len(words[1])), encode(train), encode(valid))


def _find(data: Path, kind: str) -> Path:
    for name in (f"{kind}.tsv", f"{kind}.tsv.gz"):
        if (data / name).is_file():
            return data / name
    raise BadInput(f"{data} has neither {kind}.tsv nor {kind}.tsv.gz: expected lines of 'source<TAB>target'")


def _read(path: Path, length: int) -> Languages:
    pairs = [_pair(path, *line) for line in enumerate(text.read(path).removesuffix("\n").split("\n"), 1)]
    short = [pair for pair in pairs if max(map(len, pair)) <= length]
    if not short:
        raise BadInput(f"{path} has {len(pairs):,} sentence pairs, but none of at most {length} words (--length)")
    return tuple(zip(*short, strict=True))


def _pair(path: Path, number: int, line: str) -> list[list[str]]:
    sentences = [text.WORD.findall(column) for column in line.split("\t")]
    if len(sentences) != 2 or not all(sentences):
        raise BadInput(f"{path}, line {number}: expected 'source<TAB>target', but found {line[:40]!r}")
    return sentences


def _table(sentences: Sequence[list[str]], ids: dict[str, int], length: int) -> np.ndarray:
    table = np.full((len(sentences), length + 1), EOS, np.int32)
    for row, sentence in zip(table, sentences, strict=True):
        row[: len(sentence)] = text.encode(sentence, ids)
    return table


def _invent(vocab: int, length: int, seed: int) -> Bitext:
    """Sentences of words drawn by Zipf's law; word i translates to word i, in reverse order."""
    rng = np.random.default_rng(seed)
    count = sum(_INVENTED)
    words = zipf(rng, vocab - 2, (count, length + 1)) + 2  # all but EOS and UNK
    lengths = rng.integers(1, length + 1, (count, 1))
    places = np.arange(length + 1)
    inside = places < lengths
    source = np.where(inside, words, EOS)
    target = np.where(inside, np.take_along_axis(words, np.maximum(lengths - 1 - places, 0), axis=1), EOS)
    cut = _INVENTED[0]
    about = "an invented language, word for word in reverse order (--data DIR for real ones)"
    return Bitext(about, (vocab, vocab), Pairs(source[:cut], target[:cut]), Pairs(source[cut:], target[cut:]))
