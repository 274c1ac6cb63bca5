"""Fig. 2: overlap ratios of two workers' gradients (a), and how the sum of n workers gets denser (b)."""

import argparse
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from benchmarks import workloads
from benchmarks.figures.drawing import Row, by_powers_of_two, lines

WORKERS = (2, 4, 8, 16, 32, 64, 128)
PAIRS_FROM = 16  # workers whose pairs are compared
QUANTILES = (5, 25, 50, 75, 95)


def rows(options: argparse.Namespace) -> list[Row]:
    found = []
    for name in options.workloads:
        workload = workloads.load(name, options.data)
        steps = [workload.touched(max(WORKERS), step) for step in range(options.steps)]
        density = float(np.mean(steps))
        overlaps = np.percentile([ratio for touched in steps for ratio in overlap_ratios(touched)], QUANTILES)
        row = {"workload": name, "rows": workload.rows, "density": density}
        row |= {f"overlap p{q}": float(ratio) for q, ratio in zip(QUANTILES, overlaps, strict=True)}
        found.append(row | {f"densification({n})": densification(steps, n) for n in WORKERS})
    return found


def overlap_ratios(touched: np.ndarray) -> list[float]:
    """Definition 3 for every pair of the first workers."""
    counts = touched.sum(axis=1)
    pairs = combinations(range(min(PAIRS_FROM, len(touched))), 2)
    return [float((touched[i] & touched[j]).sum() / min(counts[i], counts[j])) for i, j in pairs]


def densification(steps: Sequence[np.ndarray], n: int) -> float:
    """Definition 4, the mean over disjoint groups of n workers."""
    groups = [touched.reshape(-1, n, touched.shape[1]).any(axis=1) for touched in steps]
    return float(np.mean(groups) / np.mean(steps))


def draw(rows: Sequence[Row], figure: Any) -> None:
    figure.set_size_inches(10, 4)
    overlap, dense = figure.subplots(1, 2)
    boxes = [
        {"label": row["workload"], "whislo": row["overlap p5"], "q1": row["overlap p25"], "med": row["overlap p50"]}
        | {"q3": row["overlap p75"], "whishi": row["overlap p95"]}
        for row in rows
    ]
    overlap.bxp(boxes, showfliers=False, orientation="horizontal")
    overlap.set(xlabel="overlap ratio of two workers (5, 25, 50, 75, 95 %)", title="(a)")
    label = "densification({})".format
    points = [{"workload": row["workload"], "n": n, "ratio": row[label(n)]} for row in rows for n in WORKERS]
    lines(dense, points, "n", "ratio", "workload")
    dense.plot(WORKERS, WORKERS, "k:", label="no overlap")
    by_powers_of_two(dense)
    dense.set(xlabel="workers", ylabel="densification ratio", title="(b)")
    dense.legend()
