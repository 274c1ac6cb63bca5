"""What profiling for a plan adds to a training step of an example.

    python -m benchmarks.profiling --json build/profiling.json
    python -m benchmarks.profiling --example nmt --data path/to/data --json build/profiling_nmt.json
    python -m benchmarks.profiling --hosts 4 --rate 100mbit --json build/profiling_hosts.json    # as root on Linux

The steps with and without a profiler take turns, from the same start on the same batches. Afterwards a planned step
holds no trace of the profiler. Without --hosts all workers share this process: sending costs nothing, and the cost of
counting weighs most.
"""

import argparse
import json
import statistics
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from examples.common.memory import keep_freed_memory

if __name__ == "__main__":
    keep_freed_memory()

import jax
import numpy as np

import zen_jax as zen
from benchmarks import measure
from benchmarks.emulated_hosts import emulated_hosts, nth_host, set_rate
from benchmarks.processes import PORT, run_group, run_main
from benchmarks.training import DATA
from examples.common.launch import joined
from examples.common.loop import initial_state, make_step
from examples.common.rank import Rank
from examples.common.task import Task
from examples.common.workers import Devices, Emulated, Workers
from zen_jax.cli.options import at_least


def seconds_by_step(task: Task, workers: Workers, plans: dict[str, Any], steps: int) -> dict[str, list[float]]:
    """Seconds of every step after the first, by name of its plan."""
    step_funs = {name: make_step(task, 0, "auto", workers, plan) for name, plan in plans.items()}
    states = {name: initial_state(task, "auto", workers) for name in plans}
    taken: dict[str, list[float]] = {name: [] for name in plans}
    for number in range(steps + 1):
        batch = workers.shard(task.batch(number, workers.local))
        for name, step_fun in step_funs.items():
            start = time.perf_counter()
            states[name], *_ = jax.block_until_ready(step_fun(states[name], batch, np.int32(number)))
            jax.effects_barrier()
            taken[name].append(time.perf_counter() - start)
    return {name: times[1:] for name, times in taken.items()}


def measured(options: argparse.Namespace, workers: Workers) -> dict[str, Any]:
    """The medians of both steps, and of their ratio."""
    example = import_module(f"examples.{options.example}.main").EXAMPLE
    data = options.data and options.data / DATA[options.example]
    config = example.config(data=data, workers=workers.count)
    task = example.task(config, example.load(config))
    taken = seconds_by_step(task, workers, {"without": None, "with a profiler": zen.Profiler()}, options.steps)
    without, profiled = taken.values()
    medians = {f"ms {name}": round(statistics.median(times) * 1e3, 1) for name, times in taken.items()}
    ratio = round(statistics.median(b / a for a, b in zip(without, profiled, strict=True)), 3)
    return {"example": options.example, **medians, "ratio": ratio}


def measured_on_hosts(options: argparse.Namespace) -> dict[str, Any]:
    """`measured` with one worker on each of `options.hosts` emulated hosts."""
    command = [sys.executable, "-m", "benchmarks.profiling", *sys.argv[1:], "--process-id"]
    with emulated_hosts(options.hosts) as hosts:
        set_rate(hosts, options.rate)
        (row,) = run_group([host.command([*command, str(rank)]) for rank, host in enumerate(hosts)])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--example", choices=DATA, default="lm")
    parser.add_argument("--data", type=Path, help="folder that holds the data sets' folders")
    parser.add_argument("--workers", type=at_least(1), default=8, help="workers in this process")
    parser.add_argument("--hosts", type=at_least(2), help="emulated hosts with one worker each, instead of --workers")
    parser.add_argument("--rate", default="100mbit", help="rate of every emulated link, each way")
    parser.add_argument("--process-id", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=at_least(1), default=30)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.process_id is not None:
        with joined(Rank(f"{nth_host(0).address}:{PORT}", options.hosts, options.process_id), timeout=300):
            row = measured(options, Devices())
        if options.process_id == 0:
            print(json.dumps(row), flush=True)
        return
    if options.hosts:
        jax.config.update("jax_platforms", "cpu")  # as in all processes that it starts
        row = {"hosts": options.hosts, "rate": options.rate} | measured_on_hosts(options)
    else:
        row = {"workers": options.workers} | measured(options, Emulated(options.workers))
    print(measure.table([row]))
    measure.write_json(options.json, {"environment": measure.environment(), **row})


if __name__ == "__main__":
    run_main(main)
