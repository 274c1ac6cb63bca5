"""Estimates every scheme for more workers than were profiled, and what a plan would choose.

The links stay as they are; hosts are added until there are enough workers."""

import argparse
from collections.abc import Iterable
from typing import Any

import zen_jax as zen
from zen_jax import errors
from zen_jax.cli import options as shared
from zen_jax.cli import output
from zen_jax.planning.simulate import MOST_WORKERS, doubled_workers

EXAMPLES = """  zen-jax simulate profile.json --max-workers 4096 --gbps 25
  zen-jax simulate profile.json --plot scaling.png --json scaling.json"""


def add_options(parser: argparse.ArgumentParser) -> None:
    shared.add_profile(parser)
    parser.add_argument(
        "--max-workers",
        type=shared.at_least(2),
        default=MOST_WORKERS,
        metavar="N",
        help="largest number of workers (default: %(default)s)",
    )
    shared.add_cluster(parser)
    shared.add_choice(parser)
    output.add_json(parser)
    output.add_plot(parser)


def run(options: argparse.Namespace) -> output.Result:
    profile = shared.profile(options)
    cluster = shared.cluster(options, profile)
    workers = _workers(profile.n, cluster, options.max_workers)
    output.say(f"estimating for {len(workers)} numbers of workers up to {workers[-1]}")
    simulation = zen.simulate(profile, cluster, workers=workers, schemes=options.schemes)
    return output.Result(str(simulation), simulation.to_json(), lambda figure: _draw(simulation, figure))


def _workers(profiled: int, cluster: zen.Cluster, most: int) -> list[int]:
    if most > errors.MAX_WORKERS:
        raise ValueError(f"--max-workers {most} must be at most {errors.MAX_WORKERS}.")
    workers = doubled_workers(profiled, cluster, most)
    if not workers:
        raise ValueError(f"--max-workers {most} leaves nothing to estimate: fewer than a host's workers. Allow more.")
    return workers


def _draw(simulation: zen.Simulation, figure: Any) -> None:
    """Speed-up over dense by number of workers: of every scheme, of the choice, and of the lower bound."""
    workers = [point.n for point in simulation.points]
    dense = [point.estimate.total("dense").seconds for point in simulation.points]

    def over(seconds: Iterable[float]) -> list[float]:
        return [most / each if each else float("nan") for most, each in zip(dense, seconds, strict=True)]

    axes = figure.subplots()
    for scheme in simulation.schemes:
        axes.plot(workers, over(point.estimate.total(scheme).seconds for point in simulation.points), label=scheme)
    axes.plot(workers, over(point.estimate.bound.seconds for point in simulation.points), "k:", label="lower bound")
    axes.plot(workers, [point.speed_up for point in simulation.points], "k*", label="choice")
    axes.set(xlabel="workers", ylabel="speed-up over dense", xscale="log", yscale="log", xticks=workers)
    axes.set_xticks(workers, list(map(str, workers)))
    axes.minorticks_off()
    figure.legend(loc="outside right upper")
