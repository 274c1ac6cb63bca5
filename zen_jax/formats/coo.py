"""COO messages: for each of n servers a count, positions and values, packed into one uint32 row."""

import jax.numpy as jnp
from jax import lax

from zen_jax._typing import Array
from zen_jax.formats.words import WORD_BYTES, from_words, to_words, words_for


def message_bytes(capacity: int, width: int, dtype: jnp.dtype) -> int:
    """Bytes of one message with room for `capacity` units of `width` elements."""
    return WORD_BYTES * (1 + capacity + words_for(capacity * width, dtype))


def pack(positions: Array, values: Array, counts: Array) -> Array:
    """Packs buckets into messages; what lies beyond a bucket's count becomes zeros.

    Args:
      positions: int32 [n, C].
      values: float [n, C, D].
      counts: int32 [n].

    Returns:
      uint32 [n, message_bytes(C, D, dtype) / 4].
    """
    n, capacity = positions.shape
    filled = jnp.arange(capacity, dtype=jnp.int32)[None, :] < counts[:, None]
    positions = lax.bitcast_convert_type(jnp.where(filled, positions, 0), jnp.uint32)
    values = to_words(jnp.where(filled[:, :, None], values, jnp.zeros((), values.dtype)).reshape(n, -1))
    return jnp.concatenate([counts[:, None].astype(jnp.uint32), positions, values], axis=1)


def unpack(message: Array, capacity: int, width: int, dtype: jnp.dtype) -> tuple[Array, Array, Array]:
    """The inverse of `pack`: positions [n, C], values [n, C, D] and counts [n]."""
    counts = message[:, 0].astype(jnp.int32)
    positions = lax.bitcast_convert_type(message[:, 1 : 1 + capacity], jnp.int32)
    values = from_words(message[:, 1 + capacity :], capacity * width, dtype)
    return positions, values.reshape(-1, capacity, width), counts
