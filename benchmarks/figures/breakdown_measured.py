"""Fig. 17b, measured: speed-up over dense (psum) of hashing alone and with the hash bitmap, from `--ablation` runs."""

import argparse
from collections.abc import Sequence
from typing import Any

from benchmarks import network_report
from benchmarks.figures import speedups
from benchmarks.figures.drawing import Row

STEPS = {
    "sparse_ps, elements": "contiguous, COO",
    "zen, elements, COO pull": "+ hashing",
    "zen, elements, hash bitmap": "+ hash bitmap",
    "zen": "+ planned unit and pull",
}
"""The cases of benchmarks.network, in order; each adds to the last."""


def rows(options: argparse.Namespace) -> list[Row]:
    by_place: dict[tuple, dict[str, Row]] = {}
    for row in network_report.read(options.network):
        by_place.setdefault((row["workload"], row["n"], row["rate"]), {})[row["case"]] = row
    return [
        dict(zip(("workload", "n", "rate"), place, strict=True))
        | {"with": title, "ms": cases[case]["median_ms"], "speed-up": cases[case]["speed_up"]}
        for place, cases in by_place.items()
        if cases.keys() >= STEPS.keys() | {"dense"}
        for case, title in STEPS.items()
    ]


def draw(rows: Sequence[Row], figure: Any) -> None:
    speedups.draw(rows, figure, group="with", width=1.5)
