"""Aggregate: one server's shard, the sum of the messages that the workers pushed to it."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from zen_jax import errors
from zen_jax._lowering import custom_call_or
from zen_jax._sums import accumulator_dtype, divide
from zen_jax._typing import Array


def aggregate(positions: Array, values: Array, counts: Array, size: int, *, divisor: int = 1) -> Array:
    """Sums n workers' messages into a shard, in worker order, without float atomics.

    16-bit floats are summed and divided in float32 and rounded once.

    Args:
      positions: int32 [n, C], strictly ascending within each worker's first counts[i] entries.
      values: float [n, C] or [n, C, D].
      counts: int32 [n], how many entries each worker sent; at most C of them are read.
      size: number of units T of the shard. Positions outside [0, T) are ignored.
      divisor: each sum is multiplied by the reciprocal of this.

    Returns:
      The shard [T] or [T, D], of values' dtype.

    Raises:
      ValueError: for values that are not floats, shapes or dtypes that disagree, n or C below 1, or a size above
        2**31 - 1.

    >>> import jax.numpy as jnp
    >>> aggregate(jnp.array([[0, 2], [2, 0]]), jnp.array([[1., 2.], [3., 0.]]), jnp.array([2, 1]), size=4).tolist()
    [1.0, 0.0, 5.0, 0.0]

    Source: ZEN (OSDI 2025), section 3.1, the server's part of Push.
    """
    check_messages(positions, values, counts, size, divisor)
    n, capacity, *row = values.shape
    rows = values.reshape(n, capacity, *(row or (1,)))
    width = rows.shape[2]
    (shard,) = custom_call_or(
        lambda *operands: (reference(*operands, size, divisor=divisor),),
        "zen_aggregate",
        [positions, rows, counts],
        [((size, width), values.dtype)],
        divisor=np.int64(divisor),
    )
    return shard.reshape(size, *row)


def check_messages(positions: Array, values: Array, counts: Array, size: int, divisor: int) -> None:
    """Refuses messages that cannot be summed into `size` units."""
    errors.check_float("values", values.dtype)
    errors.check_rank("values", values.shape, (2, 3))
    errors.check_message_rows("values", values.shape)
    n, capacity = values.shape[:2]
    errors.check_shape("positions", positions.shape, (n, capacity))
    errors.check_shape("counts", counts.shape, (n,))
    errors.check_dtype("positions", positions.dtype, jnp.int32)
    errors.check_dtype("counts", counts.dtype, jnp.int32)
    errors.check_at_least("size", size, 0)
    errors.check_units(size, "int32 positions", "sum a part of the shard at a time")
    errors.check_at_least("divisor", divisor, 1)


def reference(positions: Array, values: Array, counts: Array, size: int, *, divisor: int = 1) -> Array:
    """The pure-JAX lowering, on values [n, C, D]."""
    n, capacity, width = values.shape
    dtype = accumulator_dtype(values.dtype)
    entry = jnp.arange(capacity, dtype=jnp.int32)

    def add_worker(worker: int, shard: Array) -> Array:
        filled = (entry < counts[worker]) & (positions[worker] >= 0)
        # Unused entries get distinct positions below 0, so that every index is unique.
        where, how = jnp.where(filled, positions[worker], -1 - entry), {"mode": "drop", "wrap_negative_indices": False}
        return shard.at[where].add(values[worker].astype(dtype), unique_indices=True, **how)

    shard = jnp.zeros_like(values, dtype, shape=(size, width))
    return divide(lax.fori_loop(0, n, add_worker, shard), divisor, values.dtype)
