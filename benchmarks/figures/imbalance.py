"""Imbalance of push and pull (Definition 8) against the number of workers, by unit and hash.

"auto" is the unit that zen_jax takes without a plan: blocks of a row. "room" is the fullest push message with its
indices over the mean of the values alone: narrower units balance better but have more indices. Workloads stop where
a step would need more examples than there are.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from benchmarks import exact, workloads
from benchmarks.figures.drawing import Row, by_powers_of_two, lines
from zen_jax.units import unit_width

WORKERS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)


def rows(options: argparse.Namespace) -> list[Row]:
    found = []
    for name in options.workloads:
        workload = workloads.load(name, options.data)
        for n in (n for n in WORKERS if n <= workload.max_workers):
            touched = workload.touched(n, step=0)
            blocks = workload.columns // unit_width((workload.rows, workload.columns), "auto", n)
            ways = {
                "rows, contiguous": exact.contiguous_servers(workload.rows, n),
                "rows, MurmurHash": exact.hashed_servers(workload.rows, 1, n, "murmur"),
                "rows, tile rotation": exact.hashed_servers(workload.rows, 1, n),
                "auto, tile rotation": exact.hashed_servers(workload.rows, blocks, n),
                "auto / 2, tile rotation": exact.hashed_servers(workload.rows, 2 * blocks, n),
                "auto / 4, tile rotation": exact.hashed_servers(workload.rows, 4 * blocks, n),
                "elements, tile rotation": exact.hashed_servers(workload.rows, workload.columns, n),
            }
            for way, servers in ways.items():
                push, pull = exact.imbalance(*exact.message_counts(touched, servers, n))
                value = workload.columns // servers.shape[1] * exact.ITEMSIZE
                room = push * (value + exact.INDEX) / value
                found.append({"workload": name, "units": way, "n": n, "push": push, "pull": pull, "room": room})
    return found


def draw(rows: Sequence[Row], figure: Any) -> None:
    names = list(dict.fromkeys(row["workload"] for row in rows))
    figure.set_size_inches(9, 3 * len(names))
    panels = figure.subplots(len(names), 2, squeeze=False)
    for name, across in zip(names, panels, strict=True):
        here = sorted((row for row in rows if row["workload"] == name), key=lambda row: row["units"])
        for way, axes in zip(("push", "pull"), across, strict=True):
            lines(axes, here, "n", way, "units")
            axes.axhline(1.1, color="black", linestyle=":", linewidth=0.8)
            by_powers_of_two(axes)
            axes.set(xlabel="workers", ylabel=f"{way} imbalance", title=name)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
