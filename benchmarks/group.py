"""A group of processes that time the same collectives: the loop that zen_jax's worker and every peer share.

Each process is started with the options of `arguments`; rank 0 prints one JSON record for each case and rate. The time
of a call runs from a barrier until its slowest worker is done. Bytes are the network interface's own counters from
barrier to barrier, headers included; segments that are cut later (offloading) are counted with one header.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks import emulated_hosts
from benchmarks.problem import Problem

UNLIMITED = "unlimited"  # of an emulated link
AS_IS = "as-is"  # a real network's rate
WARM_UP = 3  # rounds of calls that do not count: the first ones take memory that the allocator then keeps


class Group(Protocol):
    """The processes of one framework."""

    rank: int
    size: int

    def gather(self, numbers: np.ndarray) -> np.ndarray:
        """float64 [...] of this process to [n, ...] of all; no process continues before all have arrived."""

    def at_rate(self, rate: str) -> dict[str, dict[str, Any]]:
        """Called in every process once the links have a new rate. What it returns for a case goes into its record."""
        return {}


class Case(Protocol):
    """One way to reduce."""

    name: str

    def prepare(self, step: int) -> Callable[[], Any]:
        """A callable that reduces this worker's gradient of a step and returns when the result is ready."""

    def dense(self, result: Any) -> np.ndarray:
        """The result as float32 [V, D]."""

    def info(self, result: Any) -> dict[str, float]:
        """What the scheme itself reports about a call; equal on all workers."""
        return {}


def arguments(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", type=Path, required=True, help="file written by benchmarks.network")
    parser.add_argument("--coordinator", help="HOST:PORT of process 0, unless a launcher gives it")
    parser.add_argument("--process-id", type=int)
    parser.add_argument("--rates", nargs="+", default=[AS_IS], help="link rates, for emulated hosts only")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--interface", default=emulated_hosts.INTERFACE, help="interface whose byte counters are read")
    return parser.parse_args()


def measure(group: Group, problem: Problem, cases: Sequence[Case], options: argparse.Namespace) -> None:
    """Runs every case once, then times all at every rate, checking every result; rank 0 prints the records."""
    first_calls = {}
    for case in cases:
        start = time.perf_counter()
        result = case.prepare(0)()
        first_calls[case.name] = time.perf_counter() - start
        problem.check(case.name, 0, case.dense(result))
        _say(group, f"{case.name}: correct; first call {first_calls[case.name]:.1f} s")
    for rate in options.rates:
        _set_rate(group, rate)
        extra = group.at_rate(rate)
        for record in _time_cases(group, problem, cases, rate, options):
            if group.rank == 0:
                name = record["case"]
                record |= {"rate": rate, "n": group.size, "first_call": first_calls[name], **extra.get(name, {})}
                print(json.dumps(record), flush=True)


def _set_rate(group: Group, rate: str) -> None:
    """Sets the rate of emulated links before any process continues."""
    if rate != AS_IS and group.rank == 0:
        hosts = [emulated_hosts.nth_host(i) for i in range(group.size)]
        emulated_hosts.set_rate(hosts, None if rate == UNLIMITED else rate)
    group.gather(np.zeros(1))


def _time_cases(
    group: Group, problem: Problem, cases: Sequence[Case], rate: str, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Cases take turns, so that temporary disturbances of the machine affect them alike.

    They warm up without a limit to emulated links, where that takes less time.
    """
    measured = np.zeros((len(cases), options.repeats, 3))
    infos: dict[str, list[dict[str, float]]] = {case.name: [] for case in cases}
    _set_rate(group, rate if rate == AS_IS else UNLIMITED)
    for repeat in range(-WARM_UP, options.repeats):
        if repeat == 0:
            _set_rate(group, rate)
        for i, case in enumerate(cases):
            step = repeat % len(problem.touched)
            call = case.prepare(step)
            group.gather(np.zeros(1))
            before = _counters(options.interface)
            start = time.perf_counter()
            result = call()
            seconds = time.perf_counter() - start
            group.gather(np.zeros(1))
            moved, info = np.subtract(_counters(options.interface), before), case.info(result)
            problem.check(case.name, step, case.dense(result))
            if repeat >= 0:
                measured[i, repeat] = seconds, *moved
                infos[case.name].append(info)
    by_worker = group.gather(measured)  # [n, cases, repeats, (seconds, received, sent)]
    for i, case in enumerate(cases):
        seconds = by_worker[:, i, :, 0].max(axis=0)
        link = by_worker[:, i, :, 1:].mean(axis=1)
        _say(group, f"{case.name}: {statistics.median(seconds) * 1e3:.1f} ms")
        if group.size > 1 and not link[:, 0].all():
            raise ValueError(f"{case.name} received nothing over {options.interface}. Give the interface that it uses.")
        yield {
            "case": case.name,
            "seconds": {
                "median": statistics.median(seconds),
                "min": seconds.min(),
                "max": seconds.max(),
                "all": seconds.tolist(),
            },
            "received": link[:, 0].mean(),
            "busiest": link.max(),
            "info": {key: float(np.mean([info[key] for info in infos[case.name]])) for key in infos[case.name][0]},
        }


def _counters(interface: str) -> tuple[int, int]:
    """Bytes received and sent by an interface since it came up."""
    folder = Path("/sys/class/net") / interface / "statistics"
    return int((folder / "rx_bytes").read_text()), int((folder / "tx_bytes").read_text())


def _say(group: Group, line: str) -> None:
    if group.rank == 0:
        print(line, file=sys.stderr, flush=True)
