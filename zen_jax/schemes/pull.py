"""Pull formats: how every worker gets all servers' shards.

A message is a header of fixed size, which says how many units there are, and units. Without a plan the header goes
first, so that all workers agree on the room for the units. With one, the planned number of units goes along with the
header, and only what exceeds it needs another message.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from zen_jax import _axis, errors, kernels
from zen_jax._bits import bitmap_words, get_bits, pack_bits, set_bits, unpack_bits
from zen_jax._typing import Array, AxisName
from zen_jax.formats import coo, message
from zen_jax.formats.words import WORD_BYTES, words_for
from zen_jax.schemes.partitioning import HASHES, Buckets, Partitioning
from zen_jax.schemes.push import PUSH_FORMATS, Received


class Units(NamedTuple):
    """Units that a server sends, in one message for all workers [1, ...] or one for each, or that all sent [n, ...]."""

    positions: Array  # int32 [..., C], or [..., 0] in formats that do not send them
    values: Array  # [..., C, D]

    def followed_by(self, others: "Units") -> "Units":
        """All servers' units, followed by further ones of each."""
        return Units(*(jnp.concatenate(parts, axis=1) for parts in zip(self, others, strict=True)))


class Outgoing(NamedTuple):
    """What a server sends: one message for all workers, r = 1, or one for each, r = n."""

    words: Array  # uint32 [r, W], which say where the units belong, if positions do not
    counts: Array  # int32 [r], units in each message
    units: Units  # with room for all T
    nonzero: Array  # int32 [], non-zero units of the shard


@dataclass(frozen=True)
class PullFormat(ABC):
    """One way to send shards [T, D] of a partitioning, in units of `width` elements of `dtype`."""

    partitioning: Partitioning
    width: int
    dtype: jnp.dtype

    joins_header: ClassVar[bool] = True
    """Whether units are sent as words, which may go along with a header."""
    lists_positions: ClassVar[bool] = False
    """Whether each unit is sent with its position."""

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
    def encode(self, received: Received, axis_name: AxisName) -> Outgoing:
        """From what this server received, what it sends."""

    def headers(self, outgoing: Outgoing) -> Array:
        """Headers uint32 [r, H], which end with the number of units in the fullest message."""
        return jnp.concatenate([outgoing.words, outgoing.counts.astype(jnp.uint32)[:, None]], axis=1)

    def pack(self, headers: Array, outgoing: Outgoing, first: int, capacity: int) -> Array:
        """Messages [r, words] of headers, which may be empty, and `capacity` units from the `first` on."""
        positions, values = (part[:, first : first + capacity] if first else part for part in outgoing.units)
        heads = lax.bitcast_convert_type(headers, jnp.int32)
        return message.pack(heads, positions, values, jnp.maximum(outgoing.counts - first, 0), capacity)

    def send(self, messages: Array, axis_name: AxisName) -> Array:
        """All servers' messages to this worker [n, ...]."""
        return _axis.all_gather(messages[0], axis_name)

    def unpack(self, messages: Array, header_words: int, capacity: int) -> tuple[Array, Units]:
        """The inverse of `pack`, on all servers' messages [n, ...]: headers uint32 [n, H] and units."""
        listed = capacity if self.lists_positions else 0
        heads, *units = message.unpack(messages, header_words, listed, capacity, self.width, self.dtype)
        return lax.bitcast_convert_type(heads, jnp.uint32), Units(*units)

    def counts(self, headers: Array, axis_name: AxisName) -> tuple[Array, Array]:
        """From headers [n, H]: units in each server's fullest message, and non-zero units of its shard, int32 [n]."""
        return _last(headers), _last(headers)

    @abstractmethod
    def decode(self, headers: Array, units: Units) -> Array:
        """The whole tensor [U, D] from all servers' headers [n, H] and units, of which all are there."""

    def complete(self, x: Array, headers: Array, buckets: Buckets, divisor: int, axis_name: AxisName) -> Array:
        """The tensor that was decoded, with what was not sent because this worker has it in its own buckets."""
        return x


class HashBitmap(PullFormat):
    """One bit for each unit that the server owns, and the non-zero units: the paper's Algorithm 2."""

    @property
    def header_bytes(self) -> int:
        return WORD_BYTES * (bitmap_words(self.partitioning.size) + 1)

    def body_bytes(self, capacity: int) -> int:
        return WORD_BYTES * words_for(capacity * self.width, self.dtype)

    def encode(self, received: Received, axis_name: AxisName) -> Outgoing:
        words, values, count = received.hash_bitmap()
        return _for_all(count, values, words=words)

    def decode(self, headers: Array, units: Units) -> Array:
        return self.partitioning.decode(self.words(headers), units.values)

    def words(self, headers: Array) -> Array:
        """Each server's bitmap, uint32 [n, W]."""
        return headers[:, : bitmap_words(self.partitioning.size)]


class Others(HashBitmap):
    """To each worker a hash bitmap of what others touched; what it alone touched, it has. Of the tile rotation only."""

    @property
    def header_bytes(self) -> int:
        return super().header_bytes + WORD_BYTES

    def encode(self, received: Received, axis_name: AxisName) -> Outgoing:
        words, values, counts, nonzero = received.for_others()
        return Outgoing(words, counts, Units(jnp.zeros_like(counts, shape=(len(words), 0)), values), nonzero)

    def headers(self, outgoing: Outgoing) -> Array:
        ends = jnp.stack([outgoing.nonzero, jnp.max(outgoing.counts)]).astype(jnp.uint32)
        return jnp.concatenate([outgoing.words, jnp.broadcast_to(ends, (len(outgoing.words), 2))], axis=1)

    def send(self, messages: Array, axis_name: AxisName) -> Array:
        return _axis.all_to_all(messages, axis_name)

    def counts(self, headers: Array, axis_name: AxisName) -> tuple[Array, Array]:
        agreed = _axis.replicated(headers[:, -2:].astype(jnp.int32), axis_name)
        return agreed[:, 1], agreed[:, 0]

    def complete(self, x: Array, headers: Array, buckets: Buckets, divisor: int, axis_name: AxisName) -> Array:
        x = kernels.place_own(x, self.words(headers), *buckets, divisor=divisor, seed=self.partitioning.seed)
        return _axis.replicated(x, axis_name)


class Bitmap(HashBitmap):
    """One bit for each unit of the whole tensor, n times as many as HashBitmap, and the server's non-zero units."""

    @property
    def header_bytes(self) -> int:
        return WORD_BYTES * (bitmap_words(self.partitioning.units) + 1)

    def encode(self, received: Received, axis_name: AxisName) -> Outgoing:
        words, values, count = received.hash_bitmap()
        own = self._indices()[lax.axis_index(axis_name)][None]
        held = unpack_bits(words)[None, : self.partitioning.size]
        words = set_bits(own, held, self.partitioning.units)[0]
        return _for_all(count, values, words=words)

    def decode(self, headers: Array, units: Units) -> Array:
        held = get_bits(headers[:, :-1], self._indices())
        return self.partitioning.decode(jax.vmap(pack_bits)(held), units.values)

    def _indices(self) -> Array:
        n, size = self.partitioning.n, self.partitioning.size
        return self.partitioning.indices(jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (n, size)))


class Coo(PullFormat):
    """Position and values of each non-zero unit."""

    lists_positions = True

    def body_bytes(self, capacity: int) -> int:
        return coo.message_bytes(capacity, self.width, self.dtype) - WORD_BYTES  # the count is in the header

    def encode(self, received: Received, axis_name: AxisName) -> Outgoing:
        positions, values, counts = kernels.partition(received.shard(), 1, self.partitioning.size)
        return _for_all(counts[0], values[0], positions=positions[0])

    def decode(self, headers: Array, units: Units) -> Array:
        # No two servers share a unit: the sum over them only puts units where they belong.
        indices = self.partitioning.indices(units.positions)
        return kernels.aggregate(indices, units.values, _last(headers), self.partitioning.units)


class Dense(PullFormat):
    """The whole shard, zeros included, as it is."""

    joins_header = False

    def body_bytes(self, capacity: int) -> int:
        return self.partitioning.size * self.width * jnp.dtype(self.dtype).itemsize

    def encode(self, received: Received, axis_name: AxisName) -> Outgoing:
        shard = received.shard()
        return _for_all(kernels.nonzero_units(shard), shard)

    def pack(self, headers: Array, outgoing: Outgoing, first: int, capacity: int) -> Array:
        return outgoing.units.values

    def unpack(self, messages: Array, header_words: int, capacity: int) -> tuple[Array, Units]:
        nothing = jnp.zeros_like(messages, jnp.int32, shape=(len(messages), 0))
        return nothing, Units(nothing, messages)

    def decode(self, headers: Array, units: Units) -> Array:
        n, size, _ = units.values.shape
        every_bit = jnp.full_like(units.values, 0xFFFFFFFF, jnp.uint32, shape=(n, bitmap_words(size)))
        return self.partitioning.decode(every_bit, units.values)


def _last(headers: Array) -> Array:
    return headers[:, -1].astype(jnp.int32)


def _for_all(count: Array, values: Array, words: Array | None = None, positions: Array | None = None) -> Outgoing:
    """One message for all workers, of `count` units, whose place bitmap words or positions tell, or neither."""
    words = jnp.zeros_like(values, jnp.uint32, shape=(0,)) if words is None else words
    positions = jnp.zeros_like(count, shape=(0,)) if positions is None else positions
    return Outgoing(words[None], count[None], Units(positions[None], values[None]), count)


PULL_FORMATS: dict[str, type[PullFormat]] = {
    "hash_bitmap": HashBitmap,
    "others": Others,
    "bitmap": Bitmap,
    "coo": Coo,
    "dense": Dense,
}


def check_formats(push_format: str, pull_format: str, hash: str = "tile") -> None:
    """Raises a ValueError for formats and hashes that are unknown, or do not go together."""
    errors.check_choice("push_format", push_format, PUSH_FORMATS)
    errors.check_choice("pull_format", pull_format, PULL_FORMATS)
    errors.check_choice("hash", hash, HASHES)
    # A server sums bitmaps without looking at who sent what.
    if pull_format == "others" and (push_format != "coo" or hash != "tile"):
        raise ValueError(
            f"pull_format='others' takes push_format='coo' and hash='tile', but they are {push_format!r} and {hash!r}. "
            "Use those, or pull_format='hash_bitmap'."
        )
