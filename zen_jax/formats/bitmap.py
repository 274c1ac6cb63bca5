"""Bitmap messages: one bit for each unit in a range, and the non-zero units in order, as uint32 words."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from zen_jax._bits import BITS_PER_WORD, bitmap_words
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


def set_bits(indices: Array, filled: Array, size: int) -> Array:
    """Bitmaps uint32 [n, ceil(size/32)] of the indices int32 [n, C], all distinct, that `filled` bool [n, C] marks."""
    n, words = indices.shape[0], bitmap_words(size)
    rows = jnp.arange(n, dtype=jnp.int32)[:, None]
    where = jnp.where(filled, indices // BITS_PER_WORD, words)
    # Every bit is set once, so a sum is a bitwise or.
    return jnp.zeros_like(indices, jnp.uint32, shape=(n, words)).at[rows, where].add(_bit(indices), mode="drop")


def get_bits(words: Array, indices: Array) -> Array:
    """bool [n, C]: the bits of bitmaps uint32 [n, W] at indices int32 [n, C]; False beyond their end."""
    held = jnp.take_along_axis(words, indices // BITS_PER_WORD, axis=1, mode="fill", fill_value=0)
    return (held & _bit(indices)) != 0


def _bit(indices: Array) -> Array:
    return np.uint32(1) << (indices % BITS_PER_WORD).astype(np.uint32)
