"""Bit operations in pure JAX: what counts as non-zero, and bitmaps as words."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from zen_jax._typing import Array

BITS_PER_WORD = 32


def is_nonzero(x: Array) -> Array:
    """Whether each float is non-zero by its bits: NaN and subnormals are, -0.0 is not."""
    bits = lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")
    return (bits << bits.dtype.type(1)) != 0


def unit_is_nonzero(x: Array) -> Array:
    """Whether each row of x [U, D] holds a non-zero: bool [U]."""
    return is_nonzero(x).any(axis=1)


def bitmap_words(size: int) -> int:
    """Words in a bitmap of `size` bits."""
    return -(-size // BITS_PER_WORD)


def pack_bits(bits: Array) -> Array:
    """bool [T] to uint32 [ceil(T/32)], least significant bit first."""
    padded = jnp.pad(bits, (0, bitmap_words(bits.size) * BITS_PER_WORD - bits.size))
    shifts = np.arange(BITS_PER_WORD, dtype=np.uint32)
    return jnp.sum(padded.reshape(-1, BITS_PER_WORD).astype(jnp.uint32) << shifts[None, :], axis=1, dtype=jnp.uint32)


def unpack_bits(words: Array) -> Array:
    """uint32 [..., W] to bool [..., W * 32]."""
    shifts = np.arange(BITS_PER_WORD, dtype=np.uint32).reshape([1] * words.ndim + [BITS_PER_WORD])
    bits = (words[..., None] >> shifts) & np.uint32(1)
    return bits.reshape(*words.shape[:-1], -1).astype(bool)


def first_set(mask: Array, capacity: int) -> tuple[Array, Array]:
    """The first `capacity` set positions of mask [T]: int32 [capacity] (0 where there are fewer), and the count."""
    ranks = jnp.cumsum(mask, dtype=jnp.int32)
    wanted = jnp.arange(1, capacity + 1, dtype=jnp.int32)
    positions = jnp.searchsorted(ranks, wanted, side="left").astype(jnp.int32)
    count = jnp.sum(mask, dtype=jnp.int32)
    return jnp.where(wanted <= count, positions, 0), count
