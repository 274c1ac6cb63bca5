"""Plans how each leaf of profiled gradients is sent: the fastest scheme and unit, and messages that fit.

zen.Plan.load reads the saved plan, and zen.synchronize(..., plan=plan) follows it."""

import argparse
from typing import Any

import zen_jax as zen
from zen_jax.cli import options as shared
from zen_jax.cli import output
from zen_jax.planning.estimate import Estimate, Estimated, total_seconds_and_bytes

EXAMPLES = """  zen-jax plan profile.json --gbps 25 --latency-us 50
  zen-jax plan profile.json --gbps 10 --save plan.json
  zen-jax plan profile.json --cluster cluster.json --plot plan.png
  zen-jax plan profile.json --schemes dense,zen,sparcml --json -"""


def add_options(parser: argparse.ArgumentParser) -> None:
    shared.add_profile(parser)
    shared.add_cluster(parser)
    shared.add_choice(parser)
    output.add_json(parser, "--save")
    output.add_plot(parser)


def run(options: argparse.Namespace) -> output.Result:
    profile = shared.profile(options)
    cluster = shared.cluster(options, profile.n)
    plan = zen.plan(profile, cluster, schemes=options.schemes)
    estimate = zen.estimate(profile, cluster)
    planned = {name: estimate.leaves[name][leaf.scheme] for name, leaf in plan.leaves.items()}
    text = f"{plan}\n{_gain(planned, estimate)}"
    return output.Result(text, plan.to_json(), lambda figure: _draw(planned, estimate, figure))


def _gain(planned: dict[str, Estimated], estimate: Estimate) -> str:
    cases = total_seconds_and_bytes(planned.values()), estimate.total("dense")
    taken, dense = (f"{seconds * 1e3:.3f} ms and {nbytes / 1e6:.3f} MB" for seconds, nbytes in cases)
    return f"estimated, each leaf by itself: {taken} a step; dense {dense}{estimate.caveat}"


def _draw(planned: dict[str, Estimated], estimate: Estimate, figure: Any) -> None:
    """Three bars for each leaf: dense, as planned, and the lower bound."""
    cases = {"dense": estimate.under("dense"), "as planned": planned, "lower bound": estimate.bounds}
    height = 0.8 / len(cases)
    axes = figure.subplots()
    for i, (label, leaves) in enumerate(cases.items()):
        axes.barh(
            [y + i * height for y in range(len(planned))],
            [leaves[name].seconds * 1e3 for name in planned],
            height,
            label=label,
        )
    axes.set_yticks([y + height for y in range(len(planned))], list(planned))
    axes.invert_yaxis()
    axes.set(xlabel="estimated ms", title=f"Every leaf by itself, {estimate.n} workers")
    axes.legend()
