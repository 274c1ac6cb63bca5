"""Bytes and imbalance of exact-sized messages, counted from the rows that each worker touched.

This is what a scheme would move if every message were exactly as large as its contents: no spare room, no headers. The
schemes are those of ZEN's paper (sections 2.3 and 3.3), with 4-byte indices and values of `ITEMSIZE` bytes. A row of D
columns is cut into `blocks` units with an index each: 1 for whole rows, D for elements as in the paper.
"""

from collections.abc import Callable

import numpy as np

from zen_jax import hashing
from zen_jax.formats.tensor_block import BLOCK

ITEMSIZE, INDEX = 4, 4  # bytes


def lower_bound(touched: np.ndarray, row_bytes: int) -> float:
    """Least bytes that a worker receives (the mean): once, without indices, each row that another worker touched.

    >>> lower_bound(np.array([[True, True, False], [False, True, False]]), row_bytes=10)
    15.0
    """
    by_how_many = touched.sum(axis=0, dtype=np.int64)
    union = np.count_nonzero(by_how_many)
    only_mine = np.count_nonzero(touched & (by_how_many == 1), axis=1)
    return float(np.mean(union - only_mine)) * row_bytes


def hashed_servers(rows: int, blocks: int, n: int, hash: str = "tile") -> np.ndarray:
    """int32 [rows, blocks]: the server of each unit under the tile rotation, or under MurmurHash ("murmur")."""
    units = np.arange(rows * blocks, dtype=np.uint32)
    servers = hashing.server_of(units, n) if hash == "tile" else hashing.hash_family(units, 0, n, seed=0)
    return servers.astype(np.int32).reshape(rows, blocks)


def contiguous_servers(rows: int, n: int) -> np.ndarray:
    """int32 [rows, 1]: the server of each row where the rows are split evenly and in order."""
    return (np.arange(rows, dtype=np.int64) * n // rows).astype(np.int32)[:, None]


def message_counts(touched: np.ndarray, servers: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Non-zero units by worker and server, int64 [workers, n], and, after the sum, by server, int64 [n]."""

    def count(mask: np.ndarray) -> np.ndarray:
        return np.bincount(servers[mask].ravel(), minlength=n)

    return np.stack([count(mask) for mask in touched]), count(touched.any(axis=0))


def imbalance(push: np.ndarray, pull: np.ndarray) -> tuple[float, float]:
    """Definition 8 of the paper for push, max n |I_i^j| / |I_i|, and pull, max n |I_j| / |I|.

    >>> imbalance(np.array([[3, 1], [2, 2]]), np.array([3, 2]))
    (1.5, 1.2)
    """
    n = pull.size
    return float((n * push.max(axis=1) / np.maximum(push.sum(axis=1), 1)).max()), float(n * pull.max() / pull.sum())


def busiest_link(
    push: np.ndarray, pull: np.ndarray, push_unit: float, pull_unit: float, pull_fixed: float = 0
) -> float:
    """Bytes through the busiest link in push, and then through the busiest in pull.

    That is the most that a server receives in push plus the most that one, perhaps another, sends to the others in
    pull, because pull waits for push.
    """
    n = pull.size
    received = push.sum(axis=0) - np.diagonal(push)
    return float(received.max() * push_unit + (n - 1) * (pull.max() * pull_unit + pull_fixed))


def scheme_bytes(touched: np.ndarray, columns: int, blocks: int) -> dict[str, float]:
    """Bytes through the busiest link in one all-reduce, for every scheme; n must be a power of two.

    Args:
      touched: bool [n, V], which rows each worker touches.
      columns: D, elements in a row.
      blocks: units that a row is cut into.
    """
    n, rows = touched.shape
    value = columns // blocks * ITEMSIZE
    coo = value + INDEX
    dense = rows * columns * ITEMSIZE
    mine = touched.sum(axis=1, dtype=np.int64) * blocks
    hashed = message_counts(touched, hashed_servers(rows, blocks, n), n)
    even = tuple(counts * blocks for counts in message_counts(touched, contiguous_servers(rows, n), n))
    return {
        "dense": 2 * (n - 1) / n * dense,
        "agsparse": float(mine.sum() - mine.min()) * coo,
        "sparcml": _recursive_doubling(touched, lambda units: min(units * blocks * coo, dense)),
        "omnireduce": busiest_link(*_omnireduce_counts(touched, columns), *[BLOCK * ITEMSIZE + INDEX] * 2),
        "sparse_ps": busiest_link(*even, coo, coo),
        "zen, COO pull": busiest_link(*hashed, coo, coo),
        "zen": busiest_link(*hashed, coo, value, pull_fixed=rows * blocks / n / 8),
        "zen, no index": busiest_link(*hashed, value, value),
    }


def format_bytes(units: int, nonzero: int, value: int, n: int) -> dict[str, float]:
    """Bytes that a worker receives in pull from n servers, by format (section 3.3).

    Args:
      units: units in the tensor.
      nonzero: units that are not zero after the sum.
      value: bytes of a unit's values.
      n: number of servers.

    >>> format_bytes(units=3200, nonzero=100, value=4, n=16)
    {'dense': 12800, 'COO': 800, 'bitmap': 6800.0, 'hash bitmap': 800.0}
    """
    return {
        "dense": units * value,
        "COO": nonzero * (value + INDEX),
        "bitmap": nonzero * value + n * units / 8,
        "hash bitmap": nonzero * value + units / 8,
    }


def _recursive_doubling(touched: np.ndarray, message: Callable[[int], float]) -> float:
    """Stage by stage, every worker receives the sum of as many workers as it has summed itself."""
    sums, total = touched, 0.0
    while len(sums) > 1:
        total += message(int(sums.sum(axis=1, dtype=np.int64).max()))
        sums = sums[::2] | sums[1::2]
    return total


def _omnireduce_counts(touched: np.ndarray, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Non-zero blocks by worker and server, and, after the sum, by server, under an even partition."""
    n, rows = touched.shape
    elements = rows * columns
    blocks = -(-elements // BLOCK)
    first = np.arange(rows, dtype=np.int64) * columns // BLOCK
    last = (np.arange(1, rows + 1, dtype=np.int64) * columns - 1) // BLOCK
    holds = np.zeros((n, blocks + 1), np.int32)
    for worker, mask in enumerate(touched):
        np.add.at(holds[worker], first[mask], 1)
        np.add.at(holds[worker], last[mask] + 1, -1)
    return message_counts(np.cumsum(holds, axis=1)[:, :blocks] > 0, contiguous_servers(blocks, n), n)
