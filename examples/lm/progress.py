"""A progress bar on a terminal, a line now and then elsewhere."""

import sys
import time
from collections.abc import Iterable

from tqdm import tqdm

from examples.lm.train import Step

_LINES = 10  # a run, where the output is not a terminal


def watch(label: str, steps: Iterable[Step], total: int, words_per_step: int, quiet: bool = False) -> None:
    """Runs through `steps`, showing loss, words/s, density and bytes synchronised against dense."""
    terminal = sys.stderr.isatty() and not quiet
    bar = tqdm(total=total, desc=f"{label:<14}", unit="step", disable=not terminal, dynamic_ncols=True)
    sent = dense = 0.0
    start = time.perf_counter()
    with bar:
        for done, step in enumerate(steps, 1):
            if done == 1:
                start = time.perf_counter()  # the first step compiles
            sent += step.info["bytes_pushed"] + step.info["bytes_pulled"]
            dense += step.info["bytes_dense"]
            rate = f"{words_per_step * (done - 1) / (time.perf_counter() - start):,.0f}" if done > 1 else "-"
            # A dense all-reduce never counts what is zero.
            density = "-" if step.info["dense_taken"] == 1 else f"{step.info['density']:.2%}"
            status = (
                f"loss {step.loss:.3f}, {rate} words/s, density {density}, {sent / 1e6:,.0f} of {dense / 1e6:,.0f} MB"
            )
            bar.set_postfix_str(status, refresh=False)
            bar.update()
            if not terminal and not quiet and done % max(1, total // _LINES) == 0:
                print(f"{label:<14} step {done:>4}/{total}  {status}", flush=True)
