"""Push: every worker's buckets go to their servers, each of which sums what it gets into its shard, in worker order."""

import jax.numpy as jnp

from zen_jax import _axis, kernels
from zen_jax._typing import Array, AxisName
from zen_jax.formats import bitmap, coo
from zen_jax.schemes.dense import sum_in_order
from zen_jax.schemes.partitioning import each_decoded

PUSH_FORMATS = ("coo", "bitmap", "auto")


def message_bytes(push_format: str, size: int, capacity: int, width: int, dtype: jnp.dtype) -> int:
    """Bytes of a message to one server of `size` units, with room for `capacity` of `width` elements."""
    each = {
        "coo": coo.message_bytes(capacity, width, dtype),
        "bitmap": bitmap.message_bytes(size, capacity, width, dtype),
    }
    return min(each.values()) if push_format == "auto" else each[push_format]


def push(push_format: str, buckets: tuple[Array, Array, Array], size: int, axis_name: AxisName, divisor: int) -> Array:
    """Exchanges messages of as many units as the buckets have room for.

    Args:
      push_format: "coo", "bitmap" (over the units of a server), or "auto": the smaller message for this room.
      buckets: positions int32 [n, C], values float [n, C, D], counts int32 [n] of at most C.
      size: units T of each server.
      axis_name: the workers' axis.
      divisor: what sums are divided by.

    Returns:
      This server's shard [T, D].
    """
    positions, values, counts = buckets
    (_, capacity), width, dtype = positions.shape, values.shape[2], values.dtype
    if push_format == "auto":
        push_format = min(("coo", "bitmap"), key=lambda name: message_bytes(name, size, capacity, width, dtype))
    if push_format == "coo":
        received = _axis.all_to_all(coo.pack(positions, values, counts), axis_name)
        return kernels.aggregate(*coo.unpack(received, capacity, width, dtype), size, divisor=divisor)
    received = _axis.all_to_all(bitmap.pack(positions, values, counts, size), axis_name)
    return sum_in_order(each_decoded(*bitmap.unpack(received, size, capacity, width, dtype), size), divisor)
