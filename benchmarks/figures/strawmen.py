"""The strawmen of section 3: what one hash without a second try loses, and how soon thresholds grow old.

"one hash" is the paper's Algorithm 3 on the elements of worker 0's gradient: "memory" is the slots per non-zero,
"lost" the share that others overwrite. "thresholds" split the indices of step 0 into equally full parts, one per
server, and are kept for "age" steps; "push" and "pull" are the imbalances then, beside those of the tile rotation on
rows.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import exact, workloads
from benchmarks.figures.drawing import Row, lines
from zen_jax import hashing

WORKERS = 16
MEMORY = (1, 2, 2.5, 4, 8, 10, 16)
AGES = (0, 1, 2, 4, 8, 16, 32, 64)


def rows(options: argparse.Namespace) -> list[Row]:
    found = []
    for name in options.workloads:
        workload = workloads.load(name, options.data)
        first = workload.touched(WORKERS, step=0)
        elements = _elements(first[0], workload.columns)
        for memory in MEMORY:
            lost = lost_by_one_hash(elements, round(memory * elements.size))
            found.append({"workload": name, "strawman": "one hash", "memory": memory, "lost": lost})
        servers = {"thresholds": thresholds(first), "tile rotation": exact.hashed_servers(workload.rows, 1, WORKERS)}
        for way, of_row in servers.items():
            for age in AGES:
                counts = exact.message_counts(workload.touched(WORKERS, step=age), of_row, WORKERS)
                push, pull = exact.imbalance(*counts)
                found.append({"workload": name, "strawman": way, "age": age, "push": push, "pull": pull})
    return found


def lost_by_one_hash(indices: np.ndarray, slots: int) -> float:
    """The share of distinct indices, uint32 [K], that others overwrite in `slots` slots.

    Source: ZEN (OSDI 2025), Algorithm 3.
    """
    slot = hashing.hash_family(indices, 1, slots, seed=0)
    return 1 - np.unique(slot).size / indices.size


def thresholds(touched: np.ndarray) -> np.ndarray:
    """int32 [rows, 1]: the server of each row, where each server gets an equal part of what bool [n, rows] touches.

    Source: ZEN (OSDI 2025), section 3.1, the data-dependent strawman.
    """
    n, rows = touched.shape
    ascending = np.sort(np.nonzero(touched)[1])
    bounds = ascending[np.arange(1, n) * ascending.size // n]
    return np.searchsorted(bounds, np.arange(rows), side="right").astype(np.int32)[:, None]


def _elements(touched: np.ndarray, columns: int) -> np.ndarray:
    of_rows = np.flatnonzero(touched).astype(np.uint32)[:, None] * np.uint32(columns)
    return (of_rows + np.arange(columns, dtype=np.uint32)).ravel()


def draw(rows: Sequence[Row], figure: Any) -> None:
    figure.set_size_inches(12, 4.5)
    losing, *ageing = figure.subplots(1, 3)
    lines(losing, [row for row in rows if row["strawman"] == "one hash"], "memory", "lost", "workload")
    losing.set(xlabel="slots for each non-zero", ylabel="share lost", title="one hash", yscale="log")
    losing.legend()
    aged = [row | {"of": f"{row['workload']}, {row['strawman']}"} for row in rows if "age" in row]
    for way, axes in zip(("push", "pull"), ageing, strict=True):
        lines(axes, aged, "age", way, "of")
        axes.set(xlabel="steps since", ylabel=f"imbalance, n = {WORKERS}", title=f"{way} by thresholds of step 0")
    figure.legend(*ageing[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
