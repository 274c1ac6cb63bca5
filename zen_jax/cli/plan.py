"""Plans how each leaf of profiled gradients is sent: the fastest scheme and unit, and messages that fit.

zen.Plan.load reads the saved plan, and zen.synchronize(..., plan=plan) follows it."""

import argparse

import zen_jax as zen
from zen_jax.cli import options as shared
from zen_jax.cli import output

EXAMPLES = """  zen-jax plan profile.json --gbps 25 --latency-us 50
  zen-jax plan profile.json --gbps 10 --save plan.json
  zen-jax plan profile.json --cluster cluster.json
  zen-jax plan profile.json --schemes dense,zen,sparcml --json -"""


def add_options(parser: argparse.ArgumentParser) -> None:
    shared.add_profile(parser)
    shared.add_cluster(parser)
    shared.add_choice(parser)
    output.add_json(parser, "--save")


def run(options: argparse.Namespace) -> output.Result:
    profile = zen.SparsityProfile.load(options.profile)
    plan = zen.plan(profile, shared.cluster(options, profile.n), schemes=options.schemes)
    return output.Result(str(plan), plan.to_json())
