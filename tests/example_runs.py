"""What the tests of the examples share: texts to train on, and what a run leaves behind."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np


def books(folder: Path) -> Path:
    """A text of 6,000 words, few of them frequent, with a part to validate on."""
    rng = np.random.default_rng(0)
    words = np.array([f"w{i}" for i in range(6000)])
    lines = [" ".join(words[rng.zipf(1.3, 20) % len(words)]) for _ in range(400)] + [" ".join(words)]
    (folder / "train.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    (folder / "valid.txt").write_text("\n".join(lines[:60]))
    return folder


def metrics(log: Path) -> list[dict[str, Any]]:
    """The complete lines of a metrics.jsonl whose run may be writing the next one."""
    return [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]


def losses(log: Path) -> list[float]:
    return [step["loss"] for step in metrics(log)]


def summary(out: Path) -> dict[str, dict[str, Any]]:
    """The row of each run, by its --sync."""
    return {row["sync"]: row for row in json.loads((out / "summary.json").read_text())["runs"]}


def refused(code: int, capsys) -> str:
    """The one line with which an example has refused its options or its data."""
    error = capsys.readouterr().err
    assert code == 2 and error.count("\n") == 1, error
    return error
