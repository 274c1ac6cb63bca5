"""Hash functions that assign units to servers.

`server_of`, `position_of` and `index_of` are the *tile rotation*, zen_jax's h0: the index space is cut into tiles of n
consecutive units, each tile holds one unit for every server, and a hash of the tile rotates it. Two units of one tile
never share a server, and two of different tiles share one with probability 1/n. So the balance that the paper proves
for a universal hash (Theorem 2) holds, while every server owns exactly ceil(U/n) units and no table is needed.

The arithmetic is on uint32 and works on NumPy and JAX arrays alike; `cuda/common/hash.h` is the same in C++.
"""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from zen_jax import errors
from zen_jax._typing import Array, ArrayLike

EMPTY_SLOT = np.uint32(0xFFFFFFFF)
"""Marks an unused slot in Algorithm 1's memory; the paper uses 0, which loses index 0."""


def _uint32(x: ArrayLike) -> Array:
    x = (x if isinstance(x, jax.Array) else np.asarray(x)).astype(np.uint32)
    return x if x.ndim else jnp.asarray(x)  # NumPy scalars would warn where its arrays wrap around


def _rotate_left(x: Array, bits: int) -> Array:
    return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))


def murmur3(key: ArrayLike, seed: int) -> Array:
    """MurmurHash3_x86_32 of each 32-bit key.

    Args:
      key: integers of any shape; the low 32 bits are hashed.
      seed: the hash's seed, 0 to 2**32 - 1.

    Returns:
      uint32 hashes of key's shape.

    >>> import numpy as np
    >>> [hex(h) for h in murmur3(np.array([0, 1]), seed=0)]
    ['0x2362f9de', '0xfbf1402a']
    """
    k = _uint32(key) * np.uint32(0xCC9E2D51)
    k = _rotate_left(k, 15) * np.uint32(0x1B873593)
    h = _rotate_left(k ^ np.uint32(seed), 13) * np.uint32(5) + np.uint32(0xE6546B64)
    return fmix32(h ^ np.uint32(4))


def fmix32(h: Array) -> Array:
    """The final mix of MurmurHash3: a bijection of uint32 in which every bit of h affects every bit of the result.

    >>> import numpy as np
    >>> [hex(h) for h in fmix32(np.array([0, 1], np.uint32))]
    ['0x0', '0x514e28b7']
    """
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


def reduce_to_range(hashes: Array, size: int) -> Array:
    """Maps uint32 hashes to [0, size): the high half of hash * size, uniform and without a division.

    >>> import numpy as np
    >>> reduce_to_range(np.array([0, 2**31, 2**32 - 1], np.uint32), 10).tolist()
    [0, 5, 9]
    """
    low16, half = np.uint32(0xFFFF), np.uint32(16)
    a, b = hashes >> half, hashes & low16
    c, d = np.uint32(size >> 16), np.uint32(size & 0xFFFF)
    middle = ((b * d) >> half) + ((a * d) & low16) + ((b * c) & low16)
    return a * c + ((a * d) >> half) + ((b * c) >> half) + (middle >> half)


def tile_rotation(tile: ArrayLike, n: int, seed: int) -> Array:
    """The number of servers by which each tile is rotated: uint32 in [0, n), of tile's shape.

    >>> import numpy as np
    >>> tile_rotation(np.arange(2), n=4, seed=0).tolist()
    [0, 3]
    """
    return reduce_to_range(murmur3(tile, seed), n)


def offset_in_tile(server: ArrayLike, rotation: Array, n: int) -> Array:
    """Which of a tile's n units (0 to n-1, uint32) `server` owns under `rotation`.

    >>> import numpy as np
    >>> offset_in_tile(0, np.array([0, 3], np.uint32), n=4).tolist()
    [0, 1]
    """
    return (_uint32(server) + np.uint32(n) - rotation) % np.uint32(n)


def server_of(idx: ArrayLike, n: int, seed: int = 0) -> Array:
    """The server (int32, 0 to n-1) that owns each unit index, below 2**31, under the tile rotation.

    Raises a ValueError for an n that is not from 1 to 65535, or a seed that is not a uint32.

    >>> import numpy as np
    >>> server_of(np.arange(8), n=4).tolist()
    [0, 1, 2, 3, 3, 0, 1, 2]
    """
    errors.check_workers(n)
    errors.check_seed(seed)
    idx = _uint32(idx)
    rotation = tile_rotation(idx // np.uint32(n), n, seed)
    return ((idx % np.uint32(n) + rotation) % np.uint32(n)).astype(np.int32)


def position_of(idx: ArrayLike, n: int) -> Array:
    """The position (int32) of each unit index on the server that owns it: its tile. Errors are those of `server_of`.

    >>> import numpy as np
    >>> position_of(np.arange(8), n=4).tolist()
    [0, 0, 0, 0, 1, 1, 1, 1]
    """
    errors.check_workers(n)
    return (_uint32(idx) // np.uint32(n)).astype(np.int32)


def index_of(server: ArrayLike, position: ArrayLike, n: int, seed: int = 0) -> Array:
    """The unit index (int32, below 2**31) at `position` on `server`: the inverse of `server_of` and `position_of`.

    Errors are those of `server_of`.

    >>> import numpy as np
    >>> idx = np.arange(12)
    >>> index_of(server_of(idx, 4, seed=7), position_of(idx, 4), 4, seed=7).tolist() == idx.tolist()
    True
    """
    errors.check_workers(n)
    errors.check_seed(seed)
    position = _uint32(position)
    rotation = tile_rotation(position, n, seed)
    return (position * np.uint32(n) + offset_in_tile(server, rotation, n)).astype(np.int32)


def hash_family(idx: ArrayLike, i: int, size: int, seed: int) -> Array:
    """h_i of the paper's Algorithm 1: h_0 gives the partition, h_1 to h_k give slots of its memory.

    Args:
      idx: 32-bit integers of any shape.
      i: which function of the family, from 0.
      size: number of partitions or slots.
      seed: h_i has the seed `seed + i`, modulo 2**32.

    Returns:
      uint32 in [0, size), of idx's shape.

    >>> import numpy as np
    >>> hash_family(np.arange(2), 0, size=4, seed=0).tolist()
    [0, 3]
    """
    return reduce_to_range(murmur3(idx, (int(seed) + i) % 2**32), size)


@lru_cache(maxsize=8)
def server_tables(units: int, n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The paper's offline tables for a plain MurmurHash h0 (section 3.3.2): which server owns a unit, and where.

    Args:
      units: the number of units U.
      n: the number of servers.
      seed: h0's seed.

    Returns:
      server: int32 [U], the owner of each unit.
      position: int32 [U], the rank of each unit among those of its owner.
      sizes: int64 [n], how many units each server owns.
    """
    server = hash_family(np.arange(units, dtype=np.uint32), 0, n, seed).astype(np.int32)
    sizes = np.bincount(server, minlength=n)
    by_server = np.argsort(server, kind="stable")
    first = np.cumsum(sizes) - sizes
    position = np.empty(units, np.int32)
    position[by_server] = np.arange(units) - first[server[by_server]]
    return server, position, sizes
