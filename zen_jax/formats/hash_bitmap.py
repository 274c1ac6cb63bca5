"""Hash-bitmap messages: one server's bitmap and its non-zero units, packed into one uint32 row."""

import jax.numpy as jnp

from zen_jax._typing import Array
from zen_jax.formats.words import WORD_BYTES, from_words, to_words, words_for
from zen_jax.kernels._bits import bitmap_words


def message_bytes(size: int, capacity: int, width: int, dtype: jnp.dtype) -> int:
    """Bytes of one message about `size` units, with room for `capacity` non-zero ones of `width` elements."""
    return WORD_BYTES * (bitmap_words(size) + words_for(capacity * width, dtype))


def pack(words: Array, values: Array, count: Array) -> Array:
    """Packs a bitmap uint32 [W] and values [C, D]; values beyond `count` become zeros."""
    filled = jnp.arange(values.shape[0], dtype=jnp.int32) < count
    values = jnp.where(filled[:, None], values, jnp.zeros((), values.dtype))
    return jnp.concatenate([words, to_words(values.reshape(-1))])


def unpack(messages: Array, size: int, capacity: int, width: int, dtype: jnp.dtype) -> tuple[Array, Array]:
    """The inverse, on messages [n, M]: words [n, W] and values [n, C, D]."""
    words = bitmap_words(size)
    values = from_words(messages[:, words:], capacity * width, dtype)
    return messages[:, :words], values.reshape(-1, capacity, width)
