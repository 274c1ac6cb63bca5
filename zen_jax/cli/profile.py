"""Measures how sparse gradients are: density, densification, skewness and overlap of every leaf.

Each file is one step: an .npz with a float array of shape [n, ...] for each leaf, one slice per worker.
numpy.savez(FILE, **gradients) writes one."""

import argparse
from pathlib import Path
from typing import Any

import zen_jax as zen
from zen_jax._typing import Unit
from zen_jax.cli import gradients, output
from zen_jax.cli.options import at_least

EXAMPLES = """  zen-jax profile gradients.npz
  zen-jax profile step1.npz step2.npz --save profile.json --plot sparsity.png
  zen-jax profile gradients.npz --unit row --json -"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "gradients", nargs="+", type=Path, metavar="GRADIENTS.npz", help="stacked gradients of one step"
    )
    parser.add_argument(
        "--unit",
        type=_unit,
        help="measure only this unit: element, row, auto or a number of columns (default: several)",
    )
    parser.add_argument(
        "--devices-per-host",
        type=at_least(1),
        default=1,
        metavar="N",
        help="devices that share each slice, the sum of a host's (default: %(default)s)",
    )
    output.add_json(parser, "--save")
    output.add_plot(parser)


def run(options: argparse.Namespace) -> output.Result:
    steps = gradients.read(options.gradients)
    output.say(f"profiling the gradients of {gradients.workers(steps[0])} workers")
    profile = zen.profile(*steps, unit=options.unit, devices_per_host=options.devices_per_host)
    return output.Result(str(profile), profile.to_json(), lambda figure: _draw(profile, figure))


def _unit(word: str) -> Unit:
    return int(word) if word.isdecimal() else word


def _draw(profile: zen.SparsityProfile, figure: Any) -> None:
    """Densification by number of workers and skewness by number of partitions, in each leaf's finest units."""
    left, right = figure.subplots(1, 2)
    workers = range(1, profile.n + 1)
    for name, leaf in profile.leaves.items():
        if leaf.by_width:
            finest = leaf.by_width[min(leaf.by_width)]
            label = f"density {finest.density:.2%}: {output.drawn(name)}"  # legends leave out labels that begin with _
            left.plot(workers, [finest.densification(k) for k in workers], marker=".", label=label)
            right.plot(finest.partition_skewness.keys(), finest.partition_skewness.values(), marker=".", label=label)
    left.set(xlabel="workers summed", ylabel="densification ratio", title="Sums grow denser")
    right.set(xlabel="partitions", ylabel="skewness ratio", title="Non-zeros cluster", xscale="log", yscale="log")
    if left.lines:
        left.legend()
