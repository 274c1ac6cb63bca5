"""Partition of a gradient given as a list of its non-zero elements."""

import jax.numpy as jnp
import numpy as np

from zen_jax import errors, hashing
from zen_jax._lowering import custom_call_or
from zen_jax._search import count_below
from zen_jax._typing import Array


def partition_coo(
    indices: Array, values: Array, count: Array, n: int, capacity: int, *, seed: int = 0
) -> tuple[Array, Array, Array]:
    """Puts the listed elements into n buckets, bit for bit as `partition` does with the dense gradient.

    Args:
      indices: int32 [K], ascending and distinct.
      values: float [K], none of them zero.
      count: int32 [], how many entries there are; at most K of them are read.
      n: number of servers, 1 to 65535.
      capacity: room C of each bucket, in elements.
      seed: seed of the tile rotation.

    Returns:
      positions int32 [n, C], values [n, C] and counts int32 [n], as in `partition`.

    Raises:
      ValueError: for values that are not floats, shapes or dtypes that disagree, n below 1, or a capacity below 1 or
        above 2**31 - 1.

    >>> import jax.numpy as jnp
    >>> indices, values = jnp.array([1, 3, 4, 0]), jnp.array([5.0, 7.0, 8.0, 0.0])
    >>> positions, values, counts = partition_coo(indices, values, jnp.int32(3), n=2, capacity=3)
    >>> counts.tolist(), values[0, :2].tolist(), values[1, :1].tolist()
    ([2, 1], [7.0, 8.0], [5.0])

    Source: ZEN (OSDI 2025), section 3.2, with the tile rotation of `zen_jax.hashing` in place of Algorithm 1's h0.
    """
    errors.check_float("values", values.dtype)
    errors.check_rank("indices", indices.shape, (1,))
    if not indices.size:
        raise ValueError("indices has shape (0,), but must have room for an element. Give an unused one, and count 0.")
    errors.check_shape("values", values.shape, indices.shape)
    errors.check_shape("count", jnp.shape(count), ())
    errors.check_dtype("indices", indices.dtype, jnp.int32)
    errors.check_dtype("count", jnp.result_type(count), jnp.int32)
    errors.check_workers(n)
    errors.check_seed(seed)
    errors.check_capacity(capacity)
    room = indices.size
    return custom_call_or(
        lambda *operands: reference(*operands, n, capacity, seed=seed),
        "zen_partition_coo",
        [indices, values, count],
        [((n, capacity), jnp.int32), ((n, capacity), values.dtype), ((n,), jnp.int32)],
        lambda cuda: cuda.partition_coo_scratch_bytes(room, n),
        seed=np.uint32(seed),
    )


def reference(
    indices: Array, values: Array, count: Array, n: int, capacity: int, *, seed: int = 0
) -> tuple[Array, Array, Array]:
    """The pure-JAX lowering."""
    listed = jnp.arange(indices.size, dtype=jnp.int32) < count
    entries, first = by_server(indices, listed, n, seed)
    entry = first_of_each(entries, first, capacity)
    return hashing.position_of(indices[entry], n), values[entry], first[1:] - first[:-1]


def by_server(indices: Array, listed: Array, n: int, seed: int) -> tuple[Array, Array]:
    """Sorts the listed entries by the server that owns their index.

    Args:
      indices: int32 [K].
      listed: bool [K], which entries are to be sorted.
      n, seed: of the tile rotation.

    Returns:
      entries: int32 [K], grouped by server, in their own order within each; those not listed come last.
      first: int32 [n + 1], where each server's entries begin, and the end.
    """
    server = jnp.where(listed, hashing.server_of(indices, n, seed), n)
    entries = jnp.argsort(server, stable=True).astype(jnp.int32)
    return entries, count_below(server[entries], np.arange(n + 1, dtype=np.int32))


def first_of_each(entries: Array, first: Array, capacity: int) -> Array:
    """int32 [n, capacity] from what `by_server` returns: each server's first entries, then some of other servers."""
    return entries.at[first[:-1, None] + np.arange(capacity, dtype=np.int32)[None]].get(mode="clip")
