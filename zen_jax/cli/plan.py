"""Plans how the leaves of profiled gradients are sent: which as one, by the fastest scheme, in messages that fit.

zen.Plan.load reads the saved plan, and zen.synchronize(..., plan=plan) follows it."""

import argparse
from typing import Any

import zen_jax as zen
from zen_jax.cli import options as shared
from zen_jax.cli import output
from zen_jax.planning.estimate import estimate_leaf, total_cost
from zen_jax.planning.joined import joined_vector
from zen_jax.planning.messages import Message, messages
from zen_jax.planning.plan import candidate_schemes, plan_of
from zen_jax.planning.sparsity import SparsityProfile

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
    cluster = shared.cluster(options, profile)
    sent = messages(profile, cluster, candidate_schemes(options.schemes))
    plan, estimate = plan_of(sent, profile, cluster), zen.estimate(profile, cluster)
    rows = [_Row(message, profile, cluster, estimate) for message in sent]
    return output.Result(
        f"{plan}\n{_gain(rows, estimate)}", plan.to_json(), lambda figure: _draw(rows, estimate, figure)
    )


class _Row:
    """Leaves that the plan sends as one: as planned, dense by psum, and the lower bound."""

    def __init__(
        self, message: Message, profile: SparsityProfile, cluster: zen.Cluster, estimate: zen.Estimate
    ) -> None:
        leaves = [profile.leaves[name] for name in message.leaves]
        others = f" and {len(leaves) - 1} more" if len(leaves) > 1 else ""
        self.label = message.leaves[0] + others
        self.planned = message.way
        self.dense = estimate_leaf(joined_vector(leaves), cluster, profile.n)["dense"]
        self.bound = sum(estimate.bounds[name].seconds for name in message.leaves)


def _gain(rows: list[_Row], estimate: zen.Estimate) -> str:
    cases = ([row.planned for row in rows], [row.dense for row in rows])
    costs = map(total_cost, cases)
    planned, dense = (f"{cost.seconds * 1e3:.3f} ms and {cost.nbytes / 1e6:.3f} MB" for cost in costs)
    return f"estimated: {planned} a step; dense {dense}{estimate.caveat}"


def _draw(rows: list[_Row], estimate: zen.Estimate, figure: Any) -> None:
    """Three bars for each leaf, or for those sent as one: dense, as planned, and the lower bound."""
    cases = {
        "dense": [row.dense.seconds for row in rows],
        "as planned": [row.planned.seconds for row in rows],
        "lower bound": [row.bound for row in rows],
    }
    height = 0.8 / len(cases)
    axes = figure.subplots()
    for i, (label, seconds) in enumerate(cases.items()):
        axes.barh([y + i * height for y in range(len(rows))], [each * 1e3 for each in seconds], height, label=label)
    axes.set_yticks([y + height for y in range(len(rows))], [output.drawn(row.label) for row in rows])
    axes.invert_yaxis()
    axes.set(xlabel="estimated ms", title=f"{estimate.n} workers")
    axes.legend()
