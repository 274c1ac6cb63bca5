"""Hash-bitmap messages: one server's bitmap with its count, and then its non-zero units, each as uint32 words.

The bitmap goes first, on its own: its count tells every worker how much room the units need.
"""

import jax.numpy as jnp

from zen_jax._bits import bitmap_words
from zen_jax._typing import Array
from zen_jax.formats import message
from zen_jax.formats.words import WORD_BYTES, words_for


def header_bytes(size: int) -> int:
    """Bytes of the first message, about `size` units."""
    return WORD_BYTES * (bitmap_words(size) + 1)


def body_bytes(capacity: int, width: int, dtype: jnp.dtype) -> int:
    """Bytes of the second message, with room for `capacity` non-zero units of `width` elements."""
    return WORD_BYTES * words_for(capacity * width, dtype)


def pack_units(values: Array, count: Array, capacity: int) -> Array:
    """uint32 words of the first `capacity` of units [R, D]; those beyond `count` become zeros."""
    # A slice would do, but XLA compiles a kernel for each slice size, and none for a custom call.
    nothing = jnp.zeros_like(count, shape=(1, 0))
    return message.pack(nothing, nothing, values[None], count[None], capacity)[0]


def unpack_units(messages: Array, capacity: int, width: int, dtype: jnp.dtype) -> Array:
    """The inverse, on messages [n, M]: units [n, C, D]."""
    return message.unpack(messages, 0, 0, capacity, width, dtype)[2]
