"""Times a training step on an embedding table: lookup, a toy head, backward, and the update of a donated table.

    python -m benchmarks.sparse_embedding --json build/sparse_embedding.json

The row-sparse step is timed on tables of two sizes, alone and with emulated workers that synchronise (all in one
process under vmap, so the "network" is memory), and beside a step that uses JAX's dense gradient. Every case runs in
two processes of its own, one of which keeps the memory that it frees, as dense gradients need: the faster one's times
count. In the other the growth of the peak memory after compiling is a lower bound for a step's memory, because a step
reuses what compiling has freed; XLA's plan for temporaries is shown beside it. Huge pages are requested, because random
rows of a table of gigabytes otherwise cost a page walk each; `--small-pages` leaves them out.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import zen_jax as zen
from benchmarks import measure
from benchmarks.processes import KEEP_FREED_MEMORY, run_main
from zen_jax.cli.options import at_least

HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
OPTIMIZERS = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9),
    "adagrad": lambda: optax.adagrad(0.1),
    "adam": lambda: optax.adam(0.1),
    "adamw": lambda: optax.adamw(0.1),
}


def loss(params: dict[str, jax.Array], ids: jax.Array) -> jax.Array:
    """A linear head with a squared loss over the looked-up rows."""
    return jnp.mean((zen.embedding.lookup(params["table"], ids) @ params["head"] - 1.0) ** 2)


def make_step(gradient: str, optimizer: str, workers: int):
    """The optimizer and a jitted, donating step (params, state, ids [workers, K]) -> (params, state)."""
    inner = OPTIMIZERS[optimizer]()
    if gradient == "dense":
        chain, value_and_grad = inner, jax.value_and_grad(loss)
    else:
        chain = zen.embedding.lazy(inner)
        value_and_grad = zen.embedding.value_and_grad(loss, lambda ids: {"table": ids})
    if workers > 1:
        chain = optax.chain(zen.synchronize("data"), chain)

    def worker(params: Any, state: Any, ids: jax.Array) -> tuple:
        _, gradients = value_and_grad(params, ids)
        updates, state = chain.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    def step(params: Any, state: Any, ids: jax.Array) -> tuple:
        if workers == 1:
            return worker(params, state, ids[0])
        return jax.vmap(worker, axis_name="data", in_axes=(None, None, 0), out_axes=None)(params, state, ids)

    return chain, jax.jit(step, donate_argnums=(0, 1))


def run_case(rows: int, columns: int, ids: int, workers: int, gradient: str, optimizer: str, repeats: int) -> dict:
    """Milliseconds of a step, seconds to compile, and MiB by which the process's peak grows."""
    transform, step = make_step(gradient, optimizer, workers)
    fill = partial(jax.jit, static_argnums=0)(lambda shape: jnp.full(shape, 0.01, jnp.float32))
    params = {"table": fill((rows, columns)), "head": fill((columns,))}
    state = jax.jit(transform.init)(params)
    jax.block_until_ready((params, state))
    rng = np.random.default_rng(0)
    batches = [jnp.asarray(rng.integers(0, rows, (workers, ids)), jnp.int32) for _ in range(repeats + 3)]
    start = time.perf_counter()
    compiled = step.lower(params, state, batches[0]).compile()
    compile_seconds = time.perf_counter() - start
    held = peak_mib()
    times = []
    for batch in batches:
        start = time.perf_counter()
        params, state = jax.block_until_ready(compiled(params, state, batch))
        times.append(time.perf_counter() - start)
    return {
        "ms": float(np.median(times[3:])) * 1e3,
        "fastest ms": min(times[3:]) * 1e3,
        "step MiB": peak_mib() - held,
        "temporaries MiB": compiled.memory_analysis().temp_size_in_bytes / 2**20,
        "compile s": compile_seconds,
    }


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_own_process(environment: dict[str, str], **case: Any) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.sparse_embedding", "--case", json.dumps(case)]
    finished = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    if finished.returncode:
        raise SystemExit(f"{case} failed with exit code {finished.returncode}:\n{finished.stderr[-2000:]}")
    return json.loads(finished.stdout.splitlines()[-1])


def measured(pages: dict[str, str], **case: Any) -> dict[str, Any]:
    """A case in a process that returns memory it frees, with the times of one that keeps it where that is faster."""
    lean, keeping = (in_own_process(pages | variables, **case) for variables in ({}, KEEP_FREED_MEMORY))
    print(f"{case['gradient']}, {case['rows']} rows, {case['workers']} workers: done", file=sys.stderr)
    timed = min(lean, keeping, key=lambda found: found["ms"])
    return case | lean | {name: timed[name] for name in ("ms", "fastest ms")} | {"keeps memory": timed is keeping}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=at_least(1), nargs="+", default=[100_000, 10_000_000])
    parser.add_argument("--columns", type=at_least(1), default=64)
    parser.add_argument("--ids", type=at_least(1), default=4096, help="ids that each worker looks up in a step")
    parser.add_argument(
        "--workers", type=at_least(1), nargs="+", default=[1, 4, 8], help="emulated ones; above 1 there is no dense row"
    )
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd")
    parser.add_argument("--repeats", type=at_least(1), default=30)
    parser.add_argument("--small-pages", action="store_true", help="leave the page size to the system")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is not None:
        print(json.dumps(run_case(**options.case)))
        return

    cases = [
        {"rows": rows, "workers": workers, "gradient": gradient, "repeats": options.repeats if sparse else 5}
        for gradient, sparse in (("row-sparse", True), ("dense", False))
        for workers in options.workers
        for rows in options.rows
        if sparse or workers == 1  # the dense gradients of several workers would need memory for as many tables
    ]
    fixed = {"columns": options.columns, "ids": options.ids, "optimizer": options.optimizer}
    setting = {"environment": measure.environment(), "options": fixed | {"small_pages": options.small_pages}}
    results = []
    for case in cases:
        results.append(measured({} if options.small_pages else HUGE_PAGES, **case, **fixed))
        measure.write_json(options.json, setting | {"results": results})
    shown = [{key: round(v, 2) if isinstance(v, float) else v for key, v in row.items()} for row in results]
    print(measure.table([{k: v for k, v in row.items() if k not in (*fixed, "repeats")} for row in shown]))


if __name__ == "__main__":
    run_main(main)
