"""Bytes that zen moves for the embedding gradients of real data, against the least that any scheme could.

    python -m benchmarks.wire_bytes --data path/to/data --json build/wire_bytes.json

A worker's gradient has one non-zero row for each distinct row that its batch names. The lower bound: every worker
receives, once and without indices, each row that another worker touched. "Exact" is Balanced Parallelism with messages
exactly as large as their contents, COO push and hash-bitmap pull, rows as units; with "others", the pull leaves out
what a worker alone touched.
"""

import argparse
import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import zen_jax as zen
from benchmarks import measure, workloads
from benchmarks.exact import lower_bound
from benchmarks.processes import run_main
from zen_jax.cli.options import at_least, positive


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds gutenberg_lm/ and the others")
    parser.add_argument("--workload", default="gutenberg_lm", help="a data set of benchmarks/workloads.py")
    parser.add_argument("-n", type=at_least(2), default=8)
    parser.add_argument("--plan-steps", type=at_least(1), default=4, help="steps that the plan is measured on")
    parser.add_argument("--gbps", type=positive, default=1.0, help="rate of the links that the plan is for")
    parser.add_argument("--steps", type=at_least(1), default=8, help="later steps that are then synchronised")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    workload = workloads.load(options.workload, options.data)
    n, types, dim = options.n, workload.rows, workload.columns

    def gradients_of(touched: np.ndarray) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(touched, jnp.float32)[:, :, None], (n, types, dim))

    profile = zen.profile(*(gradients_of(workload.touched(n, step)) for step in range(options.plan_steps)))
    work = {"for_others": zen.KernelCost(0.0, 0.0)}  # known, so that a plan may choose to do it
    plans = {
        name: zen.plan(profile, zen.Cluster(n, inter_gbps=options.gbps, kernels=kernels)).leaves["(array)"]
        for name, kernels in {"planned": {}, "planned, others": work}.items()
    }

    def reduce(**how):
        def run(gradient):
            return zen.all_reduce(gradient, "data", return_info=True, **how)[1]

        return jax.jit(jax.vmap(run, axis_name="data", out_axes=None))

    runs = {name: reduce(**plan.options) for name, plan in plans.items()} | {"no plan": reduce()}
    rows = []
    for step in range(options.plan_steps, options.plan_steps + options.steps):
        touched = workload.touched(n, step)
        bound = lower_bound(touched, dim * 4)
        pushed, union = touched.sum(axis=1).mean(), touched.any(axis=0).sum()
        exact, of_others = (
            (n - 1) / n * (pushed * (dim * 4 + 4) + pulled + types / 8) for pulled in (union * dim * 4, bound)
        )
        row = {
            "step": step,
            "density": round(float(touched.mean()), 4),
            "bound_MB": round(bound / 1e6, 3),
            "exact/bound": round(exact / bound, 3),
            "exact, others/bound": round(of_others / bound, 3),
        }
        for name, run in runs.items():
            info = run(gradients_of(touched))
            moved = float(info.bytes_pushed + info.bytes_pulled)
            row |= {f"{name}/bound": round(moved / bound, 3), f"{name}/exact": round(moved / exact, 3)}
            row["dense/bound"] = round(float(info.bytes_dense) / bound, 2)
        rows.append(row)
    print(f"{workload.name}: V {types}, D {dim}, n {n}")
    for name, plan in plans.items():
        print(f"{name}: {plan}")
    print(measure.table(rows))
    result = {"environment": measure.environment(), "types": types, "n": n, "dim": dim}
    result |= {"plans": {name: dataclasses.asdict(plan) for name, plan in plans.items()}, "steps": rows}
    measure.write_json(options.json, result)


if __name__ == "__main__":
    run_main(main)
