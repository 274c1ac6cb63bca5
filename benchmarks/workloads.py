"""Which rows of an embedding's gradient each worker touches in a step: real data sets, and a synthetic density.

Each data set has its own folder in `--data` (gutenberg_lm, tatoeba_fra_eng, nycflights_ctr, goemotions). Batches are
those of ZEN's paper (section 5.1), and rows are numbered by falling frequency, as vocabularies are. A row that any
token of the batch names has a gradient; every other row is zero.
"""

import gzip
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zen_jax.cli.gradients import zipf_rows

MAX_WORKERS = 65535  # where nothing else limits them
TOKEN = re.compile(r"\w+|[^\w\s]")
# What reading raises if a file is missing, cut off, or not what it should be.
UNREADABLE = (OSError, EOFError, IndexError, KeyError, TypeError, ValueError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class Workload:
    """An embedding of `rows` x `columns`; `batch(n, worker, step)` names the rows (repeats allowed) of one batch.

    With more than `max_workers` a step would read an example twice. The rows may stand for those of several tables, one
    after another, of as many rows as `tables` says.
    """

    name: str
    rows: int
    columns: int
    max_workers: int
    batch: Callable[[int, int, int], np.ndarray]
    tables: tuple[int, ...] = ()

    def touched(self, n: int, step: int) -> np.ndarray:
        """bool [n, rows]: the rows that each of n workers touches in a step."""
        if n > self.max_workers:
            raise ValueError(f"{self.name} has data for {self.max_workers} workers, but n={n}.")
        touched = np.zeros((n, self.rows), bool)
        for worker, rows in enumerate(touched):
            rows[self.batch(n, worker, step)] = True
        return touched


def load(name: str, data: Path | None = None) -> Workload:
    """The workload called `name`.

    Args:
      name: one of `DATA_SETS`, or "synthetic:DENSITY" with the density of each worker's gradient in (0, 1].
      data: the folder that holds the data sets' folders; not needed for a synthetic workload.

    Raises:
      ValueError: for an unknown name, no `data`, or a data set that lacks a file or is damaged.

    >>> workload = load("synthetic:0.01")
    >>> workload.touched(n=4, step=0).sum(axis=1).tolist()
    [655, 655, 655, 655]
    """
    if name.startswith("synthetic:"):
        return _synthetic(name)
    if name not in DATA_SETS:
        raise ValueError(f"workload {name!r} is unknown. Use one of {', '.join(DATA_SETS)}, or synthetic:DENSITY.")
    if data is None:
        raise ValueError(f"workload {name!r} is read from files: give the folder that holds {name}/ with --data.")
    folder = Path(data) / name
    try:
        return DATA_SETS[name](folder)
    except UNREADABLE as error:
        raise ValueError(
            f"workload {name!r} cannot be read from {folder}: {error}. Put an undamaged copy of the data set there."
        ) from error


def gutenberg_lm(folder: Path) -> Workload:
    """Language modelling: every worker reads 128 sequences of 35 words, each continuing where it stopped."""
    sequences, length = 128, 35
    paragraphs = ([*line.split(), "<eos>"] for line in _lines(folder / "train.txt.gz"))
    tokens, rows = _numbered(paragraphs)
    tokens = np.concatenate(tokens)

    def batch(n: int, worker: int, step: int) -> np.ndarray:
        streams = tokens[: len(tokens) // (n * sequences) * n * sequences].reshape(n, sequences, -1)
        start = step % (streams.shape[2] // length) * length
        return streams[worker, :, start : start + length].ravel()

    return Workload("gutenberg_lm", rows, 256, len(tokens) // (sequences * length), batch)


def tatoeba_fra_eng(folder: Path) -> Workload:
    """Translation: 64 sentence pairs per worker; one table holds the English words and then the French ones."""
    pairs = [line.split("\t")[:2] for line in _lines(folder / "train.tsv.gz")]
    english, english_rows = _numbered(TOKEN.findall(pair[0]) for pair in pairs)
    french, french_rows = _numbered(TOKEN.findall(pair[1]) for pair in pairs)
    both = [np.concatenate([e, f + english_rows]) for e, f in zip(english, french, strict=True)]
    tables = english_rows, french_rows
    return Workload("tatoeba_fra_eng", sum(tables), 256, len(both) // 64, _shuffled(both, 64), tables)


def goemotions(folder: Path) -> Workload:
    """Text classification: 256 comments per worker, in lower case."""
    comments, rows = _numbered(TOKEN.findall(line.split("\t")[1].lower()) for line in _lines(folder / "train.tsv.gz"))
    return Workload("goemotions", rows, 256, len(comments) // 256, _shuffled(comments, 256))


def nycflights_ctr(folder: Path) -> Workload:
    """Click-through-like prediction (flights, not Criteo): 1024 examples of 32 categorical fields per worker."""
    with (folder / "data.npz").open("rb") as file, np.load(file) as data:  # np.load leaves a damaged file open
        offsets = np.cumsum(data["cardinality"]) - data["cardinality"]
        train = data["split"] == 0
        fields = [data[f"f_{name}"][train] + offset for name, offset in zip(data["field_names"], offsets, strict=True)]
        tables = tuple(data["cardinality"].tolist())
    examples = np.stack(fields, axis=1)
    return Workload("nycflights_ctr", sum(tables), 64, len(examples) // 1024, _shuffled(examples, 1024), tables)


DATA_SETS = {read.__name__: read for read in (gutenberg_lm, tatoeba_fra_eng, nycflights_ctr, goemotions)}


def _synthetic(name: str) -> Workload:
    """round(density * rows) distinct rows per worker, at least one, drawn by Zipf's law."""
    rows, text = 65_536, name.removeprefix("synthetic:")
    try:
        density = float(text)
    except ValueError:
        density = 0.0
    if not 0 < density <= 1:
        raise ValueError(f"workload {name!r} must give a density above 0 and up to 1, as in synthetic:0.01.")
    count = max(1, round(density * rows))

    def batch(n: int, worker: int, step: int) -> np.ndarray:
        return zipf_rows(np.random.default_rng((worker, step)), rows, count)

    return Workload(name, rows, 256, MAX_WORKERS, batch)


def _lines(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield line.rstrip("\n")


def _numbered(sentences: Iterable[list[str]]) -> tuple[list[np.ndarray], int]:
    """Each sentence as int32 ids, 0 being the most frequent word, and how many words there are."""
    sentences = list(sentences)
    counts = Counter(word for sentence in sentences for word in sentence)
    ids = {word: i for i, (word, _) in enumerate(counts.most_common())}
    return [np.fromiter((ids[word] for word in sentence), np.int32, len(sentence)) for sentence in sentences], len(ids)


def _shuffled(examples: list[np.ndarray] | np.ndarray, batch_size: int) -> Callable[[int, int, int], np.ndarray]:
    order = np.random.default_rng(0).permutation(len(examples))

    def batch(n: int, worker: int, step: int) -> np.ndarray:
        first = (step * n + worker) * batch_size
        chosen = order[np.arange(first, first + batch_size) % len(order)]
        return np.concatenate([examples[i] for i in chosen])

    return batch
