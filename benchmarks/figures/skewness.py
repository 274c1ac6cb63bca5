"""Fig. 3: the share of the non-zeros in each of eight even partitions (a), and the skewness ratio (b)."""

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import workloads
from benchmarks.exact import contiguous_servers
from benchmarks.figures.drawing import Row, by_powers_of_two, lines

HEATMAP = 8
PARTITIONS = (2, 4, 8, 16, 32, 64, 128)
WORKERS = 8


def rows(options: argparse.Namespace) -> list[Row]:
    found = []
    for name in options.workloads:
        workload = workloads.load(name, options.data)
        gradients = np.concatenate([workload.touched(WORKERS, step) for step in range(options.steps)])
        shares = np.mean([shares_of(gradient, HEATMAP) for gradient in gradients], axis=0)
        row = {"workload": name} | {f"part {i + 1}": float(share) for i, share in enumerate(shares)}
        skew = {p: np.mean([p * shares_of(gradient, p).max() for gradient in gradients]) for p in PARTITIONS}
        found.append(row | {f"skewness({p})": float(ratio) for p, ratio in skew.items()})
    return found


def shares_of(gradient: np.ndarray, partitions: int) -> np.ndarray:
    """Each even partition's share of the non-zero rows; their maximum times `partitions` is Definition 5."""
    counts = np.bincount(contiguous_servers(gradient.size, partitions)[gradient, 0], minlength=partitions)
    return counts / counts.sum()


def draw(rows: Sequence[Row], figure: Any) -> None:
    figure.set_size_inches(10, 4)
    heat, ratio = figure.subplots(1, 2)
    shares = [[row[f"part {i + 1}"] * 100 for i in range(HEATMAP)] for row in rows]
    figure.colorbar(heat.imshow(shares, cmap="Reds", vmin=0, vmax=100, aspect="auto"), label="% of the non-zeros")
    heat.set_yticks(range(len(rows)), [row["workload"] for row in rows])
    heat.set(xlabel="partition", title="(a)")
    heat.set_xticks(range(HEATMAP), range(1, HEATMAP + 1))
    points = [{"workload": row["workload"], "n": p, "skew": row[f"skewness({p})"]} for row in rows for p in PARTITIONS]
    lines(ratio, points, "n", "skew", "workload")
    by_powers_of_two(ratio)
    ratio.set(xlabel="partitions", ylabel="skewness ratio", title="(b)")
    ratio.legend()
