"""Sizes of hash-bitmap messages: one server's bitmap with its count, and its non-zero units, as uint32 words."""

import jax.numpy as jnp

from zen_jax._bits import bitmap_words
from zen_jax.formats.words import WORD_BYTES, words_for


def header_bytes(size: int) -> int:
    """Bytes of the bitmap of `size` units, and the count."""
    return WORD_BYTES * (bitmap_words(size) + 1)


def body_bytes(capacity: int, width: int, dtype: jnp.dtype) -> int:
    """Bytes of `capacity` non-zero units of `width` elements."""
    return WORD_BYTES * words_for(capacity * width, dtype)
