"""Partition: the non-zero units of a gradient, in one bucket for each server that owns them."""

import jax
import jax.numpy as jnp
import numpy as np

from zen_jax import errors, hashing
from zen_jax._bits import first_set, pack_bits, unit_is_nonzero
from zen_jax._lowering import custom_call_or
from zen_jax._typing import Array


def partition(x: Array, n: int, capacity: int, *, seed: int = 0) -> tuple[Array, Array, Array]:
    """Puts the non-zero units of x into n buckets, by the server that owns them under the tile rotation.

    A unit is non-zero if the bits of any of its elements are: NaN and subnormals are non-zero, -0.0 is not.

    Args:
      x: float [U] (units are elements) or [U, D] (units are rows).
      n: number of servers, 1 to 65535.
      capacity: room C of each bucket, in units.
      seed: seed of the tile rotation.

    Returns:
      positions: int32 [n, C], ascending positions on server i in row i.
      values: [n, C] or [n, C, D] of x's dtype, the units there.
      counts: int32 [n], the true number of non-zero units of each server, which may exceed C: then the bucket
        holds the first C of them. Entries at or beyond the count are unspecified.

    Raises:
      ValueError: for a dtype that is not a float, n or a capacity below 1, or a capacity or units of a server above
        2**31 - 1.

    >>> import jax.numpy as jnp
    >>> positions, values, counts = partition(jnp.array([0., 5., 0., 7., 8., 0.]), n=2, capacity=3)
    >>> counts.tolist(), values[0, :2].tolist(), values[1, :1].tolist()
    ([2, 1], [7.0, 8.0], [5.0])

    Source: ZEN (OSDI 2025), section 3.2, with the tile rotation of `zen_jax.hashing` in place of Algorithm 1's h0.
    """
    errors.check_float("x", x.dtype)
    errors.check_workers(n)
    errors.check_seed(seed)
    errors.check_capacity(capacity)
    errors.check_rank("x", x.shape, (1, 2))
    units, *row = x.shape
    errors.check_units(-(-units // n), "each server", "more servers")
    rows = jnp.asarray(x).reshape(units, *(row or (1,)))
    width, itemsize = rows.shape[1], rows.dtype.itemsize
    positions, values, counts = custom_call_or(
        lambda rows: reference(rows, n, capacity, seed=seed),
        "zen_partition",
        [rows],
        [((n, capacity), jnp.int32), ((n, capacity, width), x.dtype), ((n,), jnp.int32)],
        lambda cuda: cuda.partition_scratch_bytes(units, width, itemsize, n, capacity),
        seed=np.uint32(seed),
    )
    return positions, values.reshape(n, capacity, *row), counts


def nonzero_units(x: Array) -> Array:
    """How many units of a gradient are non-zero.

    Args:
      x: float [U] (units are elements) or [U, D] (units are rows).

    Returns:
      int32 [].

    Raises:
      ValueError: for a dtype that is not a float, or more than 2**31 - 1 units.

    >>> import jax.numpy as jnp
    >>> int(nonzero_units(jnp.array([0.0, 5.0, -0.0, 7.0])))
    2
    """
    return partition(x, 1, 1)[2][0]


def reference(x: Array, n: int, capacity: int, *, seed: int = 0) -> tuple[Array, Array, Array]:
    """The pure-JAX lowering, on x [U, D]. Entries beyond the count are 0."""
    units, width = x.shape
    errors.check_units(units)
    tiles = -(-units // n)
    if tiles == 0:
        empty = jnp.zeros((n, capacity), jnp.int32)
        return empty, jnp.zeros((n, capacity, width), x.dtype), jnp.zeros((n,), jnp.int32)
    mask = jnp.pad(unit_is_nonzero(x), (0, tiles * n - units)).reshape(tiles, n)
    rotation = hashing.tile_rotation(jnp.arange(tiles, dtype=jnp.int32), n, seed)
    servers = np.arange(n, dtype=np.uint32)
    offsets = hashing.offset_in_tile(servers[None, :], rotation[:, None], n)
    by_server = pack_bits(jnp.take_along_axis(mask, offsets.astype(jnp.int32), axis=1)).T
    positions, counts = jax.vmap(lambda words: first_set(words, capacity))(by_server)
    idx = hashing.index_of(servers[:, None], positions, n, seed)
    filled = jnp.arange(capacity, dtype=jnp.int32)[None, :] < counts[:, None]
    return positions, jnp.where(filled[:, :, None], x[idx], 0), counts
