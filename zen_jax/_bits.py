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
    """bool [T, ...] to uint32 [ceil(T/32), ...], least significant bit first."""
    size, *others = bits.shape
    padded = jnp.pad(bits, [(0, -size % BITS_PER_WORD), *[(0, 0) for _ in others]])
    shifts = np.arange(BITS_PER_WORD, dtype=np.uint32).reshape(1, -1, *[1 for _ in others])
    words = padded.reshape(-1, BITS_PER_WORD, *others).astype(jnp.uint32) << shifts
    return jnp.sum(words, axis=1, dtype=jnp.uint32)


def unpack_bits(words: Array) -> Array:
    """uint32 [..., W] to bool [..., W * 32]."""
    return ((words[..., None] & _each_bit(words.ndim)) != 0).reshape(*words.shape[:-1], -1)


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


def set_ranks(words: Array) -> Array:
    """uint32 [..., W] to int32 [..., W * 32]: at set bits how many are set before, at others 2**31 - 1."""
    bit = _each_bit(words.ndim)
    held = lax.population_count(words).astype(jnp.int32)
    before = jnp.cumsum(held, axis=-1, dtype=jnp.int32) - held
    below = lax.population_count(words[..., None] & (bit - np.uint32(1))).astype(jnp.int32)
    ranks = jnp.where(words[..., None] & bit != 0, before[..., None] + below, jnp.int32(2**31 - 1))
    return ranks.reshape(*words.shape[:-1], -1)


def first_set(words: Array, capacity: int) -> tuple[Array, Array]:
    """The first set bits of a bitmap uint32 [W]: int32 [capacity] (0 where there are fewer), and the count."""
    held = lax.population_count(words).astype(jnp.int32)
    ends = jnp.cumsum(held, dtype=jnp.int32)
    rank = jnp.arange(capacity, dtype=jnp.int32)
    # As many words precede a bit's as end at or below its rank: cheaper to count than to search for.
    ending = jnp.zeros_like(held, shape=(capacity + 1,)).at[jnp.minimum(ends, capacity)].add(1, indices_are_sorted=True)
    word = jnp.minimum(jnp.cumsum(ending[:capacity], dtype=jnp.int32), words.size - 1)
    bit = _nth_set(words[word], rank - (ends - held)[word])
    return jnp.where(rank < ends[-1], word * BITS_PER_WORD + bit, 0), ends[-1]


def _nth_set(words: Array, nth: Array) -> Array:
    """The position, int32, of the nth set bit of each word, counted from 0."""
    bit = jnp.zeros_like(nth)
    for half in (16, 8, 4, 2, 1):
        below = lax.population_count(words & np.uint32((1 << half) - 1)).astype(jnp.int32)
        above = nth >= below
        nth, bit = jnp.where(above, nth - below, nth), jnp.where(above, bit + half, bit)
        words = jnp.where(above, words >> np.uint32(half), words)
    return bit


def _each_bit(rank: int) -> np.ndarray:
    """uint32 [1, ..., 1, 32]: every bit of a word, along an axis after `rank` others."""
    return (np.uint32(1) << np.arange(BITS_PER_WORD, dtype=np.uint32)).reshape([1] * rank + [BITS_PER_WORD])


def _bit(indices: Array) -> Array:
    return np.uint32(1) << (indices % BITS_PER_WORD).astype(np.uint32)
