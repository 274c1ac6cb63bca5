"""Profiles a whole emulated all-reduce of an embedding gradient against its kernels.

    python -m benchmarks.all_reduce --rows 78125 --columns 256 -n 8 --json build/all_reduce.json

All n workers run in one process under vmap, so the "network" is memory, and what remains besides the kernels is
packing, exchange and agreement. The kernels run alone, on the same operands, in turn with the whole. The process keeps
the memory it frees, as the examples do.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from examples.common.memory import keep_freed_memory

if __name__ == "__main__":
    keep_freed_memory()

import jax
import jax.numpy as jnp
import numpy as np

import zen_jax as zen
from benchmarks import measure
from benchmarks.processes import run_main
from zen_jax.cli.options import at_least
from zen_jax.units import unit_width


def embedding_gradients(n: int, rows: int, columns: int, tokens: int) -> jax.Array:
    """[n, rows, columns] whose rows are touched by `tokens` draws from Zipf's law on each worker."""
    rng = np.random.default_rng(0)
    weights = 1 / np.arange(1, rows + 1)
    order = rng.permutation(rows)
    gradients = np.zeros((n, rows, columns), np.float32)
    for gradient in gradients:
        touched = order[np.unique(rng.choice(rows, tokens, p=weights / weights.sum()))]
        gradient[touched] = rng.standard_normal((touched.size, columns), np.float32)
    return jnp.asarray(gradients)


def kernel_calls(gradients: jax.Array, plan: zen.LeafPlan) -> dict[str, Callable[[], Any]]:
    """A callable for each kernel, for all n workers, on the operands that it has inside the all-reduce."""
    n = gradients.shape[0]
    push, pull = plan.capacity
    units = gradients.reshape(n, -1, plan.unit)
    size = -(-units.shape[1] // n)
    calls = {}

    def add(name: str, run: Callable[..., Any], *operands: jax.Array) -> Any:
        compiled = jax.jit(run)
        calls[name] = lambda: compiled(*operands)
        return compiled(*operands)

    partition = jax.vmap(lambda x: zen.kernels.partition(x, n, push))
    positions, values, counts = add("partition", partition, units)
    inbox = [jnp.swapaxes(array, 0, 1) for array in (positions, values, counts)]
    aggregate_encode = jax.vmap(lambda *inbox: zen.kernels.aggregate_encode(*inbox, size, pull, divisor=n))
    words, values, _ = add("aggregate_encode", aggregate_encode, *inbox)
    decode = lambda words, values: zen.kernels.hash_bitmap_decode(words, values, units.shape[1])
    add("decode", decode, words, values)
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=at_least(1), default=78125)
    parser.add_argument("--columns", type=at_least(1), default=256)
    parser.add_argument("--tokens", type=at_least(1), default=4480, help="rows drawn by each worker (default 128 * 35)")
    parser.add_argument("-n", type=at_least(2), default=8, help="emulated workers")
    parser.add_argument("--repeats", type=at_least(1), default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    n = options.n
    gradients = embedding_gradients(n, options.rows, options.columns, options.tokens)
    profile = zen.profile(gradients, unit="auto")
    plan = zen.plan(profile, zen.Cluster(n, inter_gbps=1), schemes=("dense_ordered", "auto")).leaves["(array)"]
    if plan.capacity is None:
        sys.exit("error: this gradient is sent dense. Give more --rows or fewer --tokens.")
    calls = kernel_calls(gradients, plan)
    times = {name: measure.seconds(call, options.repeats)["median"] * 1e3 for name, call in calls.items()}
    kernels = lambda: measure.in_turn(calls.values())
    whole = {}
    for name, keywords in {
        "zen, planned": {"scheme": "zen", "capacity": plan.capacity},
        "zen, no plan": {"scheme": "zen"},
        "auto, planned": {"scheme": "auto", "capacity": plan.capacity},
        "auto, no plan": {"scheme": "auto"},
        "dense (pmean)": {"scheme": "dense"},
        "dense_ordered": {"scheme": "dense_ordered"},
    }.items():
        reduce = lambda g: zen.all_reduce(g, "data", **keywords)  # noqa: B023
        run = jax.jit(jax.vmap(reduce, axis_name="data", out_axes=None))
        whole[name] = measure.ratio(lambda: run(gradients), kernels, options.repeats)  # noqa: B023
    width = unit_width(gradients.shape[1:], "auto", n)
    print(f"{n} emulated workers, gradient [{options.rows}, {options.columns}] float32, units of {width} columns")
    rows = [{"part": name, "ms": round(ms, 2)} for name, ms in times.items()]
    rows += [
        {
            "part": name,
            "ms": round(took["median"] * 1e3, 2),
            "kernels in turn": round(took["to"] * 1e3, 2),
            "of the kernels": round(took["ratio"], 2),
        }
        for name, took in whole.items()
    ]
    print(measure.table(rows))
    measure.write_json(
        options.json,
        {
            "environment": measure.environment(),
            "options": vars(options) | {"json": None},
            "kernels_ms": times,
            "whole_ms": {name: took["median"] * 1e3 for name, took in whole.items()},
            "kernels_in_turn_ms": {name: took["to"] * 1e3 for name, took in whole.items()},
            "of_kernels": {name: took["ratio"] for name, took in whole.items()},
        },
    )


if __name__ == "__main__":
    run_main(main)
