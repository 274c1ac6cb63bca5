"""Times recursive doubling over MPI (mpi4py): SparCML's SSAR scheme, for a power-of-two number of processes.

In each of log2 n stages a process exchanges the rows that it has summed so far with one partner: indices, then values.
It starts and ends with sparse rows; "from dense" also counts finding the rows of a dense gradient and making the sum
dense, as zen_jax does.
"""

import os
from collections.abc import Callable

import numpy as np

# Otherwise processes on one machine would communicate through its memory, not over the network being measured.
os.environ |= {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp", "FI_PROVIDER": "tcp"}

from mpi4py import MPI

from benchmarks import group
from benchmarks.problem import Problem

Rows = tuple[np.ndarray, np.ndarray]  # indices int32 [k] in ascending order, values float32 [k, D]


class Processes(group.Group):
    """All processes of MPI's world."""

    def __init__(self) -> None:
        self.rank, self.size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size

    def gather(self, numbers: np.ndarray) -> np.ndarray:
        return np.stack(MPI.COMM_WORLD.allgather(np.array(numbers, np.float64)))


class RecursiveDoubling(group.Case):
    name = "MPI recursive doubling"

    def __init__(self, problem: Problem, rank: int) -> None:
        self.problem, self.rank = problem, rank

    def prepare(self, step: int) -> Callable[[], Rows]:
        rows, values = self.problem.sparse(step, self.rank)
        return lambda: reduced((rows.astype(np.int32), values))

    def dense(self, result: Rows) -> np.ndarray:
        return scattered(result, self.problem.touched.shape[-1])


class FromDense(RecursiveDoubling):
    name = "MPI recursive doubling, from dense"

    def prepare(self, step: int) -> Callable[[], np.ndarray]:
        gradient = self.problem.dense(step, self.rank)

        def call() -> np.ndarray:
            rows = np.flatnonzero(gradient.any(axis=1)).astype(np.int32)
            return scattered(reduced((rows, gradient[rows])), len(gradient))

        return call

    def dense(self, result: np.ndarray) -> np.ndarray:
        return result


def reduced(mine: Rows) -> Rows:
    """The sum of all processes' rows."""
    world = MPI.COMM_WORLD
    held, stage = mine, 1
    while stage < world.size:
        held = merged(held, exchanged(held, world.rank ^ stage))
        stage *= 2
    return held


def scattered(rows: Rows, count: int) -> np.ndarray:
    """Rows as a dense array of `count` rows."""
    full = np.zeros((count, rows[1].shape[1]), np.float32)
    full[rows[0]] = rows[1]
    return full


def exchanged(mine: Rows, partner: int) -> Rows:
    """Sends my rows to the partner and returns the partner's."""
    world = MPI.COMM_WORLD
    count = world.sendrecv(mine[0].size, partner, source=partner)
    theirs = np.empty(count, np.int32), np.empty((count, mine[1].shape[1]), np.float32)
    for sent, received in zip(mine, theirs, strict=True):
        world.Sendrecv(sent, partner, recvbuf=received, source=partner)
    return theirs


def merged(a: Rows, b: Rows) -> Rows:
    """The sum of two sets of rows."""
    rows = np.union1d(a[0], b[0])
    values = np.zeros((rows.size, a[1].shape[1]), np.float32)
    values[np.searchsorted(rows, a[0])] = a[1]
    values[np.searchsorted(rows, b[0])] += b[1]
    return rows, values


def main() -> None:
    options = group.arguments(__doc__)
    problem = Problem.load(options.problem)
    processes = Processes()
    count = problem.touched.shape[1]
    if processes.size != count or count & (count - 1):
        raise ValueError(f"{processes.size} processes must match the problem's {count} workers and be a power of two.")
    cases = [case(problem, processes.rank) for case in (RecursiveDoubling, FromDense)]
    group.measure(processes, problem, cases, options)


if __name__ == "__main__":
    main()
