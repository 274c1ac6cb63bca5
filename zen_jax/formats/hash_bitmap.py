"""Hash-bitmap messages: one server's bitmap with its count as uint32 words, and then its non-zero units.

The bitmap goes first and by itself: its count tells every worker how much room the units need.
"""

import jax.numpy as jnp

from zen_jax._typing import Array
from zen_jax.formats.words import WORD_BYTES
from zen_jax.kernels._bits import bitmap_words


def message_bytes(size: int, capacity: int, width: int, dtype: jnp.dtype) -> int:
    """Bytes of both messages about `size` units, with room for `capacity` non-zero ones of `width` elements."""
    return WORD_BYTES * (bitmap_words(size) + 1) + capacity * width * jnp.dtype(dtype).itemsize


def pack_bitmap(words: Array, count: Array) -> Array:
    """uint32 [W + 1] from a bitmap uint32 [W] and its count."""
    return jnp.append(words, count.astype(jnp.uint32))


def unpack_bitmap(messages: Array) -> tuple[Array, Array]:
    """The inverse, on messages [n, W + 1]: words [n, W] and counts int32 [n]."""
    return messages[:, :-1], messages[:, -1].astype(jnp.int32)
