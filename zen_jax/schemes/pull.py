"""Pull formats: how every worker gets all servers' shards.

A shard is sent as a header of fixed size, which says how many non-zero units there are, and units. Without a plan the
header goes first, so that all workers agree on the room for the units. With one, the planned number of units goes along
with the header, and only what exceeds it needs another message.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from zen_jax import kernels
from zen_jax._bits import bitmap_words, pack_bits, unpack_bits
from zen_jax._typing import Array, AxisName
from zen_jax.formats import bitmap, coo, message
from zen_jax.formats.words import WORD_BYTES, words_for
from zen_jax.schemes.partitioning import Partitioning
from zen_jax.schemes.push import Received


class Units(NamedTuple):
    """Non-zero units of one shard [...], or of all servers' [n, ...]."""

    positions: Array  # int32 [..., C], or [..., 0] in formats that do not send them
    values: Array  # [..., C, D]

    def followed_by(self, others: "Units") -> "Units":
        """All servers' units, followed by further ones of each."""
        return Units(*(jnp.concatenate(parts, axis=1) for parts in zip(self, others, strict=True)))


@dataclass(frozen=True)
class PullFormat(ABC):
    """One way to send shards [T, D] of a partitioning, in units of `width` elements of `dtype`."""

    partitioning: Partitioning
    width: int
    dtype: jnp.dtype

    @property
    def smallest_room(self) -> int:
        """The fewest units that a message has room for."""
        return 1

    @property
    def joins_header(self) -> bool:
        """Whether units are sent as words, which may go along with a header."""
        return True

    @property
    def header_bytes(self) -> int:
        """Bytes of a header with its count."""
        return WORD_BYTES

    @abstractmethod
    def body_bytes(self, capacity: int) -> int:
        """Bytes of `capacity` units."""

    def message_bytes(self, capacity: int) -> int:
        """Bytes of a header and `capacity` units."""
        return self.header_bytes + self.body_bytes(capacity)

    @abstractmethod
    def encode(self, received: Received, axis_name: AxisName) -> tuple[Array, Array, Units]:
        """From the sum: header uint32 [H] without the count, number of non-zero units, and these, with room for T."""

    def pack(self, header: Array, units: Units, count: Array, first: int, capacity: int) -> Array:
        """A message of a header uint32 [H], which may be empty, and `capacity` units from the `first` on."""
        positions, values = (part[None, first : first + capacity] if first else part[None] for part in units)
        head = lax.bitcast_convert_type(header, jnp.int32)[None]
        return message.pack(head, positions, values, jnp.maximum(count - first, 0)[None], capacity)[0]

    @abstractmethod
    def unpack(self, messages: Array, header_words: int, capacity: int) -> tuple[Array, Units]:
        """The inverse of `pack`, on all servers' messages [n, ...]: headers uint32 [n, H] and units."""

    @abstractmethod
    def decode(self, headers: Array, counts: Array, units: Units) -> Array:
        """The whole tensor [U, D] from all servers' headers [n, H], counts [n] and units, of which all are there."""


class HashBitmap(PullFormat):
    """One bit for each unit that the server owns, and the non-zero units: the paper's Algorithm 2."""

    @property
    def header_bytes(self) -> int:
        return WORD_BYTES * (bitmap_words(self.partitioning.size) + 1)

    def body_bytes(self, capacity: int) -> int:
        return WORD_BYTES * words_for(capacity * self.width, self.dtype)

    def encode(self, received: Received, axis_name: AxisName) -> tuple[Array, Array, Units]:
        words, values, count = received.hash_bitmap()
        return words, count, Units(jnp.zeros_like(count, shape=(0,)), values)

    def unpack(self, messages: Array, header_words: int, capacity: int) -> tuple[Array, Units]:
        return _unpacked(messages, header_words, 0, capacity, self)

    def decode(self, headers: Array, counts: Array, units: Units) -> Array:
        return self.partitioning.decode(headers, units.values)


class Bitmap(HashBitmap):
    """One bit for each unit of the whole tensor, n times as many as HashBitmap, and the server's non-zero units."""

    @property
    def header_bytes(self) -> int:
        return WORD_BYTES * (bitmap_words(self.partitioning.units) + 1)

    def encode(self, received: Received, axis_name: AxisName) -> tuple[Array, Array, Units]:
        words, count, kept = super().encode(received, axis_name)
        own = self._indices()[lax.axis_index(axis_name)][None]
        held = unpack_bits(words)[None, : self.partitioning.size]
        return bitmap.set_bits(own, held, self.partitioning.units)[0], count, kept

    def decode(self, headers: Array, counts: Array, units: Units) -> Array:
        held = bitmap.get_bits(headers, self._indices())
        return super().decode(jax.vmap(pack_bits)(held), counts, units)

    def _indices(self) -> Array:
        n, size = self.partitioning.n, self.partitioning.size
        return self.partitioning.indices(jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (n, size)))


class Coo(PullFormat):
    """Position and values of each non-zero unit."""

    def body_bytes(self, capacity: int) -> int:
        return coo.message_bytes(capacity, self.width, self.dtype) - WORD_BYTES  # the count is in the header

    def encode(self, received: Received, axis_name: AxisName) -> tuple[Array, Array, Units]:
        shard = received.shard()
        positions, values, counts = kernels.partition(shard, 1, self.partitioning.size)
        return _no_words(shard), counts[0], Units(positions[0], values[0])

    def unpack(self, messages: Array, header_words: int, capacity: int) -> tuple[Array, Units]:
        return _unpacked(messages, header_words, capacity, capacity, self)

    def decode(self, headers: Array, counts: Array, units: Units) -> Array:
        # No two servers share a unit: the sum over them only puts units where they belong.
        indices = self.partitioning.indices(units.positions)
        return kernels.aggregate(indices, units.values, counts, self.partitioning.units)


class Dense(PullFormat):
    """The whole shard, zeros included, as it is."""

    @property
    def smallest_room(self) -> int:
        return self.partitioning.size

    @property
    def joins_header(self) -> bool:
        return False

    def body_bytes(self, capacity: int) -> int:
        return self.partitioning.size * self.width * jnp.dtype(self.dtype).itemsize

    def encode(self, received: Received, axis_name: AxisName) -> tuple[Array, Array, Units]:
        shard = received.shard()
        count = kernels.partition(shard, 1, 1)[2][0]
        return _no_words(shard), count, Units(jnp.zeros_like(count, shape=(0,)), shard)

    def pack(self, header: Array, units: Units, count: Array, first: int, capacity: int) -> Array:
        return units.values

    def unpack(self, messages: Array, header_words: int, capacity: int) -> tuple[Array, Units]:
        nothing = jnp.zeros_like(messages, jnp.int32, shape=(len(messages), 0))
        return nothing, Units(nothing, messages)

    def decode(self, headers: Array, counts: Array, units: Units) -> Array:
        n, size, _ = units.values.shape
        every_bit = jnp.full_like(units.values, 0xFFFFFFFF, jnp.uint32, shape=(n, bitmap_words(size)))
        return self.partitioning.decode(every_bit, units.values)


def _unpacked(messages: Array, header_words: int, listed: int, capacity: int, pull: PullFormat) -> tuple[Array, Units]:
    heads, positions, values = message.unpack(messages, header_words, listed, capacity, pull.width, pull.dtype)
    return lax.bitcast_convert_type(heads, jnp.uint32), Units(positions, values)


def _no_words(like: Array) -> Array:
    return jnp.zeros_like(like, jnp.uint32, shape=(0,))


PULL_FORMATS: dict[str, type[PullFormat]] = {"coo": Coo, "bitmap": Bitmap, "hash_bitmap": HashBitmap, "dense": Dense}
