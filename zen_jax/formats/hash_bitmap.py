"""Hash-bitmap messages: a header of one server's bitmap and its count, and its non-zero units, as uint32 words."""

import jax.numpy as jnp

from zen_jax._bits import bitmap_words
from zen_jax._typing import Array
from zen_jax.formats.words import WORD_BYTES, words_for


def header_bytes(size: int) -> int:
    """Bytes of the bitmap of `size` units, and the count."""
    return WORD_BYTES * (bitmap_words(size) + 1)


def body_bytes(capacity: int, width: int, dtype: jnp.dtype) -> int:
    """Bytes of `capacity` non-zero units of `width` elements."""
    return WORD_BYTES * words_for(capacity * width, dtype)


def pack_header(words: Array, count: Array) -> Array:
    """uint32 [H + 1] from a bitmap uint32 [H] and the number of non-zero units, which saves a collective of its own."""
    return jnp.append(words, count.astype(jnp.uint32))


def unpack_header(headers: Array) -> tuple[Array, Array]:
    """The inverse, on all servers' [n, H + 1]: bitmaps [n, H] and counts int32 [n]."""
    return headers[:, :-1], headers[:, -1].astype(jnp.int32)
