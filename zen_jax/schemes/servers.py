"""The exchange of every scheme with servers: push, aggregation, and pull.

The paper calls this Point-to-point, One-shot aggregation and Parallelism; the partitioning determines the balance.
"""

import bisect
from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
from jax import lax

from zen_jax import _axis, errors
from zen_jax._typing import Array, AxisName
from zen_jax.info import Info, density, make_info
from zen_jax.schemes.dense import dense_bytes, dense_ordered
from zen_jax.schemes.ladder import ladder, rounds, rung_for
from zen_jax.schemes.options import ReduceOptions
from zen_jax.schemes.partitioning import Buckets, Partitioning
from zen_jax.schemes.pull import PULL_FORMATS, Outgoing, PullFormat, Units
from zen_jax.schemes.push import message_format, push
from zen_jax.sparse import SparseGradient
from zen_jax.trees import densified

COUNT_BYTES = 8  # sent from each worker to each to agree on the push capacity


def reduce_on_servers(
    x: Array | SparseGradient,
    axis_name: AxisName,
    assign: Callable[[int, int], Partitioning],
    options: ReduceOptions,
    *,
    dense_fallback: bool = False,
) -> tuple[Array, Info]:
    """All-reduces the non-zero units of x: each server sums the units that it owns, and all workers get all sums.

    Nothing is ever dropped: a message that outgrows a rung of the capacity ladder takes the next one, and the last
    holds every unit. With `dense_fallback` the ladder ends where sparse traffic could exceed dense traffic, and
    `dense_ordered` takes over, as it does from the start if 32 bits cannot name the units. Sums run in worker order on
    every path.

    Args:
      x: float [U, m], this worker's gradient cut into units; or a `SparseGradient` of shape [U, 1].
      axis_name: the workers' axis.
      assign: maps U units and n servers to an assignment of units to servers.
      options: op, formats, and the units expected in the fullest push and pull message.
      dense_fallback: whether to go dense when sparse messages would move more bytes.

    Returns:
      The reduced [U, m], bitwise equal on all workers, and its `Info`.

    Source: ZEN (OSDI 2025), section 3.
    """
    units, width = x.shape
    n = _axis.axis_size(axis_name)
    named, who = _named(units, n, options)
    if dense_fallback and named > errors.MAX_UNITS:
        return dense_ordered(densified(x), axis_name, options)
    errors.check_units(named, who, "scheme='auto'")
    partitioning = assign(units, n)
    size = partitioning.size
    pull = PULL_FORMATS[options.pull_format](partitioning, width, x.dtype)
    top = sparse_limit(options.push_format, pull) if dense_fallback else size
    if top == 0:
        return dense_ordered(densified(x), axis_name, options)
    if isinstance(x, SparseGradient):
        # More units than a list has room for need neither rungs nor a dense branch.
        dense_fallback &= x.room > top
        top = min(top, x.room)
    *buckets, counts = partitioning.partition(x, top)
    fullest, push_stats = agree_on_push(counts, units, axis_name, options)
    exchange = partial(_exchange_sparse, pull, top, (*buckets, counts), fullest, push_stats, axis_name, options)
    if not dense_fallback:
        return exchange()

    # Along axes other than the workers', the statistics vary where gradients do.
    def typed(info: Info) -> Info:
        return Info(*(_axis.varying_like(field, push_stats["density"]) for field in info))

    def sparse(_: Array | SparseGradient) -> tuple[Array, Info]:
        reduced, info = exchange()
        return reduced, typed(info)

    def dense(x: Array | SparseGradient) -> tuple[Array, Info]:
        reduced, info = dense_ordered(densified(x), axis_name, options)
        agreeing = (n - 1) * COUNT_BYTES
        return reduced, typed(info._replace(bytes_pushed=info.bytes_pushed + agreeing, **push_stats))

    return lax.cond(fullest > top, dense, sparse, x)


def _named(units: int, n: int, options: ReduceOptions) -> tuple[int, str]:
    """How many units 32 bits must name, and what names them: each server its own units, or one numbering for all."""
    if options.hash == "murmur" or options.pull_format in ("coo", "bitmap", "others"):
        return units, f"hash={options.hash!r} with pull_format={options.pull_format!r}"
    return -(-units // n), f"each of {n} servers"


def push_bytes(push_format: str, pull: PullFormat, capacity: int) -> int:
    """Bytes to one server: a message with room for `capacity` of the units that `pull` returns, and agreeing on it."""
    return message_format(push_format, pull.partitioning.size, capacity, pull.width, pull.dtype)[1] + COUNT_BYTES


def sparse_limit(push_format: str, pull: PullFormat) -> int:
    """The largest push capacity at which push and pull cannot move more bytes than a dense all-reduce."""
    n, size = pull.partitioning.n, pull.partitioning.size

    def moved(capacity: int) -> int:
        return push_bytes(push_format, pull, capacity) + pull.message_bytes(min(size, n * capacity))

    budget = 2 * pull.partitioning.units * pull.width * pull.dtype.itemsize // n
    return bisect.bisect_right(range(1, size + 1), budget, key=moved)


def agree_on_push(
    counts: Array, units: int, axis_name: AxisName, options: ReduceOptions
) -> tuple[Array, dict[str, Array]]:
    """The units in the fullest push message of any worker, and the statistics of Info that are known by then."""
    # One tiny collective carries the exact maximum and, as float bits, the total.
    total_bits = lax.bitcast_convert_type(jnp.sum(counts, dtype=jnp.float32), jnp.int32)
    table = _axis.all_gather(jnp.stack([jnp.max(counts), total_bits]), axis_name)
    fullest_by_worker = table[:, 0]
    totals = lax.bitcast_convert_type(table[:, 1], jnp.float32)
    fullest = options.pmax_over_machine(jnp.max(fullest_by_worker))
    imbalance = counts.size * fullest_by_worker.astype(jnp.float32) / jnp.maximum(totals, 1.0)
    return fullest, {
        "density": density(totals, units),
        "imbalance_push": jnp.max(imbalance),
        "rounds": rounds(fullest, options.planned_capacity(0)),
    }


def _exchange_sparse(
    pull: PullFormat,
    top: int,
    buckets: Buckets,
    fullest_push: Array,
    stats: dict[str, Array],
    axis_name: AxisName,
    options: ReduceOptions,
) -> tuple[Array, Info]:
    """Push, aggregation and pull of buckets, the fullest of which holds at most `top` units."""
    partitioning, width, dtype = pull.partitioning, pull.width, pull.dtype
    n, size, unit_bytes = partitioning.n, partitioning.size, width * dtype.itemsize
    push_rungs = ladder(top, options.planned_capacity(0), unit_bytes)
    planned_pull, pull_rungs, with_header = None, (size,), 0
    if pull.joins_header:
        planned_pull = options.planned_capacity(1)
        pull_rungs = ladder(min(size, n * top), planned_pull, unit_bytes)
        # What is expected goes along with the header; only what exceeds it needs a message of its own.
        with_header = pull_rungs[0] if planned_pull or len(pull_rungs) == 1 else 0

    def push_with(capacity: int, *buckets: Array) -> Outgoing:
        received = push(options.push_format, buckets, capacity, size, axis_name, options.divisor(n))
        return pull.encode(received, axis_name)

    def pull_with(capacity: int, headers: Array, units: Units | None, outgoing: Outgoing) -> Array:
        if rest := capacity - with_header:
            messages = pull.pack(outgoing.words[:, :0], outgoing, with_header, rest)
            _, more = pull.unpack(pull.send(messages, axis_name), 0, rest)
            units = more if units is None else units.followed_by(more)
        return pull.decode(headers, units)

    push_rung = rung_for(fullest_push, push_rungs)
    outgoing = lax.switch(push_rung, [partial(push_with, c) for c in push_rungs], *buckets)
    headers, units = pull.headers(outgoing), None
    if with_header:
        messages = pull.send(pull.pack(headers, outgoing, 0, with_header), axis_name)
        headers, units = pull.unpack(messages, headers.shape[1], with_header)
    else:
        headers = pull.send(headers, axis_name)
    in_messages, in_shards = pull.counts(headers, axis_name)
    fullest_pull = options.pmax_over_machine(jnp.max(in_messages))
    pull_rung = rung_for(fullest_pull, pull_rungs)
    reduced = lax.switch(pull_rung, [partial(pull_with, c) for c in pull_rungs], headers, units, outgoing)
    reduced = pull.complete(reduced, headers, buckets, options.divisor(n), axis_name)

    pushed_bytes = [push_bytes(options.push_format, pull, c) for c in push_rungs]
    parts = [[part for part in (with_header, c - with_header) if part] for c in pull_rungs]
    pulled_bytes = [pull.header_bytes + sum(map(pull.body_bytes, part)) for part in parts]
    stats = stats | {"rounds": jnp.maximum(stats["rounds"], rounds(fullest_pull, planned_pull))}
    moved = (pushed_bytes, push_rung), (pulled_bytes, pull_rung)
    return reduced, exchange_info(reduced.shape, dtype, in_shards, *moved, stats)


def exchange_info(
    shape: tuple[int, int],
    dtype: jnp.dtype,
    shard_counts: Array,
    pushed: tuple[list[int], Array],
    pulled: tuple[list[int], Array],
    stats: dict[str, Array],
) -> Info:
    """Info of a [U, m] reduced by n servers, from their non-zero units, bytes to and from one by rung, and `stats`."""
    n, reduced_units = shard_counts.size, jnp.sum(shard_counts, dtype=jnp.float32)
    return make_info(
        density_reduced=density(reduced_units, shape[0]),
        bytes_pushed=(n - 1) * jnp.array(pushed[0], jnp.float32)[pushed[1]],
        bytes_pulled=(n - 1) * jnp.array(pulled[0], jnp.float32)[pulled[1]],
        bytes_dense=2 * dense_bytes(shape[0] * shape[1], dtype, n),
        imbalance_pull=n * jnp.max(shard_counts).astype(jnp.float32) / jnp.maximum(reduced_units, 1.0),
        **stats,
    )
