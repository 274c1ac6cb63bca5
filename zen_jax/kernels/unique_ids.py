"""Unique: the distinct ids among those that a batch looks up or that workers send."""

import jax.numpy as jnp
import numpy as np

from zen_jax import errors
from zen_jax._lowering import custom_call_or
from zen_jax._typing import Array


def unique_ids(ids: Array, fill: int) -> tuple[Array, Array, Array]:
    """The distinct ids in ascending order, and where each went.

    Args:
      ids: int32 [K], none above `fill`.
      fill: the value that pads the result, below 2**31.

    Returns:
      unique: int32 [K], the distinct ids, followed by `fill`.
      slots: int32 [K], the entry of `unique` that holds each id.
      count: int32 [], how many distinct ids lie below `fill`.

    Raises:
      ValueError: for ids that are not int32 [K], or a `fill` of 2**31 or more.

    >>> import jax.numpy as jnp
    >>> unique, slots, count = unique_ids(jnp.array([7, 3, 7]), fill=10)
    >>> unique.tolist(), slots.tolist(), int(count)
    ([3, 7, 10], [1, 0, 1], 2)
    """
    errors.check_rank("ids", ids.shape, (1,))
    errors.check_dtype("ids", ids.dtype, jnp.int32)
    errors.check_units(fill, "int32 ids", "split the ids")
    return custom_call_or(
        lambda ids: reference(ids, fill),
        "zen_unique_ids",
        [ids],
        [(ids.shape, jnp.int32), (ids.shape, jnp.int32), ((), jnp.int32)],
        fill=np.int32(fill),
    )


def reference(ids: Array, fill: int) -> tuple[Array, Array, Array]:
    """The pure-JAX lowering."""
    order = jnp.argsort(ids, stable=True)
    ascending = ids[order]
    is_first = jnp.concatenate([jnp.ones_like(ids, bool, shape=(min(1, ids.size),)), ascending[1:] != ascending[:-1]])
    rank = jnp.cumsum(is_first, dtype=jnp.int32) - 1
    unique = jnp.full_like(ids, fill).at[rank].set(ascending)
    slots = jnp.zeros_like(rank).at[order].set(rank, unique_indices=True)
    return unique, slots, jnp.sum(unique < fill, dtype=jnp.int32)
