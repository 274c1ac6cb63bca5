"""Hash bitmap, encode: one bit for each unit of a shard, and the non-zero units in order."""

import jax.numpy as jnp

from zen_jax import errors
from zen_jax._bits import bitmap_words, first_set, pack_bits, unit_is_nonzero
from zen_jax._lowering import custom_call_or
from zen_jax._typing import Array


def hash_bitmap_encode(shard: Array, capacity: int) -> tuple[Array, Array, Array]:
    """Encodes a server's shard as a bitmap over the positions that it owns and its non-zero units.

    Args:
      shard: float [T] or [T, D].
      capacity: room C for non-zero units.

    Returns:
      words: uint32 [ceil(T/32)], bit t % 32 (least significant first) of word t // 32 set where unit t is non-zero.
      values: [C] or [C, D] of shard's dtype, the first C non-zero units in order; unspecified beyond the count.
      count: int32 [], the true number of non-zero units, which may exceed C.

    Raises:
      ValueError: for a dtype that is not a float, a capacity below 1, or a capacity or T above 2**31 - 1.

    >>> import jax.numpy as jnp
    >>> words, values, count = hash_bitmap_encode(jnp.array([0., 3., 0., 4.]), capacity=2)
    >>> bin(words[0]), values.tolist(), int(count)
    ('0b1010', [3.0, 4.0], 2)

    Source: ZEN (OSDI 2025), Algorithm 2.
    """
    errors.check_float("shard", shard.dtype)
    errors.check_rank("shard", shard.shape, (1, 2))
    errors.check_capacity(capacity)
    size, *row = shard.shape
    errors.check_units(size, "a server", "more servers")
    rows = jnp.asarray(shard).reshape(size, *(row or (1,)))
    width, itemsize = rows.shape[1], rows.dtype.itemsize
    words, values, count = custom_call_or(
        lambda rows: reference(rows, capacity),
        "zen_hash_bitmap_encode",
        [rows],
        [((bitmap_words(size),), jnp.uint32), ((capacity, width), shard.dtype), ((), jnp.int32)],
        lambda cuda: cuda.encode_scratch_bytes(size, width, itemsize),
    )
    return words, values.reshape(capacity, *row), count


def reference(shard: Array, capacity: int) -> tuple[Array, Array, Array]:
    """The pure-JAX lowering, on shard [T, D]. Values beyond the count are 0."""
    errors.check_units(shard.shape[0])
    mask = unit_is_nonzero(shard)
    if mask.size == 0:
        none = jnp.zeros_like(shard, jnp.int32, shape=())
        return jnp.zeros((0,), jnp.uint32), jnp.zeros_like(shard, shape=(capacity, shard.shape[1])), none
    words = pack_bits(mask)
    positions, count = first_set(words, capacity)
    filled = jnp.arange(capacity, dtype=jnp.int32) < count
    return words, jnp.where(filled[:, None], shard[positions], 0), count
