"""Which server owns which unit: the tile rotation, the paper's MurmurHash with tables, or contiguous ranges."""

from abc import ABC, abstractmethod

import jax
import jax.numpy as jnp
import numpy as np

from zen_jax import hashing, kernels
from zen_jax._typing import Array
from zen_jax.kernels.hash_bitmap_decode import decode_at
from zen_jax.sparse import SparseGradient, nan_if_altered
from zen_jax.trees import densified

Buckets = tuple[Array, Array, Array]
"""Positions int32 [n, C], values [n, C, D] and counts int32 [n] of the units for each of n servers."""


class Partitioning(ABC):
    """A fixed assignment of U units to n servers. `size` is the room for units on each server."""

    def __init__(self, units: int, n: int, seed: int = 0) -> None:
        self.units, self.n, self.seed = units, n, seed
        self.size = -(-units // n)

    @abstractmethod
    def partition(self, x: Array | SparseGradient, capacity: int) -> Buckets:
        """As `zen_jax.kernels.partition`, on x [U, D]."""

    def decode(self, words: Array, values: Array) -> Array:
        """As `zen_jax.kernels.hash_bitmap_decode`, on values [n, C, D]; only of hashed units."""
        raise NotImplementedError

    @abstractmethod
    def indices(self, positions: Array) -> Array:
        """int32 [n, C]: the unit at each of server s's positions, which are row s of `positions` int32 [n, C].

        Units ascend where positions do. Positions beyond those that a server owns name no unit below U.
        """


class TileRotation(Partitioning):
    """`zen_jax.hashing`'s h0: every server owns exactly ceil(U/n) units, in closed form."""

    def partition(self, x: Array | SparseGradient, capacity: int) -> Buckets:
        if not isinstance(x, SparseGradient):
            return kernels.partition(x, self.n, capacity, seed=self.seed)
        x = nan_if_altered(x)
        listed = x.indices, x.values, x.count
        positions, values, counts = kernels.partition_coo(*listed, self.n, capacity, seed=self.seed)
        return positions, values[:, :, None], counts

    def decode(self, words: Array, values: Array) -> Array:
        return kernels.hash_bitmap_decode(words, values, self.units, seed=self.seed)

    def indices(self, positions: Array) -> Array:
        return hashing.index_of(np.arange(self.n)[:, None], positions, self.n, self.seed)


class MurmurTables(Partitioning):
    """The paper's own: h0 is MurmurHash, Algorithm 1 partitions, and tables (8 bytes per unit) give the positions.

    For comparison; units must be fewer than 2**31.
    """

    def __init__(self, units: int, n: int, seed: int) -> None:
        super().__init__(units, n, seed)
        self.server, self.position, sizes = hashing.server_tables(units, n, seed)
        self.size = int(sizes.max())

    def partition(self, x: Array | SparseGradient, capacity: int) -> Buckets:
        x = densified(x)
        found, _, total = kernels.partition(x, 1, self.units)
        held = jnp.arange(self.units, dtype=jnp.int32) < total
        indices = jnp.where(held, found[0], jnp.int32(-1))
        # With as many serial slots as the bucket has room for, Algorithm 1 loses nothing that would fit the bucket.
        memory, counts, _ = kernels.hierarchical_hash(indices, self.n, 2 * capacity, capacity, seed=self.seed)
        buckets = jnp.sort(memory, axis=1)[:, :capacity]
        filled = buckets != hashing.EMPTY_SLOT
        indices = jnp.where(filled, buckets, np.uint32(0)).astype(jnp.int32)
        positions = jnp.where(filled, jnp.asarray(self.position)[indices], 0)
        return positions, x[indices], counts

    def decode(self, words: Array, values: Array) -> Array:
        return decode_at(words, values, jnp.asarray(self.server), jnp.asarray(self.position))

    def indices(self, positions: Array) -> Array:
        table = np.full((self.n, self.size), self.units, np.int32)
        table[self.server, self.position] = np.arange(self.units, dtype=np.int32)
        return jnp.take_along_axis(jnp.asarray(table), positions, axis=1, mode="fill", fill_value=self.units)


class Contiguous(Partitioning):
    """Even ranges of ceil(U/n) consecutive units, as if non-zeros lay evenly; imbalanced, as the paper shows."""

    def partition(self, x: Array, capacity: int) -> Buckets:
        ranges = jnp.pad(x, ((0, self.n * self.size - self.units), (0, 0))).reshape(self.n, self.size, -1)
        positions, values, counts = jax.vmap(lambda units: kernels.partition(units, 1, capacity))(ranges)
        return positions[:, 0], values[:, 0], counts[:, 0]

    def indices(self, positions: Array) -> Array:
        return np.arange(self.n, dtype=np.int32)[:, None] * np.int32(self.size) + positions


HASHES: dict[str, type[Partitioning]] = {"tile": TileRotation, "murmur": MurmurTables}
