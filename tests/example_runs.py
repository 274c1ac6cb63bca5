"""What the tests of the examples share: texts to train on, and what a run leaves behind."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp


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


def saved_arrays(run: Path, step: int) -> dict[str, np.ndarray]:
    """The arrays of a run's checkpoint, whichever processes wrote it, by their paths in the state."""
    handlers = {"state": ocp.StandardCheckpointHandler()}
    with ocp.CheckpointManager((run / "checkpoints").absolute(), item_handlers=handlers) as manager:
        arrays = manager.item_metadata(step)["state"].items()
        wanted = {name: np.empty(array.shape, array.dtype) for name, array in arrays}
        return manager.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(wanted)))["state"]


def assert_same_arrays(run: Path, other: Path, step: int) -> None:
    """Two runs saved the same bits at a step."""
    arrays, expected = (saved_arrays(folder, step) for folder in (run, other))
    assert arrays.keys() == expected.keys()
    for name, array in arrays.items():
        assert array.dtype == expected[name].dtype and array.tobytes() == expected[name].tobytes(), name


def refused(code: int, capsys) -> str:
    """The one line with which an example has refused its options or its data."""
    error = capsys.readouterr().err
    assert code == 2 and error.count("\n") == 1, error
    return error
