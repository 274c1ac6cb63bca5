"""A progress bar on a terminal, an occasional line elsewhere."""

import sys
import time
from collections.abc import Iterable, Iterator

from tqdm import tqdm

from examples.common.loop import Run, State, Step
from examples.common.task import Task

_LINES = 10  # per run, if the output is not a terminal


def watch(
    run: Run, steps: Iterable[tuple[Step, State]], total: int, task: Task, quiet: bool
) -> Iterator[tuple[Step, State]]:
    """Passes `steps` through, showing loss, speed, density, and bytes synchronised compared with dense."""
    terminal = sys.stderr.isatty() and not quiet
    first = len(run.steps)
    label = f"{run.scheme:<14}"
    bar = tqdm(total=total, initial=first, desc=label, unit="step", disable=not terminal, dynamic_ncols=True)
    sent = dense = 0.0
    start = time.perf_counter()
    with bar:
        for done, (step, state) in enumerate(steps, first + 1):
            yield step, state
            timed = done - first - 1
            if not timed:
                start = time.perf_counter()  # the first step compiles
            sent += step.info["bytes_pushed"] + step.info["bytes_pulled"]
            dense += step.info["bytes_dense"]
            rate = f"{task.items_per_step * timed / (time.perf_counter() - start):,.0f}" if timed else "-"
            # A dense all-reduce does not count zeros.
            density = "-" if step.info["dense_taken"] == 1 else f"{step.info['density']:.2%}"
            status = (
                f"loss {step.loss:.3f}, {rate} {task.items}/s, density {density}, "
                f"{sent / 1e6:,.0f} of {dense / 1e6:,.0f} MB"
            )
            bar.set_postfix_str(status, refresh=False)
            bar.update()
            if not terminal and not quiet and done % max(1, total // _LINES) == 0:
                print(f"{label} step {done:>4}/{total}  {status}", flush=True)
