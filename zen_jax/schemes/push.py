"""Push: every worker sends its buckets to their servers, which sum what they get into their shards in worker order."""

from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from zen_jax import _axis, kernels
from zen_jax._sums import sum_in_order
from zen_jax._typing import Array, AxisName
from zen_jax.formats import bitmap, coo

PUSH_FORMATS = ("coo", "bitmap", "auto")


class Messages(NamedTuple):
    """COO messages from n workers; with a sparse pull, their sum is never written as a shard."""

    positions: Array  # int32 [n, C]
    values: Array  # [n, C, D]
    counts: Array  # int32 [n]
    size: int
    divisor: int

    def shard(self) -> Array:
        """The sum [T, D]."""
        return kernels.aggregate(*self[:4], divisor=self.divisor)

    def hash_bitmap(self) -> tuple[Array, Array, Array]:
        """`kernels.hash_bitmap_encode` of the sum, with room for all T units."""
        return kernels.aggregate_encode(*self[:4], self.size, divisor=self.divisor)

    def for_others(self) -> tuple[Array, Array, Array, Array]:
        """What each worker lacks of the sum, with room for all T units."""
        return kernels.aggregate_for_others(*self[:4], self.size, divisor=self.divisor)


class Summed(NamedTuple):
    """The sum itself [T, D]; who sent what is no longer known."""

    sum: Array

    def shard(self) -> Array:
        return self.sum

    def hash_bitmap(self) -> tuple[Array, Array, Array]:
        return kernels.hash_bitmap_encode(self.sum, self.sum.shape[0])


Received: TypeAlias = Messages | Summed
"""What a server received from all workers."""


def message_format(push_format: str, size: int, capacity: int, width: int, dtype: jnp.dtype) -> tuple[str, int]:
    """The format ("auto" resolved) of a message with room for `capacity` to a server of `size` units, and its bytes."""
    each = {
        "coo": coo.message_bytes(capacity, width, dtype),
        "bitmap": bitmap.message_bytes(size, capacity, width, dtype),
    }
    return min(each.items(), key=lambda item: item[1]) if push_format == "auto" else (push_format, each[push_format])


def push(
    push_format: str, buckets: tuple[Array, Array, Array], capacity: int, size: int, axis_name: AxisName, divisor: int
) -> Received:
    """Exchanges messages of the first `capacity` units of each bucket.

    Args:
      push_format: "coo", "bitmap" (over the units of a server), or "auto": the smaller message for this room.
      buckets: positions int32 [n, R], values float [n, R, D], counts int32 [n] of at most C.
      capacity: room C of a message, at most R.
      size: units T of each server.
      axis_name: the workers' axis.
      divisor: what sums are divided by.

    Returns:
      What this server received, whose sum is its shard [T, D].
    """
    positions, values, counts = buckets
    width, dtype = values.shape[2], values.dtype
    if message_format(push_format, size, capacity, width, dtype)[0] == "coo":
        received = _axis.all_to_all(coo.pack(positions, values, counts, capacity), axis_name)
        return Messages(*coo.unpack(received, capacity, width, dtype), size, divisor)
    received = _axis.all_to_all(bitmap.pack(positions, values, counts, size, capacity), axis_name)
    # Every message is of all units of this server, not of every n-th unit.
    decode = jax.vmap(lambda words, values: kernels.hash_bitmap_decode(words[None], values[None], size))
    return Summed(sum_in_order(decode(*bitmap.unpack(received, size, capacity, width, dtype)), divisor))
