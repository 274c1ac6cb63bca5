"""Balanced Parallelism for gradients that name their rows: no worker or server ever holds a dense gradient.

Rows are hashed to servers as zen hashes its units. Messages are COO both ways, because a bitmap grows with the table.
"""

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

Listed = tuple[Array, Array, Array]
"""Keys, units and counts."""


def reduce_rows(
    gradient: RowSparseGradient, axis_name: AxisName, options: ReduceOptions
) -> tuple[RowSparseGradient, Info]:
    """All-reduces a row-sparse gradient. Sums run in worker order; nothing is ever dropped.

    Time, memory and traffic grow with K, the rows that a worker may touch, not with V. A row that any worker touched is
    in the result even if its sum is zero.

    Args:
      gradient: this worker's gradient, with K entries on every worker.
      axis_name: the workers' axis.
      options: op and seed; formats and capacities are not read.

    Returns:
      The reduced gradient with min(n K, V) entries (none if rows are empty), bitwise equal on all workers, and its
      `Info`.
    """
    gradient = nan_if_altered(gradient)
    if gradient.size == 0:
        # Nothing would be sent, and the ids by themselves differ between workers.
        gradient = replace(gradient, ids=gradient.ids[:0], rows=gradient.rows[:0])
    n = _axis.axis_size(axis_name)
    if n == 1 or gradient.ids.size == 0:
        room = min(gradient.ids.size, gradient.num_rows)
        ids, rows = _axis.replicated(gradient.ids[:room], axis_name), lax.psum(gradient.rows[:room], axis_name)
        return RowSparseGradient(ids, rows, gradient.num_rows), make_info()
    entries, *row = gradient.rows.shape
    rows, total_rows = gradient.rows.reshape(entries, -1), gradient.num_rows
    width, dtype = rows.shape[1], rows.dtype
    server_rows = -(-total_rows // n)
    shard_room, result_room = min(n * entries, server_rows), min(n * entries, total_rows)
    unit_bytes = width * dtype.itemsize
    push_rungs = _rungs(min(entries, server_rows), n, unit_bytes)
    pull_rungs = _rungs(shard_room, n, unit_bytes)

    order, first = by_server(gradient.ids, gradient.ids < total_rows, n, options.seed)
    counts = first[1:] - first[:-1]
    fullest, push_stats = agree_on_push(counts, total_rows, axis_name, options)

    def push(capacity: int, positions: Array, rows: Array) -> Listed:
        messages = coo.pack(positions[None], rows[None], counts, capacity, beyond=server_rows)
        received = coo.unpack(_axis.all_to_all(messages, axis_name), capacity, width, dtype)
        return _merge(received, shard_room, unused=server_rows, divisor=options.divisor(n))

    def pull(capacity: int, shard_counts: Array, positions: Array, sums: Array, count: Array) -> tuple[Array, Array]:
        message = coo.pack(positions[None], sums[None], count[None], capacity)[0]
        messages = _axis.all_gather(message, axis_name)
        return coo.unpack_joined(messages, shard_counts, result_room, capacity, width, dtype)

    push_rung = rung_for(fullest, push_rungs)
    positions = hashing.position_of(gradient.ids, n)
    shard = lax.switch(push_rung, [partial(push, c) for c in push_rungs], positions[order], rows[order])
    shard_counts = _axis.all_gather(shard[2], axis_name)
    pull_rung = rung_for(options.pmax_over_machine(jnp.max(shard_counts)), pull_rungs)
    positions, reduced = lax.switch(pull_rung, [partial(pull, c) for c in pull_rungs], shard_counts, *shard)
    exists, server, _ = locate_entries(shard_counts, result_room)
    ids = jnp.where(exists, hashing.index_of(server, positions, n, options.seed), total_rows)
    ascending = jnp.argsort(ids)
    ids = ids[ascending]
    used = ids < total_rows
    # Memory beyond what was unpacked stays untouched and unread.
    reduced = jnp.where(used[:, None], reduced[jnp.where(used, ascending, 0)], jnp.zeros((), dtype))

    pushed = [coo.message_bytes(c, width, dtype) + COUNT_BYTES for c in push_rungs]
    pulled = [coo.message_bytes(c, width, dtype) + WORD_BYTES for c in pull_rungs]
    moved = (pushed, push_rung), (pulled, pull_rung)
    info = exchange_info((total_rows, width), dtype, shard_counts, *moved, push_stats)
    return RowSparseGradient(ids, reduced.reshape(-1, *row), total_rows), info


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
