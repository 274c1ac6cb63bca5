"""Text to token ids: reading, vocabulary, and the streams that the workers read.

Nothing is downloaded. By default the text is what every Python installation has on disk: the sources,
documentation strings and text files of the standard library.
"""

import collections
import dataclasses
import gzip
import itertools
import re
import sysconfig
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from examples.common.errors import BadInput, may_pass

EOS, UNK = "<eos>", "<unk>"
_MAX_BYTES = 64 << 20  # read at most from the standard library
_VALID_FRACTION = 0.04  # tail of every file held out when the data has no files named valid*
_SUFFIXES = (".txt", ".md", ".rst", ".py")
_KINDS = ", ".join([*("*" + suffix for suffix in _SUFFIXES), "LICENSE*"])
_SKIPPED_DIRS = {"site-packages", "dist-packages", "__pycache__", "test", "tests"}
WORD = re.compile(r"[^\W\d_]+|\d+|[^\w\s]|_")

DATA = f"text: a file, or a directory of {_KINDS}, each also as .gz (default: Python's own)"
"""The meaning of --data, for examples that read text."""


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Token ids of the training and the validation text; id 0 is the most frequent word."""

    source: str
    words: list[str]
    train: np.ndarray  # int32 [tokens]
    valid: np.ndarray  # int32 [tokens]


def load_corpus(data: Path | None, max_words: int) -> Corpus:
    """Reads `data` (a file, a directory, or None for the standard library) and numbers its words.

    Files named train* and valid*, except programs, are used as such and split at white space, one <eos> per line; a
    directory has both or neither. Any other text is split into words, numbers and punctuation, and the last lines of
    every file are held out for validation.
    """
    source, files = _find_files(data)
    train_files, valid_files = ([f for f in files if _is_named(f, kind)] for kind in ("train", "valid"))
    if data and data.is_dir() and bool(train_files) != bool(valid_files):
        there, missing = (train_files[0].name, "valid*") if train_files else (valid_files[0].name, "train*")
        raise BadInput(
            f"{data} has {there}, but no file named {missing}: add one, or rename {there} to have the last lines of "
            "every file held out"
        )
    if train_files:
        parts = [[list(_lines(read(f), str.split)) for f in part] for part in (train_files, valid_files)]
        if not parts[1]:
            parts = _hold_out(parts[0])
    else:
        # The library may contain a source in another encoding; text that the user names must be valid.
        errors = "replace" if data is None else "strict"
        parts = _hold_out([list(_lines(read(f, errors), WORD.findall)) for f in files])
    train, valid = ([*itertools.chain.from_iterable(itertools.chain.from_iterable(part))] for part in parts)
    if not train:
        raise BadInput(f"no words found in {source}")
    words = vocabulary(train, max_words)
    ids = {word: i for i, word in enumerate(words)}
    return Corpus(source, words, encode(train, ids), encode(valid, ids))


def streams(tokens: np.ndarray, workers: int, batch: int, unroll: int) -> np.ndarray:
    """Cuts the text into equal streams, `batch` per worker: int32 [workers, batch, length], length > unroll."""
    count = workers * batch
    length = len(tokens) // count
    if length <= unroll:
        needed = count * (unroll + 1)
        raise BadInput(
            f"the training text has {len(tokens):,} words, but {count:,} streams (workers x batch) of {unroll} + 1 "
            f"words need {needed:,}: give more text, or lower --workers, --batch or the words per step"
        )
    return tokens[: count * length].reshape(workers, batch, length)


def window(streams: np.ndarray, step: int, unroll: int) -> np.ndarray:
    """The words of one step and, one position later, their successors: int32 [..., unroll + 1]."""
    start = step % ((streams.shape[-1] - 1) // unroll) * unroll
    return streams[..., start : start + unroll + 1]


def _find_files(data: Path | None) -> tuple[str, list[Path]]:
    if data is None:
        root = Path(sysconfig.get_path("stdlib"))
        files = _text_files(root)
        sizes = itertools.accumulate(path.stat().st_size for path in files)
        files = [path for path, total in zip(files, sizes, strict=True) if total <= _MAX_BYTES]
        return f"Python's standard library ({root})", files
    if not data.exists():
        raise BadInput(f"{data} does not exist")
    files = [data] if data.is_file() else _text_files(data)
    if not files:
        raise BadInput(f"{data} holds no text files ({_KINDS}, or any of these with .gz)")
    return str(data), files


def _text_files(root: Path) -> list[Path]:
    def wanted(path: Path) -> bool:
        inside = path.relative_to(root)
        name = inside.name.removesuffix(".gz")
        return (
            not _SKIPPED_DIRS.intersection(inside.parts[:-1])
            and (name.endswith(_SUFFIXES) or name.startswith("LICENSE"))
            and path.is_file()
        )

    try:
        return sorted(filter(wanted, root.rglob("*")), key=lambda path: path.relative_to(root).as_posix())
    except OSError as error:
        if may_pass(error):
            raise
        raise BadInput(f"cannot list {root}: {error.strerror}") from error


def _is_named(path: Path, kind: str) -> bool:
    return path.name.startswith(kind) and not path.name.removesuffix(".gz").endswith(".py")


def read(path: Path, errors: str = "strict") -> str:
    """The whole text of a UTF-8 file, decompressed if its name ends in .gz."""
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text: byte 0x{error.object[error.start]:02x} at {error.start}") from error
    except (OSError, EOFError, zlib.error) as error:
        if may_pass(error):
            raise
        raise BadInput(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def _lines(text: str, split) -> Iterator[list[str]]:
    for line in text.splitlines():
        if words := split(line):
            yield [*words, EOS]


def _hold_out(files: list[list[list[str]]]) -> list[list[list[list[str]]]]:
    cuts = [len(lines) - int(len(lines) * _VALID_FRACTION) for lines in files]
    return [
        [lines[:cut] for lines, cut in zip(files, cuts, strict=True)],
        [lines[cut:] for lines, cut in zip(files, cuts, strict=True)],
    ]


def vocabulary(tokens: Iterable[str], max_words: int) -> list[str]:
    """<eos> and <unk>, then the most frequent words by decreasing frequency."""
    counts = collections.Counter(tokens)
    del counts[EOS], counts[UNK]
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    # <eos> and <unk> are as frequent as the most common words, and ids stand for ranks.
    return [EOS, UNK, *ranked][:max_words]


def encode(tokens: list[str], ids: dict[str, int]) -> np.ndarray:
    """int32 [tokens]; a word without an id becomes <unk>."""
    unknown = ids[UNK]
    return np.fromiter((ids.get(token, unknown) for token in tokens), np.int32, len(tokens))
