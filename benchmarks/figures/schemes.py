"""Fig. 8: bytes through the busiest link against the number of workers, over those of a dense all-reduce.

Counted from the rows that real batches touch, with exact-sized messages, without latency or computation. "elements" has
an index for every value, as in the paper, and "rows" one for every row.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import workloads
from benchmarks.exact import scheme_bytes
from benchmarks.figures.drawing import Row, by_powers_of_two, lines

WORKERS = (2, 4, 8, 16, 32, 64, 128)


def rows(options: argparse.Namespace) -> list[Row]:
    found = []
    for name in options.workloads:
        workload = workloads.load(name, options.data)
        for unit, blocks in {"elements": workload.columns, "rows": 1}.items():
            columns = []
            for n in WORKERS:
                steps = [workload.touched(n, step) for step in range(options.steps)]
                moved = [scheme_bytes(touched, workload.columns, blocks) for touched in steps]
                columns.append({scheme: float(np.mean([each[scheme] for each in moved])) for scheme in moved[0]})
            for scheme in columns[0]:
                ratios = {f"n={n}": each[scheme] / each["dense"] for n, each in zip(WORKERS, columns, strict=True)}
                found.append({"workload": name, "unit": unit, "scheme": scheme} | ratios)
    return found


def draw(rows: Sequence[Row], figure: Any) -> None:
    names = list(dict.fromkeys(row["workload"] for row in rows))
    figure.set_size_inches(9, 3 * len(names))
    panels = figure.subplots(len(names), 2, squeeze=False)
    for name, across in zip(names, panels, strict=True):
        for unit, axes in zip(("elements", "rows"), across, strict=True):
            here = [row for row in rows if (row["workload"], row["unit"]) == (name, unit)]
            points = [{"scheme": row["scheme"], "n": n, "ratio": row[f"n={n}"]} for row in here for n in WORKERS]
            lines(axes, points, "n", "ratio", "scheme")
            by_powers_of_two(axes)
            axes.set(xlabel="workers", title=f"{name}, {unit}", ylabel="of dense")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
