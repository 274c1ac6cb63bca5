"""Values as uint32 words, so that indices and values of any dtype share one message and one collective."""

import jax.numpy as jnp
from jax import lax

from zen_jax._typing import Array

WORD_BYTES = 4


def words_for(elements: int, dtype: jnp.dtype) -> int:
    """Words that hold `elements` values of `dtype`."""
    return -(-elements * jnp.dtype(dtype).itemsize // WORD_BYTES)


def to_words(x: Array) -> Array:
    """[..., E] of any float dtype to uint32 [..., words_for(E, dtype)], bits unchanged."""
    if x.dtype.itemsize == 2:
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, x.shape[-1] % 2)])
        return lax.bitcast_convert_type(x.reshape(*x.shape[:-1], -1, 2), jnp.uint32)
    words = lax.bitcast_convert_type(x, jnp.uint32)
    return words.reshape(*x.shape[:-1], -1)


def from_words(words: Array, elements: int, dtype: jnp.dtype) -> Array:
    """The inverse: uint32 [..., W] to [..., elements] of `dtype`."""
    lead, itemsize = words.shape[:-1], jnp.dtype(dtype).itemsize
    if itemsize == 8:
        words = words.reshape(*lead, -1, 2)
    return lax.bitcast_convert_type(words, dtype).reshape(*lead, -1)[..., :elements]
