"""Estimates the time and bytes of every scheme for profiled gradients, and the lower bound.

Each leaf is synchronised by itself, under each scheme with the fastest unit and formats."""

import argparse
from typing import Any

import zen_jax as zen
from zen_jax.cli import options as shared
from zen_jax.cli import output

EXAMPLES = """  zen-jax estimate profile.json --gbps 25 --latency-us 50
  zen-jax estimate profile.json --devices-per-host 4 --gbps 10 --intra-gbps 200 --plot schemes.png
  zen-jax estimate profile.json --json -"""


def add_options(parser: argparse.ArgumentParser) -> None:
    shared.add_profile(parser)
    shared.add_cluster(parser)
    output.add_json(parser)
    output.add_plot(parser)


def run(options: argparse.Namespace) -> output.Result:
    profile = shared.profile(options)
    estimate = zen.estimate(profile, shared.cluster(options, profile))
    return output.Result(str(estimate), estimate.to_json(), lambda figure: _draw(estimate, figure))


def _draw(estimate: zen.Estimate, figure: Any) -> None:
    """A bar for each scheme, for all leaves together."""
    schemes = dict.fromkeys(scheme for leaf in estimate.leaves.values() for scheme in leaf)
    seconds = {scheme: estimate.total(scheme).seconds for scheme in schemes}
    slowest_first = sorted(seconds, key=seconds.get, reverse=True)
    axes = figure.subplots()
    axes.barh(slowest_first, [seconds[scheme] * 1e3 for scheme in slowest_first])
    axes.axvline(estimate.bound.seconds * 1e3, color="black", linestyle=":", label="lower bound")
    axes.set(xlabel="estimated ms", title=f"All leaves, {estimate.n} workers")
    axes.legend()
