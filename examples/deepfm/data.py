"""Labelled examples of categorical fields, as rows of one embedding table: the flights, or a synthetic set."""

import dataclasses
import zipfile
import zlib
from pathlib import Path

import numpy as np

from examples.common.errors import BadInput, may_pass
from examples.common.synthetic import zipf

_TRAIN, _VALID = 0, 1  # in `split`
_SYNTHETIC_FIELDS = np.geomspace(4, 32_000, 24).astype(int)  # how many values each has
_SYNTHETIC_EXAMPLES = 120_000


@dataclasses.dataclass(frozen=True)
class Examples:
    """One row of the table per field, int32 [count, fields], and the labels to predict, float32 [count]."""

    rows: np.ndarray
    labels: np.ndarray


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Training and validation examples over a table of `rows` rows."""

    source: str
    rows: int
    train: Examples
    valid: Examples


def load(folder: Path | None, seed: int) -> Dataset:
    """The data set in `folder`, or a synthetic one; raises BadInput if it cannot be used."""
    return synthetic(seed) if folder is None else _read(folder / "data.npz")


def auc(scores: np.ndarray, labels: np.ndarray) -> float | None:
    """The probability that a positive example scores above a negative one, ties counting half; None without both."""
    _, group, counts = np.unique(scores, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2
    positive = labels > 0.5
    ones = int(positive.sum())
    pairs = ones * (len(labels) - ones)
    return float((mean_rank[group][positive].sum() - ones * (ones + 1) / 2) / pairs) if pairs else None


def synthetic(seed: int) -> Dataset:
    """Fields with values distributed by Zipf's law, and labels drawn from a hidden factorisation machine."""
    rng = np.random.default_rng(seed)
    fields, count, dim = _SYNTHETIC_FIELDS, _SYNTHETIC_EXAMPLES, 4
    offsets = np.cumsum(fields) - fields
    rows = (zipf(rng, fields, (count, len(fields))) + offsets).astype(np.int32)
    weights, factors = rng.normal(0, 0.3, fields.sum()), rng.normal(0, 0.15, (fields.sum(), dim))
    total = sum(factors[column] for column in rows.T)
    squares = sum((factors**2).sum(axis=1)[column] for column in rows.T)
    logits = weights[rows].sum(axis=1) + 0.5 * ((total**2).sum(axis=1) - squares) - 1.0
    labels = (rng.random(count) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    cut = count * 9 // 10
    source = f"synthetic, drawn with NumPy from a hidden factorisation machine over {len(fields)} fields"
    return Dataset(source, int(fields.sum()), Examples(rows[:cut], labels[:cut]), Examples(rows[cut:], labels[cut:]))


def _read(path: Path) -> Dataset:
    expected = f"{path}: expected the data.npz of nycflights_ctr"
    try:
        with path.open("rb") as file, np.load(file) as data:
            names, cardinality = data["field_names"], data["cardinality"].astype(np.int64)
            split, labels = data["split"], data["label"]
            _check("label", labels, (labels == 0) | (labels == 1), "0 or 1")
            fields = [_whole(f"f_{name}", data[f"f_{name}"]) for name in names]
    except OSError as error:
        if may_pass(error):
            raise
        raise BadInput(f"{expected}, which cannot be read: {error.strerror or error}") from error
    except (KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise BadInput(f"{expected}, with label, split, field_names, cardinality and f_<field>: {error}") from error
    if len(fields) != len(cardinality) or any(field.shape != labels.shape for field in [split, *fields]):
        raise BadInput(f"{expected}, with a cardinality and one id per example for each field, but lengths differ")
    for name, field, values in zip(names, fields, cardinality, strict=True):
        if field.size and not 0 <= field.min() <= field.max() < values:
            found = f"they range from {field.min()} to {field.max()}"
            raise BadInput(f"{expected}, with ids of f_{name} from 0 to {values - 1}, but {found}")
    labels = labels.astype(np.float32)
    rows = (np.stack(fields, axis=1) + np.cumsum(cardinality) - cardinality).astype(np.int32)
    train, valid = (Examples(rows[split == part], labels[split == part]) for part in (_TRAIN, _VALID))
    return Dataset(str(path.parent), int(cardinality.sum()), train, valid)


def _whole(name: str, ids: np.ndarray) -> np.ndarray:
    """The ids as int64."""
    if ids.dtype.kind == "f":
        _check(name, ids, np.isfinite(ids) & (np.trunc(ids) == ids), "an integer")
    return ids.astype(np.int64)


def _check(name: str, array: np.ndarray, valid: np.ndarray, wanted: str) -> None:
    if not valid.all():
        first = int(valid.argmin())
        raise ValueError(f"{name}[{first}] is {array.flat[first]}, not {wanted}")
