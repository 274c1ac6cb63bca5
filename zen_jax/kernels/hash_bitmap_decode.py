"""Hash bitmap, decode: the whole tensor from every server's bitmap and non-zero units."""

import jax.numpy as jnp
import numpy as np

from zen_jax import errors, hashing
from zen_jax._bits import bitmap_words, set_ranks
from zen_jax._lowering import custom_call_or
from zen_jax._typing import Array


def hash_bitmap_decode(words: Array, values: Array, size: int, *, seed: int = 0) -> Array:
    """Decodes n servers' hash bitmaps into the tensor whose units they own under the tile rotation.

    Args:
      words: uint32 [n, ceil(T/32)] with T = ceil(size/n), as `hash_bitmap_encode` makes them.
      values: float [n, C] or [n, C, D], each server's non-zero units in order; C at least 1.
      size: number of units U of the tensor.
      seed: seed of the tile rotation.

    Returns:
      [U] or [U, D] of values' dtype. Units whose bit is clear, or whose value did not fit in C, are 0.

    Raises:
      ValueError: for values that are not floats, shapes or dtypes that disagree, or T above 2**31 - 1.

    >>> import jax.numpy as jnp
    >>> words = jnp.array([[0b10], [0b01]], jnp.uint32)
    >>> hash_bitmap_decode(words, jnp.array([[7.], [5.]]), size=4).tolist()
    [0.0, 5.0, 0.0, 7.0]

    Source: ZEN (OSDI 2025), Algorithm 2; `zen_jax.hashing.index_of` takes the place of the sorted table.
    """
    errors.check_float("values", values.dtype)
    errors.check_rank("values", values.shape, (2, 3))
    errors.check_message_rows("values", values.shape)
    errors.check_at_least("size", size, 0)
    errors.check_seed(seed)
    n, capacity, *row = values.shape
    errors.check_units(-(-size // n), "each server", "more servers")
    errors.check_shape("words", words.shape, (n, bitmap_words(-(-size // n))))
    errors.check_dtype("words", words.dtype, jnp.uint32)
    rows = jnp.asarray(values).reshape(n, capacity, *(row or (1,)))
    width, itemsize = rows.shape[2], rows.dtype.itemsize
    (x,) = custom_call_or(
        lambda words, rows: (reference(words, rows, size, seed=seed),),
        "zen_hash_bitmap_decode",
        [words, rows],
        [((size, width), values.dtype)],
        lambda cuda: cuda.decode_scratch_bytes(size, width, itemsize, n),
        seed=np.uint32(seed),
    )
    return x.reshape(size, *row)


def reference(words: Array, values: Array, size: int, *, seed: int = 0) -> Array:
    """The pure-JAX lowering, on values [n, C, D]."""
    errors.check_units(size)
    n = words.shape[0]
    idx = jnp.arange(size, dtype=jnp.uint32)
    return decode_at(words, values, hashing.server_of(idx, n, seed), hashing.position_of(idx, n))


def decode_at(words: Array, values: Array, server: Array, position: Array) -> Array:
    """[U, D] whose unit u is the one that `server`[u] holds at `position`[u]: the decode for any hash."""
    capacity = values.shape[1]
    if position.size == 0:
        return jnp.zeros_like(values, shape=(0, values.shape[2]))
    rank = set_ranks(words)[server, position]
    return jnp.where((rank < capacity)[:, None], values[server, jnp.minimum(rank, capacity - 1)], 0)
