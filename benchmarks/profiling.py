"""What profiling for a plan adds to a training step of the language model.

    python -m benchmarks.profiling --json build/profiling.json

The step with a profiler and the step without one take turns, from the same start on the same batches. All workers share
this process, so that sending costs nothing and what the counting costs weighs most. Afterwards a plan's step holds no
trace of the profiler.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from examples.common.memory import keep_freed_memory

if __name__ == "__main__":
    keep_freed_memory()

import jax
import numpy as np

import zen_jax as zen
from benchmarks import measure
from examples.common.loop import initial_state, make_step
from examples.common.task import Task
from examples.common.workers import Emulated
from examples.lm.config import Config
from examples.lm.task import language_modelling, load


def seconds_by_step(task: Task, workers: Emulated, plans: dict[str, Any], steps: int) -> dict[str, list[float]]:
    """Seconds of every step after the first, by name of its plan."""
    step_funs = {name: make_step(task, 0, "auto", workers, plan) for name, plan in plans.items()}
    states = {name: initial_state(task, "auto", workers) for name in plans}
    taken: dict[str, list[float]] = {name: [] for name in plans}
    for number in range(steps + 1):
        batch = workers.spread(task.batch(number, workers.local))
        for name, step_fun in step_funs.items():
            start = time.perf_counter()
            states[name], *_ = jax.block_until_ready(step_fun(states[name], batch, np.int32(number)))
            jax.effects_barrier()
            taken[name].append(time.perf_counter() - start)
    return {name: times[1:] for name, times in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="as of examples.lm.main")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    config = Config(data=options.data, workers=options.workers)
    task = language_modelling(config, load(config))
    plans = {"without": None, "with a profiler": zen.Profiler()}
    taken = seconds_by_step(task, Emulated(options.workers), plans, options.steps)
    without, profiled = taken.values()
    row = {f"ms {name}": round(statistics.median(times) * 1e3, 1) for name, times in taken.items()}
    row["ratio"] = round(statistics.median(b / a for a, b in zip(without, profiled, strict=True)), 3)
    print(*task.lines, measure.table([row]), sep="\n")
    measure.write_json(options.json, {"environment": measure.environment(), "workers": options.workers, **row})


if __name__ == "__main__":
    main()
