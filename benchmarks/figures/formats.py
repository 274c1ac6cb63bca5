"""Fig. 17a: what a worker receives in pull from 16 servers by format and density, over the dense tensor.

"elements" are units of one float32 and "blocks" of 16, zen_jax's usual unit for a wide embedding among 16 workers.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from benchmarks.exact import ITEMSIZE, format_bytes
from benchmarks.figures.drawing import Row, lines

SERVERS, UNITS = 16, 1_000_000
DENSITIES = (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
WIDTHS = {"elements": 1, "blocks": 16}


def rows(options: argparse.Namespace) -> list[Row]:
    found = []
    for unit, width in WIDTHS.items():
        for density in DENSITIES:
            moved = format_bytes(UNITS, round(UNITS * density), width * ITEMSIZE, SERVERS)
            sizes = {name: nbytes / moved["dense"] for name, nbytes in moved.items()}
            found.append({"unit": unit, "density": density} | sizes)
    return found


def draw(rows: Sequence[Row], figure: Any) -> None:
    figure.set_size_inches(10, 4)
    for unit, axes in zip(WIDTHS, figure.subplots(1, 2), strict=True):
        here = [row for row in rows if row["unit"] == unit]
        points = [
            {"format": name, "density": row["density"], "size": row[name]} for name in list(here[0])[2:] for row in here
        ]
        lines(axes, points, "density", "size", "format")
        axes.set(xlabel="density", ylabel="size over dense", title=unit, ylim=(0, 2.1))
        axes.legend()
