"""Pull formats: how every worker gets all servers' shards.

A shard is sent in two messages. The first, the header, has a fixed size and says how many non-zero units follow, so
that all workers agree on the room for the second, the body.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from zen_jax import kernels
from zen_jax._bits import bitmap_words, pack_bits, unpack_bits
from zen_jax._typing import Array, AxisName
from zen_jax.formats import bitmap, coo, hash_bitmap
from zen_jax.formats.words import WORD_BYTES
from zen_jax.schemes.partitioning import Partitioning
from zen_jax.schemes.push import Received

EncodedShard = tuple[Array, ...]
"""What `encode` keeps of a shard for `pack`."""


@dataclass(frozen=True)
class PullFormat(ABC):
    """One way to send shards [T, D] of a partitioning, in units of `width` elements of `dtype`."""

    partitioning: Partitioning
    width: int
    dtype: jnp.dtype

    @property
    def smallest_room(self) -> int:
        """The fewest units that a body has room for."""
        return 1

    @property
    def header_bytes(self) -> int:
        """Bytes of a header with its count."""
        return WORD_BYTES

    @abstractmethod
    def body_bytes(self, capacity: int) -> int:
        """Bytes of a body with room for `capacity` units."""

    def message_bytes(self, capacity: int) -> int:
        """Bytes of header and body."""
        return self.header_bytes + self.body_bytes(capacity)

    @abstractmethod
    def encode(self, received: Received, axis_name: AxisName) -> tuple[Array, Array, EncodedShard]:
        """From the sum: header uint32 [H] without the count, number of non-zero units, and what `pack` needs."""

    @abstractmethod
    def pack(self, shard: EncodedShard, count: Array, capacity: int) -> Array:
        """The body, of any shape and dtype, with room for `capacity` units."""

    @abstractmethod
    def decode(self, headers: Array, bodies: Array, capacity: int) -> Array:
        """The whole tensor [U, D] from all servers' headers [n, H] and bodies [n, ...]."""


class HashBitmap(PullFormat):
    """One bit for each unit that the server owns, and the non-zero units: the paper's Algorithm 2."""

    @property
    def header_bytes(self) -> int:
        return hash_bitmap.header_bytes(self.partitioning.size)

    def body_bytes(self, capacity: int) -> int:
        return hash_bitmap.body_bytes(capacity, self.width, self.dtype)

    def encode(self, received: Received, axis_name: AxisName) -> tuple[Array, Array, EncodedShard]:
        words, values, count = received.hash_bitmap()
        return words, count, (values,)

    def pack(self, shard: EncodedShard, count: Array, capacity: int) -> Array:
        return hash_bitmap.pack_units(*shard, count, capacity)

    def decode(self, headers: Array, bodies: Array, capacity: int) -> Array:
        values = hash_bitmap.unpack_units(bodies, capacity, self.width, self.dtype)
        return self.partitioning.decode(headers, values)


class Bitmap(HashBitmap):
    """One bit for each unit of the whole tensor, n times as many as HashBitmap, and the server's non-zero units."""

    @property
    def header_bytes(self) -> int:
        return hash_bitmap.header_bytes(self.partitioning.units)

    def encode(self, received: Received, axis_name: AxisName) -> tuple[Array, Array, EncodedShard]:
        words, count, kept = super().encode(received, axis_name)
        own = self._indices()[lax.axis_index(axis_name)][None]
        held = unpack_bits(words)[None, : self.partitioning.size]
        return bitmap.set_bits(own, held, self.partitioning.units)[0], count, kept

    def decode(self, headers: Array, bodies: Array, capacity: int) -> Array:
        held = bitmap.get_bits(headers, self._indices())
        return super().decode(jax.vmap(pack_bits)(held), bodies, capacity)

    def _indices(self) -> Array:
        n, size = self.partitioning.n, self.partitioning.size
        return self.partitioning.indices(jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (n, size)))


class Coo(PullFormat):
    """Position and values of each non-zero unit."""

    def body_bytes(self, capacity: int) -> int:
        return coo.message_bytes(capacity, self.width, self.dtype)

    def encode(self, received: Received, axis_name: AxisName) -> tuple[Array, Array, EncodedShard]:
        shard = received.shard()
        positions, values, counts = kernels.partition(shard, 1, self.partitioning.size)
        return _no_words(shard), counts[0], (positions, values)

    def pack(self, shard: EncodedShard, count: Array, capacity: int) -> Array:
        return coo.pack(*shard, count[None], capacity)[0]

    def decode(self, headers: Array, bodies: Array, capacity: int) -> Array:
        positions, values, counts = coo.unpack(bodies, capacity, self.width, self.dtype)
        # No two servers share a unit: the sum over them only puts units where they belong.
        return kernels.aggregate(self.partitioning.indices(positions), values, counts, self.partitioning.units)


class Dense(PullFormat):
    """The whole shard, zeros included."""

    @property
    def smallest_room(self) -> int:
        return self.partitioning.size

    def body_bytes(self, capacity: int) -> int:
        return self.partitioning.size * self.width * jnp.dtype(self.dtype).itemsize

    def encode(self, received: Received, axis_name: AxisName) -> tuple[Array, Array, EncodedShard]:
        shard = received.shard()
        count = kernels.partition(shard, 1, 1)[2][0]
        return _no_words(shard), count, (shard,)

    def pack(self, shard: EncodedShard, count: Array, capacity: int) -> Array:
        return shard[0]

    def decode(self, headers: Array, bodies: Array, capacity: int) -> Array:
        every_bit = jnp.full_like(bodies, 0xFFFFFFFF, jnp.uint32, shape=(len(bodies), bitmap_words(bodies.shape[1])))
        return self.partitioning.decode(every_bit, bodies)


def pack_header(words: Array, count: Array) -> Array:
    """uint32 [H + 1] from a header uint32 [H] and the number of non-zero units, which saves a collective of its own."""
    return jnp.append(words, count.astype(jnp.uint32))


def unpack_header(headers: Array) -> tuple[Array, Array]:
    """The inverse, on all servers' [n, H + 1]: headers [n, H] and counts int32 [n]."""
    return headers[:, :-1], headers[:, -1].astype(jnp.int32)


def _no_words(like: Array) -> Array:
    return jnp.zeros_like(like, jnp.uint32, shape=(0,))


PULL_FORMATS: dict[str, type[PullFormat]] = {"coo": Coo, "bitmap": Bitmap, "hash_bitmap": HashBitmap, "dense": Dense}
