"""Fig. 15: measured speed-ups of communication over a dense all-reduce (psum), by workload, hosts and rate."""

import argparse
from collections.abc import Sequence
from typing import Any

from benchmarks import network_report
from benchmarks.figures.drawing import Row, bars


def rows(options: argparse.Namespace) -> list[Row]:
    keys = {"speed_up": "speed-up", "of_bytes": "of what its bytes allow", "wire_over_bound": "bytes over the bound"}
    return [
        {"workload": row["workload"], "n": row["n"], "rate": row["rate"], "case": row["case"], "ms": row["median_ms"]}
        | {title: row[key] for key, title in keys.items()}
        for row in network_report.read(options.network)
        if "speed_up" in row
    ]


def draw(rows: Sequence[Row], figure: Any, group: str = "case", width: float = 2.2) -> None:
    """Bars by workload, hosts and rate, `width` inches for each of them."""
    titled = [row | {"where": f"{row['workload']}\nn = {row['n']}, {row['rate']}"} for row in rows]
    figure.set_size_inches(3 + width * len({row["where"] for row in titled}), 4)
    axes = figure.subplots()
    bars(axes, titled, "where", "speed-up", group)
    axes.axhline(1, color="black", linewidth=0.5)
    axes.set(ylabel="speed-up over dense (psum)")
    axes.legend(fontsize="x-small")
