"""Bitmap messages: one bit for each unit in a range, and the non-zero units in order, as uint32 words."""

import jax.numpy as jnp
from jax import lax

from zen_jax._bits import bitmap_words, set_bits
from zen_jax._typing import Array
from zen_jax.formats import message
from zen_jax.formats.words import WORD_BYTES, words_for


def message_bytes(size: int, capacity: int, width: int, dtype: jnp.dtype) -> int:
    """Bytes of one message about `size` units, with room for `capacity` non-zero ones of `width` elements."""
    return WORD_BYTES * (bitmap_words(size) + words_for(capacity * width, dtype))


def pack(positions: Array, values: Array, counts: Array, size: int, capacity: int) -> Array:
    """Packs the first entries of buckets into messages; entries beyond a bucket's count become zeros.

    Args:
      positions: int32 [n, R], ascending within each bucket.
      values: float [n, R, D].
      counts: int32 [n].
      size: number of units that positions range over.
      capacity: room C of a message, at most R.

    Returns:
      uint32 [n, message_bytes(size, C, D, dtype) / 4].
    """
    filled = jnp.arange(capacity, dtype=jnp.int32)[None, :] < counts[:, None]
    words = lax.bitcast_convert_type(set_bits(positions[:, :capacity], filled, size), jnp.int32)
    return message.pack(words, positions[:, :0], values, counts, capacity)


def unpack(messages: Array, size: int, capacity: int, width: int, dtype: jnp.dtype) -> tuple[Array, Array]:
    """The inverse of `pack`: words uint32 [n, ceil(size/32)] and values [n, C, D]."""
    words, _, values = message.unpack(messages, bitmap_words(size), 0, capacity, width, dtype)
    return lax.bitcast_convert_type(words, jnp.uint32), values
