"""Aggregate and hash-bitmap encode in one: from the messages pushed to a server to what is pulled from it."""

import jax.numpy as jnp
import numpy as np

from zen_jax import errors
from zen_jax._bits import bitmap_words
from zen_jax._lowering import custom_call_or
from zen_jax._typing import Array
from zen_jax.kernels.aggregate import check_messages
from zen_jax.kernels.aggregate import reference as aggregate_reference
from zen_jax.kernels.hash_bitmap_encode import reference as encode_reference


def aggregate_encode(
    positions: Array, values: Array, counts: Array, size: int, capacity: int, *, divisor: int = 1
) -> tuple[Array, Array, Array]:
    """`hash_bitmap_encode(aggregate(positions, values, counts, size), capacity)`, bit for bit.

    As a custom call it is one kernel, which never writes the shard between the two to memory.

    Args:
      positions: int32 [n, C], strictly ascending within each worker's first counts[i] entries.
      values: float [n, C] or [n, C, D].
      counts: int32 [n], how many entries each worker sent; at most C of them are read.
      size: number of units T of the shard. Positions outside [0, T) are ignored.
      capacity: room R for non-zero units.
      divisor: each sum is multiplied by the reciprocal of this.

    Returns:
      words: uint32 [ceil(T/32)], bit t % 32 (least significant first) of word t // 32 set where unit t is non-zero.
      units: [R] or [R, D] of values' dtype, the first R non-zero units in order; unspecified beyond the count.
      count: int32 [], the true number of non-zero units, which may exceed R.

    Raises:
      ValueError: for values that are not floats, shapes or dtypes that disagree, a capacity below 1, or a size or
        capacity above 2**31 - 1.

    >>> import jax.numpy as jnp
    >>> messages = jnp.array([[0, 2], [2, 0]]), jnp.array([[1., 2.], [3., 0.]]), jnp.array([2, 1])
    >>> words, units, count = aggregate_encode(*messages, size=4, capacity=2)
    >>> bin(words[0]), units.tolist(), int(count)
    ('0b101', [1.0, 5.0], 2)

    Source: ZEN (OSDI 2025), section 3.1, the server's part of Push, and Algorithm 2.
    """
    check_messages(positions, values, counts, size, divisor)
    errors.check_capacity(capacity)
    n, room, *row = values.shape
    rows = jnp.asarray(values).reshape(n, room, *(row or (1,)))
    width, itemsize = rows.shape[2], rows.dtype.itemsize

    words, units, count = custom_call_or(
        lambda *messages: reference(*messages, size, capacity, divisor=divisor),
        "zen_aggregate_encode",
        [positions, rows, counts],
        [((bitmap_words(size),), jnp.uint32), ((capacity, width), values.dtype), ((), jnp.int32)],
        lambda cuda: cuda.aggregate_encode_scratch_bytes(size, width, itemsize),
        divisor=np.int64(divisor),
        size=np.int64(size),
    )
    return words, units.reshape(capacity, *row), count


def reference(
    positions: Array, values: Array, counts: Array, size: int, capacity: int, *, divisor: int = 1
) -> tuple[Array, Array, Array]:
    """The pure-JAX lowering, on values [n, C, D]."""
    return encode_reference(aggregate_reference(positions, values, counts, size, divisor=divisor), capacity)
