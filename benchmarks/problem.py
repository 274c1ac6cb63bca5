"""The gradients that a group of processes reduces, and what their sum must be. NumPy only, for peers without JAX."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Problem:
    """Sparse gradients of some steps: worker w's value at row r, column c is (w + 1) * ((r + c) % 7 + 1), or zero.

    Small integers held in floats, so that every correct scheme gives the same bits and a wrong one is detected.
    """

    touched: np.ndarray  # bool [steps, n, V]
    columns: int  # D
    notes: dict[str, Any]  # what else a process needs to know, as JSON holds it

    def save(self, path: Path) -> None:
        np.savez(
            path,
            touched=np.packbits(self.touched, axis=-1),
            rows=self.touched.shape[-1],
            columns=self.columns,
            notes=json.dumps(self.notes),
        )

    @staticmethod
    def load(path: Path) -> "Problem":
        with np.load(path) as saved:
            touched = np.unpackbits(saved["touched"], axis=-1, count=int(saved["rows"])).astype(bool)
            return Problem(touched, int(saved["columns"]), json.loads(str(saved["notes"])))

    def sparse(self, step: int, worker: int) -> tuple[np.ndarray, np.ndarray]:
        """One worker's non-zero rows: indices int64 [k] in ascending order, and values float32 [k, D]."""
        rows = np.flatnonzero(self.touched[step, worker])
        return rows, (worker + 1) * self._pattern(rows)

    def dense(self, step: int, worker: int) -> np.ndarray:
        """One worker's gradient: float32 [V, D]."""
        return self._scatter(*self.sparse(step, worker))

    def check(self, name: str, step: int, reduced: np.ndarray) -> None:
        """Raises a ValueError unless `reduced`, float32 [V, D], is the sum over all workers, bit for bit."""
        workers = np.arange(1, self.touched.shape[1] + 1, dtype=np.float32)[:, None]
        # Not as a matrix product, whose threads would go on spinning into a call that is timed next.
        weight = (workers * self.touched[step]).sum(axis=0)
        rows = np.flatnonzero(weight)
        wanted = self._scatter(rows, weight[rows, None] * self._pattern(rows))
        if reduced.shape != wanted.shape:
            raise ValueError(f"{name} gave shape {reduced.shape}, but the sum has shape {wanted.shape}.")
        if wrong := int(np.count_nonzero(reduced != wanted)):
            raise ValueError(f"{name} is wrong in {wrong} of {wanted.size} elements of the sum.")

    def _pattern(self, rows: np.ndarray) -> np.ndarray:
        return ((rows[:, None] + np.arange(self.columns)) % 7 + 1).astype(np.float32)

    def _scatter(self, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
        full = np.zeros((self.touched.shape[-1], self.columns), np.float32)
        full[rows] = values
        return full
