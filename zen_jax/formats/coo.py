"""COO messages: for each of n servers a count, positions and values, packed into one uint32 row."""

import jax.numpy as jnp

from zen_jax._typing import Array
from zen_jax.formats import message
from zen_jax.formats.words import WORD_BYTES, words_for


def message_bytes(capacity: int, width: int, dtype: jnp.dtype) -> int:
    """Bytes of one message with room for `capacity` units of `width` elements."""
    return WORD_BYTES * (1 + capacity + words_for(capacity * width, dtype))


def pack(positions: Array, values: Array, counts: Array, capacity: int, *, beyond: int = 0) -> Array:
    """Packs the first entries of buckets into messages; entries beyond a bucket's count are left out.

    Args:
      positions: int32 [n, R]; or [1, R], the buckets one after another in one list.
      values: float [n, R, D], or [1, R, D].
      counts: int32 [n].
      capacity: room C of a message, at most R.
      beyond: the position written for entries beyond the count; their units are zeros.

    Returns:
      uint32 [n, message_bytes(C, D, dtype) / 4].
    """
    return message.pack(counts[:, None], positions, values, counts, capacity, beyond=beyond)


def unpack(messages: Array, capacity: int, width: int, dtype: jnp.dtype) -> tuple[Array, Array, Array]:
    """The inverse of `pack`: positions [n, C], values [n, C, D] and counts [n]."""
    counts, positions, values = message.unpack(messages, 1, capacity, capacity, width, dtype)
    return positions, values, counts[:, 0]


def unpack_joined(
    messages: Array, counts: Array, room: int, capacity: int, width: int, dtype: jnp.dtype
) -> tuple[Array, Array]:
    """One list of all messages' entries, as many as the sum of counts [n]: positions [room] and values [room, D]."""
    return message.unpack_joined(messages, counts, room, 1, capacity, width, dtype)
