"""Fig. 17b, measured: speed-up over dense (psum) of hashing alone and with the hash bitmap, from `--ablation` runs."""

import argparse
import json
from collections.abc import Sequence
from typing import Any

from benchmarks.figures.drawing import Row, bars

STEPS = {
    "sparse_ps, elements": "contiguous, COO",
    "zen, elements, COO pull": "+ hashing",
    "zen, elements, hash bitmap": "+ hash bitmap",
    "zen": "+ wider units",
}
"""The cases of benchmarks.network, in the order in which each adds to the last."""


def rows(options: argparse.Namespace) -> list[Row]:
    measured = [row for path in options.network for row in json.loads(path.read_text())["rows"]]
    by_place: dict[tuple, dict[str, Row]] = {}
    for row in measured:
        by_place.setdefault((row["workload"], row["n"], row["rate"]), {})[row["case"]] = row
    return [
        dict(zip(("workload", "n", "rate"), place, strict=True))
        | {"with": title, "ms": cases[case]["median_ms"], "speed-up": cases[case]["speed_up"]}
        for place, cases in by_place.items()
        if cases.keys() >= STEPS.keys() | {"dense"}
        for case, title in STEPS.items()
    ]


def draw(rows: Sequence[Row], figure: Any) -> None:
    titled = [row | {"where": f"{row['workload']}\nn = {row['n']}, {row['rate']}"} for row in rows]
    figure.set_size_inches(3 + 1.5 * len({row["where"] for row in titled}), 4)
    axes = figure.subplots()
    bars(axes, titled, "where", "speed-up", "with")
    axes.axhline(1, color="black", linewidth=0.5)
    axes.set(ylabel="speed-up over dense (psum)")
    axes.legend()
