"""The timing loop of `bench`: cases take turns, and processes wait for each other before every call."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from zen_jax.cli.output import say


class Case(Protocol):
    """One way to reduce."""

    name: str

    def prepare(self, step: int) -> Callable[[], Any]:
        """A call that reduces the gradients of a step and returns when the result is ready."""

    def info(self, result: Any) -> dict[str, float]:
        """What the case reports about a call; equal on all workers."""


@dataclass(frozen=True)
class Timing:
    """The timing of one case."""

    name: str
    seconds: tuple[float, ...]  # of each call, from a barrier to the end of its slowest process
    received: float | None  # bytes in a call, by the counters, barriers included; mean over processes and calls
    first_call: float  # seconds, compiling included
    info: dict[str, float]  # means over the calls

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def time_cases(
    cases: Sequence[Case],
    *,
    gather: Callable[[np.ndarray], np.ndarray],
    steps: int,
    repeats: int,
    received: Callable[[], int] | None = None,
    report: Callable[[str], None] = say,
) -> list[Timing]:
    """Times every case on the same gradients. Each process calls it with the same arguments.

    Cases take turns, so that a temporary disturbance of the machine affects them alike.

    Args:
      cases: what to time.
      gather: from float64 [...] of this process to [processes, ...] of all; waits for all of them.
      steps: how many steps' gradients there are; calls cycle through them.
      repeats: timed calls of each case.
      received: bytes that this process has received so far, by a counter; None for no counter.
      report: called with a line about what has been done.

    >>> class Sleep:
    ...     name = "sleep"
    ...     def prepare(self, step):
    ...         return lambda: time.sleep(0.001)
    ...     def info(self, result):
    ...         return {"bytes_pushed": 0.0}
    >>> sleep, = time_cases([Sleep()], gather=lambda x: x[None], steps=1, repeats=3, report=lambda line: None)
    >>> len(sleep.seconds), sleep.median > 0.001, sleep.info
    (3, True, {'bytes_pushed': 0.0})
    """
    first_calls = []
    for number, case in enumerate(cases, 1):
        start = time.perf_counter()
        case.prepare(0)()
        first_calls.append(time.perf_counter() - start)
        report(f"compiled {case.name} in {first_calls[-1]:.1f} s ({number} of {len(cases)})")
    count = received or (lambda: 0)
    measured = np.zeros((2, len(cases), repeats))  # seconds, bytes received
    infos: list[list[dict[str, float]]] = [[] for _ in cases]
    for repeat in range(repeats):
        for i, case in enumerate(cases):
            call = case.prepare(repeat % steps)
            gather(np.zeros(1))
            before, start = count(), time.perf_counter()
            result = call()
            seconds = time.perf_counter() - start
            gather(np.zeros(1))  # slower processes may still receive
            measured[:, i, repeat] = seconds, count() - before
            infos[i].append(case.info(result))
        report(f"timed call {repeat + 1} of {repeats}")
    by_process = gather(measured)
    slowest, wire = by_process[:, 0].max(axis=0), by_process[:, 1].mean(axis=(0, 2))
    return [
        Timing(
            case.name,
            tuple(map(float, slowest[i])),
            float(wire[i]) if received else None,
            first_calls[i],
            _means(infos[i]),
        )
        for i, case in enumerate(cases)
    ]


def _means(infos: Sequence[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.fmean(info[key] for info in infos) for key in infos[0]}
