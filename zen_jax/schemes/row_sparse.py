"""Balanced Parallelism for gradients that name their rows: no worker or server ever holds a dense gradient.

Rows are hashed to servers as zen hashes its units. Messages are COO both ways, because a bitmap grows with the table.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import jax.numpy as jnp
from jax import lax

from zen_jax import _axis, hashing, kernels
from zen_jax._typing import Array, AxisName
from zen_jax.formats import coo
from zen_jax.formats.message import locate_entries
from zen_jax.formats.words import WORD_BYTES
from zen_jax.info import Info, make_info
from zen_jax.kernels.partition_coo import by_server
from zen_jax.row_sparse import RowSparseGradient, nan_if_altered
from zen_jax.schemes.ladder import ladder, rung_for
from zen_jax.schemes.options import ReduceOptions
from zen_jax.schemes.servers import COUNT_BYTES, agree_on_push, exchange_info
from zen_jax.schemes.tables import Tables

Listed = tuple[Array, Array, Array]
"""Keys, units and counts."""


def reduce_rows(
    gradients: Sequence[RowSparseGradient], axis_name: AxisName, options: ReduceOptions
) -> tuple[list[RowSparseGradient], Info]:
    """All-reduces the row-sparse gradients of several tables in one exchange, each as if it were alone.

    Sums run in worker order; nothing is ever dropped. Time, memory and traffic grow with K, the rows that a worker may
    touch, not with V. A row that any worker touched is in the result even if its sum is zero.

    Args:
      gradients: this worker's gradients, of one dtype and row shape, each with K entries on every worker; their tables
        have fewer than 2**31 virtual rows in all (see `Tables`).
      axis_name: the workers' axis.
      options: op and seed, all else as by default.

    Returns:
      The reduced gradients, each with min(n K, V) entries (none if rows are empty), bitwise equal on all workers, and
      the `Info` of the exchange.
    """
    gradients = [_without_excess(nan_if_altered(gradient)) for gradient in gradients]
    n = _axis.axis_size(axis_name)
    if n == 1 or not any(gradient.ids.size for gradient in gradients):
        return [_replicated(gradient, axis_name) for gradient in gradients], make_info()
    tables = Tables(tuple(g.num_rows for g in gradients), tuple(g.ids.size for g in gradients), n)
    ids, reduced, info = _exchange(tables, *tables.join(gradients), axis_name, options)
    parts = zip(gradients, tables.split(ids, reduced), strict=True)
    return [RowSparseGradient(ids, rows.reshape(-1, *g.shape[1:]), g.num_rows) for g, (ids, rows) in parts], info


def _without_excess(gradient: RowSparseGradient) -> RowSparseGradient:
    """The gradient without entries that cannot be used; without any if rows are empty, when nothing would be sent."""
    room = min(gradient.ids.size, gradient.num_rows) if gradient.size else 0
    return replace(gradient, ids=gradient.ids[:room], rows=gradient.rows[:room])


def _replicated(gradient: RowSparseGradient, axis_name: AxisName) -> RowSparseGradient:
    """The gradient of a worker alone, or one without entries, typed as equal on all workers."""
    ids, rows = _axis.replicated(gradient.ids, axis_name), lax.psum(gradient.rows, axis_name)
    return RowSparseGradient(ids, rows, gradient.num_rows)


def _exchange(
    tables: Tables, ids: Array, rows: Array, axis_name: AxisName, options: ReduceOptions
) -> tuple[Array, Array, Info]:
    """Push, aggregation and pull of what `tables.join` returns: what `tables.split` takes, and Info."""
    n, total_rows, result_room = tables.n, sum(tables.num_rows), sum(tables.result_rooms)
    server_rows, width, dtype = sum(tables.owned), rows.shape[1], rows.dtype
    unit_bytes = width * dtype.itemsize
    push_rungs = _rungs(tables.push_room, n, unit_bytes)
    pull_rungs = _rungs(tables.shard_room, n, unit_bytes)

    order, first = by_server(ids, ids < tables.end, n, options.seed)
    counts = first[1:] - first[:-1]
    fullest, push_stats = agree_on_push(counts, total_rows, axis_name, options)

    def push(capacity: int, positions: Array, rows: Array) -> Listed:
        messages = coo.pack(positions[None], rows[None], counts, capacity, beyond=server_rows)
        received = coo.unpack(_axis.all_to_all(messages, axis_name), capacity, width, dtype)
        return _merge(received, tables.shard_room, unused=server_rows, divisor=options.divisor(n))

    def pull(capacity: int, shard_counts: Array, positions: Array, sums: Array, count: Array) -> tuple[Array, Array]:
        message = coo.pack(positions[None], sums[None], count[None], capacity)[0]
        messages = _axis.all_gather(message, axis_name)
        return coo.unpack_joined(messages, shard_counts, result_room, capacity, width, dtype)

    push_rung = rung_for(fullest, push_rungs)
    positions = hashing.position_of(ids, n)
    shard = lax.switch(push_rung, [partial(push, c) for c in push_rungs], positions[order], rows[order])
    shard_counts = _axis.all_gather(shard[2], axis_name)
    pull_rung = rung_for(jnp.max(shard_counts), pull_rungs)
    positions, reduced = lax.switch(pull_rung, [partial(pull, c) for c in pull_rungs], shard_counts, *shard)
    exists, server, _ = locate_entries(shard_counts, result_room)
    ids = jnp.where(exists, hashing.index_of(server, positions, n, options.seed), tables.end)

    pushed = [coo.message_bytes(c, width, dtype) + COUNT_BYTES for c in push_rungs]
    pulled = [coo.message_bytes(c, width, dtype) + WORD_BYTES for c in pull_rungs]
    moved = (pushed, push_rung), (pulled, pull_rung)
    return ids, reduced, exchange_info((total_rows, width), dtype, shard_counts, *moved, push_stats)


def _rungs(top: int, n: int, unit_bytes: int) -> tuple[int, ...]:
    """The ladder without the sizes for steps in which fewer than an eighth of the ids are distinct."""
    least = -(-top // (8 * n))
    return tuple(capacity for capacity in ladder(top, None, unit_bytes) if capacity >= least)


def _merge(messages: Listed, room: int, *, unused: int, divisor: int) -> Listed:
    """Sums n messages by key, in message order: keys int32 [room], ascending, sums [room, D], and their number.

    Keys ascend within a message and lie below `unused`, which fills entries beyond the count; at most `room` differ.
    """
    keys, values, counts = messages
    unique, slots, count = kernels.unique_ids(keys.reshape(-1), unused)
    sums = kernels.aggregate(slots.reshape(keys.shape), values, counts, room, divisor=divisor)
    unique = jnp.pad(unique, (0, max(0, room - unique.size)), constant_values=unused)[:room]
    return unique, sums, count
