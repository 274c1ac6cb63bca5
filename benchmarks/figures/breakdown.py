"""Fig. 17b: speed-up over dense among 16 workers, of hashing alone and with the hash bitmap.

Counted from exact-sized messages through the busiest link, element units as in the paper: COO messages to contiguous
servers, then to hashed ones, then hash bitmaps in pull, and finally whole rows as units.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import workloads
from benchmarks.exact import scheme_bytes
from benchmarks.figures.drawing import Row, bars

WORKERS = 16
STEPS = (
    ("contiguous, COO", "elements", "sparse_ps"),
    ("+ hashing", "elements", "zen, COO pull"),
    ("+ hash bitmap", "elements", "zen"),
    ("+ rows as units", "rows", "zen"),
)


def rows(options: argparse.Namespace) -> list[Row]:
    found = []
    for name in options.workloads:
        workload = workloads.load(name, options.data)
        touched = [workload.touched(WORKERS, step) for step in range(options.steps)]
        blocks = {"elements": workload.columns, "rows": 1}
        moved = {unit: [scheme_bytes(t, workload.columns, k) for t in touched] for unit, k in blocks.items()}
        for title, unit, scheme in STEPS:
            speed_up = float(np.mean([each["dense"] / each[scheme] for each in moved[unit]]))
            found.append({"workload": name, "with": title, "speed-up": speed_up})
    return found


def draw(rows: Sequence[Row], figure: Any) -> None:
    figure.set_size_inches(8, 4)
    axes = figure.subplots()
    bars(axes, rows, "workload", "speed-up", "with")
    axes.axhline(1, color="black", linewidth=0.5)
    axes.set(ylabel=f"speed-up over dense, n = {WORKERS}")
    axes.legend()
