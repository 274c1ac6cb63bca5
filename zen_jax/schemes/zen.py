"""Balanced Parallelism: COO messages to the hashed servers, aggregation, hash bitmaps back."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from zen_jax import _axis, kernels
from zen_jax._typing import Array, AxisName
from zen_jax.formats import coo, hash_bitmap
from zen_jax.info import Info, make_info
from zen_jax.schemes.dense import dense_bytes, dense_info, dense_ordered
from zen_jax.schemes.ladder import ladder, rung_for
from zen_jax.schemes.partitioning import Partitioning

COUNT_BYTES = 8  # what the agreement on the push capacity moves, from each worker to each


class _Exchange(NamedTuple):
    """What is fixed when the exchange is traced."""

    axis_name: AxisName
    n: int
    hashed: Partitioning
    width: int
    dtype: jnp.dtype
    divisor: int
    push_rungs: tuple[int, ...]
    pull_rungs: tuple[int, ...]
    planned: int | None


def zen(
    x: Array,
    axis_name: AxisName,
    *,
    op: str,
    hashed: Partitioning,
    capacity: tuple[int | None, int | None] = (None, None),
    dense_fallback: bool = False,
) -> tuple[Array, Info]:
    """All-reduces the non-zero units of x by Balanced Parallelism.

    Nothing is ever dropped: a message that outgrows a rung of the capacity ladder takes the next one, and the last
    holds every unit. With `dense_fallback` the ladder ends where sparse traffic could exceed dense traffic, and
    `dense_ordered` takes over. Sums run in worker order on every path.

    Args:
      x: float [U, m], this worker's gradient cut into units.
      axis_name: the workers' axis.
      op: "sum" or "mean".
      hashed: which server owns which unit.
      capacity: units expected in the fullest push and pull message; None for a ladder over all densities.
      dense_fallback: whether to go dense when sparse messages would move more bytes.

    Returns:
      The reduced [U, m], bitwise equal on all workers, and what it took.

    Source: ZEN (OSDI 2025), section 3.
    """
    units, width = x.shape
    n = _axis.axis_size(axis_name)
    size = hashed.size
    top = _sparse_limit(size, width, x.dtype, n) if dense_fallback else size
    if top == 0:
        return dense_ordered(x, axis_name, op=op), dense_info(x.size, x.dtype, n)
    unit_bytes = width * x.dtype.itemsize
    exchange = _Exchange(
        axis_name,
        n,
        hashed,
        width,
        x.dtype,
        divisor=n if op == "mean" else 1,
        push_rungs=ladder(top, capacity[0], unit_bytes),
        pull_rungs=ladder(size, capacity[1], unit_bytes),
        planned=capacity[0],
    )
    positions, values, counts = hashed.partition(x, top)
    fullest, push_stats = _agree_on_push(counts, units, exchange)
    if not dense_fallback:
        return _exchange_sparse(exchange, positions, values, counts, fullest, push_stats)

    def sparse(_: Array) -> tuple[Array, Info]:
        return _exchange_sparse(exchange, positions, values, counts, fullest, push_stats)

    def dense(x: Array) -> tuple[Array, Info]:
        return dense_ordered(x, axis_name, op=op), dense_info(x.size, x.dtype, n)._replace(**push_stats)

    return lax.cond(fullest > top, dense, sparse, x)


def _sparse_limit(size: int, width: int, dtype: jnp.dtype, n: int) -> int:
    """The largest push capacity with which push and pull cannot move more bytes than a dense all-reduce."""

    def moved(capacity: int) -> int:
        pull = hash_bitmap.message_bytes(size, min(size, n * capacity), width, dtype)
        return coo.message_bytes(capacity, width, dtype) + pull + COUNT_BYTES

    low, high = 0, size
    budget = 2 * size * width * jnp.dtype(dtype).itemsize
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if moved(middle) <= budget else (low, middle - 1)
    return low


def _agree_on_push(counts: Array, units: int, exchange: _Exchange) -> tuple[Array, dict[str, Array]]:
    """The fullest push message of any worker, and the statistics of Info that are known by then."""
    # One tiny collective carries the exact maximum and, as float bits, the total.
    total_bits = lax.bitcast_convert_type(jnp.sum(counts, dtype=jnp.float32), jnp.int32)
    table = _axis.all_gather(jnp.stack([jnp.max(counts), total_bits]), exchange.axis_name)
    fullest_by_worker = table[:, 0]
    totals = lax.bitcast_convert_type(table[:, 1], jnp.float32)
    fullest = jnp.max(fullest_by_worker)
    imbalance = exchange.n * fullest_by_worker.astype(jnp.float32) / jnp.maximum(totals, 1.0)
    rounds = jnp.ceil(fullest / exchange.planned) if exchange.planned else jnp.ones((), jnp.float32)
    return fullest, {
        "density": jnp.mean(totals) / units,
        "imbalance_push": jnp.max(imbalance),
        "rounds": jnp.maximum(rounds, 1.0).astype(jnp.float32),
    }


def _exchange_sparse(
    exchange: _Exchange, positions: Array, values: Array, counts: Array, fullest: Array, stats: dict[str, Array]
) -> tuple[Array, Info]:
    axis_name, n, hashed, width, dtype, divisor, push_rungs, pull_rungs, _ = exchange
    size = hashed.size

    def push(capacity: int) -> Callable[[Array, Array, Array], Array]:
        def branch(positions: Array, values: Array, counts: Array) -> Array:
            message = coo.pack(positions[:, :capacity], values[:, :capacity], counts)
            received = coo.unpack(_axis.all_to_all(message, axis_name), capacity, width, dtype)
            return kernels.aggregate(*received, size, divisor=divisor)

        return branch

    def pull(capacity: int) -> Callable[[Array, Array, Array], Array]:
        def branch(bitmaps: Array, values: Array, count: Array) -> Array:
            message = hash_bitmap.pack_units(values[:capacity], count)
            gathered = _axis.all_gather(message, axis_name)
            return hashed.decode(bitmaps, hash_bitmap.unpack_units(gathered, capacity, width, dtype))

        return branch

    push_rung = rung_for(fullest, push_rungs)
    shard = lax.switch(push_rung, [push(c) for c in push_rungs], positions, values, counts)
    words, values, count = kernels.hash_bitmap_encode(shard, size)
    bitmaps, shard_counts = hash_bitmap.unpack_bitmap(
        _axis.all_gather(hash_bitmap.pack_bitmap(words, count), axis_name)
    )
    pull_rung = rung_for(jnp.max(shard_counts), pull_rungs)
    reduced = lax.switch(pull_rung, [pull(c) for c in pull_rungs], bitmaps, values, count)

    units = reduced.shape[0]
    reduced_units = jnp.sum(shard_counts, dtype=jnp.float32)
    push_bytes = jnp.array([coo.message_bytes(c, width, dtype) + COUNT_BYTES for c in push_rungs], jnp.float32)
    pull_bytes = jnp.array([hash_bitmap.message_bytes(size, c, width, dtype) for c in pull_rungs], jnp.float32)
    return reduced, make_info(
        density_reduced=reduced_units / units,
        bytes_pushed=(n - 1) * push_bytes[push_rung],
        bytes_pulled=(n - 1) * pull_bytes[pull_rung],
        bytes_dense=2 * dense_bytes(reduced.size, dtype, n),
        imbalance_pull=n * jnp.max(shard_counts).astype(jnp.float32) / jnp.maximum(reduced_units, 1.0),
        **stats,
    )
