"""Error feedback by size: sends the largest elements of an accumulated residual, as an array or as a list."""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from zen_jax import errors, selection
from zen_jax._lowering import custom_call_or
from zen_jax._typing import Array
from zen_jax.kernels.error_feedback import check_leaf, split
from zen_jax.kernels.partition import partition

CooArrays: TypeAlias = tuple[Array, Array, Array]
"""Indices, values, and how many there are."""


def send_largest(
    update: Array,
    residual: Array,
    least: Array | int,
    most: Array | int,
    *,
    velocity: Array | None = None,
    momentum: float = 0.0,
    scale: Array | None = None,
) -> tuple[Array, Array, Array | None]:
    """Sends the elements of largest magnitude of residual + update, or of residual + velocity.

    Args:
      update: float [...] of at least one element.
      residual: [...], float32 for 16-bit floats, else of update's dtype: what was not sent before. Its buffer is reused
        for the new residual.
      least, most: how many elements to send, 1 <= least <= most <= size; may be traced. See `selection.top_k_mask`.
      velocity: [...] of residual's dtype; velocity = momentum * velocity + scale * update takes update's place, and
        becomes 0 where it is sent. None for no velocity.
      momentum: of the velocity.
      scale: [] of residual's dtype, the factor of the update if there is a velocity; None for 1.

    Returns:
      sent: [...] of update's dtype, zeros where nothing is sent.
      residual: [...], what stays: sent + residual is the total, bit for bit.
      velocity: [...], or None.

    Raises:
      ValueError: for an update that is not a float, shapes or dtypes that disagree, `least` or `most` out of bounds if
        they are not traced, or 2**31 or more elements.

    >>> import jax.numpy as jnp
    >>> sent, residual, _ = send_largest(jnp.array([1.0, -3.0, 2.0]), jnp.array([0.0, 1.0, 1.0]), 1, 1)
    >>> sent.tolist(), residual.tolist()
    ([0.0, 0.0, 3.0], [1.0, -2.0, 0.0])

    Source: Lin et al., "Deep Gradient Compression" (ICLR 2018), section 3.
    """
    (sent,), residual, velocity = _send(update, residual, least, most, velocity, momentum, scale)
    return sent, residual, velocity


def list_largest(
    update: Array,
    residual: Array,
    least: Array | int,
    most: Array | int,
    room: int,
    *,
    velocity: Array | None = None,
    momentum: float = 0.0,
    scale: Array | None = None,
) -> tuple[CooArrays, Array, Array | None]:
    """Sends what `send_largest` sends, as a list: custom calls write no gradient-sized array except the state.

    Args:
      room: how many elements K the list holds; `most` is enough except for elements that are not finite.
      update, residual, least, most, velocity, momentum, scale: as in `send_largest`.

    Returns:
      listed: indices int32 [K] into the flattened update, ascending, values [K] of update's dtype, none of them zero,
        and their count, int32 [], which may exceed K: then the list holds the first K. Entries at or beyond the count
        are unspecified.
      residual, velocity: as in `send_largest`, bit for bit. Elements that are not finite do not stay, listed or not.

    Raises:
      ValueError: as in `send_largest`, or for a room below 1.

    >>> import jax.numpy as jnp
    >>> update, residual = jnp.array([1.0, -3.0, 2.0]), jnp.array([0.0, 1.0, 1.0])
    >>> (indices, values, count), residual, _ = list_largest(update, residual, 1, 1, room=1)
    >>> indices.tolist(), values.tolist(), int(count), residual.tolist()
    ([2], [3.0], 1, [1.0, -2.0, 0.0])

    Source: Lin et al., "Deep Gradient Compression" (ICLR 2018), section 3.
    """
    errors.check_at_least("room", room, 1)
    return _send(update, residual, least, most, velocity, momentum, scale, room)


def dense_to_coo(sent: Array, room: int) -> CooArrays:
    """The non-zero elements of `sent` as a list with the given room."""
    indices, values, counts = partition(sent.reshape(-1), 1, room)
    return indices[0], values[0], counts[0]


def _bounds(least: Array | int, most: Array | int, size: int) -> tuple[Array, Array]:
    """Both as int32 []; a ValueError for no elements, or if those that are known break 1 <= least <= most <= size."""
    errors.check_at_least("update.size", size, 1)
    selection.check_size(size)
    last = size
    for name, value in (("most", most), ("least", least)):
        if isinstance(value, jax.core.Tracer):
            continue
        value = value.item() if hasattr(value, "item") else value
        errors.check_at_least(name, value, 1)
        if value > last:
            raise ValueError(f"{name}={value} must be at most {last}: 1 <= least <= most <= size of the update.")
        last = value
    return jnp.asarray(least, jnp.int32), jnp.asarray(most, jnp.int32)


def _send(
    update: Array,
    residual: Array,
    least: Array | int,
    most: Array | int,
    velocity: Array | None,
    momentum: float,
    scale: Array | None,
    room: int | None = None,
) -> tuple[tuple[Array, ...], Array, Array | None]:
    """What is sent, as ([...],) or, with `room`, as a list; and the new residual and velocity."""
    update = jnp.asarray(update)
    check_leaf(update, residual, velocity)
    least, most = _bounds(least, most, update.size)
    scale = jnp.ones((), residual.dtype) if scale is None else scale
    errors.check_dtype("scale", jnp.result_type(scale), residual.dtype)
    errors.check_shape("scale", jnp.shape(scale), ())
    # A custom call takes no None: an empty array stands for no velocity.
    has_velocity = velocity is not None
    velocity_or_empty = velocity if has_velocity else jnp.zeros_like(update, residual.dtype, shape=(0,))
    size, itemsize, chunks = update.size, update.dtype.itemsize, selection.sample_chunks(update.size)
    ranks = selection.ranks_around(least, chunks * selection.CHUNK, size)
    if room is None:
        target, results = "zen_send_largest", [(update.shape, update.dtype)]
    else:
        target, results = "zen_list_largest", [((room,), jnp.int32), ((room,), update.dtype), ((), jnp.int32)]

    def pure_jax(update, residual, velocity, scale, bounds):
        old = velocity if has_velocity else None
        sent, residual, new = reference(
            update, residual, bounds[0], bounds[1], velocity=old, momentum=momentum, scale=scale
        )
        sent = (sent,) if room is None else dense_to_coo(sent, room)
        return *sent, residual, new if has_velocity else velocity

    *sent, residual, new_velocity = custom_call_or(
        pure_jax,
        target,
        [update, residual, velocity_or_empty, scale, jnp.stack([least, most, *ranks])],
        [*results, (residual.shape, residual.dtype), (velocity_or_empty.shape, residual.dtype)],
        lambda cuda: cuda.send_largest_scratch_bytes(size, itemsize, chunks, has_velocity),
        aliases={1: len(results), 2: len(results) + 1},
        rank=np.int64(update.ndim),
        momentum=np.float64(momentum),
        chunks=np.int64(chunks),
    )
    return tuple(sent), residual, new_velocity if has_velocity else None


def reference(
    update: Array,
    residual: Array,
    least: Array | int,
    most: Array | int,
    *,
    velocity: Array | None = None,
    momentum: float = 0.0,
    scale: Array | None = None,
    top_k_mask: Callable[..., Array] = selection.top_k_mask,
) -> tuple[Array, Array, Array | None]:
    """The pure-JAX lowering of `send_largest`; `top_k_mask` marks what to send of a flat total."""
    if velocity is not None:
        gradient = update.astype(residual.dtype) * (jnp.ones((), residual.dtype) if scale is None else scale)
        velocity = residual.dtype.type(momentum) * velocity + gradient
    total = residual + (update.astype(residual.dtype) if velocity is None else velocity)
    chosen = top_k_mask(total.reshape(-1), least, most).reshape(total.shape)
    if velocity is not None:
        velocity = jnp.where(chosen | ~jnp.isfinite(total), jnp.zeros_like(velocity), velocity)
    return *split(total, chosen, update.dtype), velocity
