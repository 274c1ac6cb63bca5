"""Aggregate and encode for each worker apart: from the messages pushed to a server to what each worker lacks of it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from zen_jax import errors
from zen_jax._bits import bitmap_words, first_set, set_bits, unit_is_nonzero
from zen_jax._lowering import custom_call_or
from zen_jax._typing import Array
from zen_jax.kernels.aggregate import check_messages
from zen_jax.kernels.aggregate import reference as aggregate_reference


def aggregate_for_others(
    positions: Array, values: Array, counts: Array, size: int, capacity: int, *, divisor: int = 1
) -> tuple[Array, Array, Array, Array]:
    """For each worker a bitmap of the units that others sent, and their sums as `aggregate` makes them.

    What a worker alone sent, it has: its own share completes the shard (`place_own`).

    Args:
      positions: int32 [n, C] with n at least 2, strictly ascending within each worker's first counts[i] entries.
      values: float [n, C] or [n, C, D].
      counts: int32 [n], how many entries each worker sent; at most C of them are read.
      size: number of units T of the shard, at least 1. Positions outside [0, T) are ignored.
      capacity: room R for a worker's units.
      divisor: each sum is multiplied by the reciprocal of this.

    Returns:
      words: uint32 [n, ceil(T/32)], bit t % 32 (least significant first) of worker i's word t // 32 set where another
        worker sent unit t.
      units: [n, R] or [n, R, D] of values' dtype, the first R of these units in order, zero or not; unspecified beyond.
      held: int32 [n], the true number of these units, which may exceed R.
      nonzero: int32 [], how many units of the shard are non-zero.

    Raises:
      ValueError: for values that are not floats, shapes or dtypes that disagree, n below 2, or a size or capacity
        below 1 or above 2**31 - 1.

    >>> import jax.numpy as jnp
    >>> messages = jnp.array([[0, 2], [2, 0]]), jnp.array([[1., 2.], [3., 0.]]), jnp.array([2, 1])
    >>> words, units, held, nonzero = aggregate_for_others(*messages, size=4, capacity=2)
    >>> [bin(word) for word in words[:, 0]], units[0, 0].item(), units[1].tolist(), held.tolist(), int(nonzero)
    (['0b100', '0b101'], 5.0, [1.0, 5.0], [1, 2], 2)

    Source: ZEN (OSDI 2025), Algorithm 2, with a message for each worker in place of one for all.
    """
    errors.check_at_least("size", size, 1)
    check_messages(positions, values, counts, size, divisor)
    errors.check_at_least("n", len(values), 2)
    errors.check_capacity(capacity)
    n, room, *row = values.shape
    rows = jnp.asarray(values).reshape(n, room, *(row or (1,)))
    words, units, held, nonzero = custom_call_or(
        lambda *messages: reference(*messages, size, capacity, divisor=divisor),
        "zen_aggregate_for_others",
        [positions, rows, counts],
        [
            ((n, bitmap_words(size)), jnp.uint32),
            ((n, capacity, rows.shape[2]), values.dtype),
            ((n,), jnp.int32),
            ((), jnp.int32),
        ],
        divisor=np.int64(divisor),
        size=np.int64(size),
    )
    return words, units.reshape(n, capacity, *row), held, nonzero


def reference(
    positions: Array, values: Array, counts: Array, size: int, capacity: int, *, divisor: int = 1
) -> tuple[Array, Array, Array, Array]:
    """The pure-JAX lowering, on values [n, C, D]."""
    room = values.shape[1]
    sent = (jnp.arange(room, dtype=jnp.int32)[None, :] < counts[:, None]) & (positions >= 0) & (positions < size)
    touched = set_bits(positions, sent, size)
    either = partial(lax.associative_scan, jnp.bitwise_or, touched)
    before, after = either(), either(reverse=True)
    words = jnp.pad(before[:-1], ((1, 0), (0, 0))) | jnp.pad(after[1:], ((0, 1), (0, 0)))
    shard = aggregate_reference(positions, values, counts, size, divisor=divisor)
    found, held = jax.vmap(lambda words: first_set(words, capacity))(words)
    return words, shard[found], held, jnp.sum(unit_is_nonzero(shard), dtype=jnp.int32)
