"""Error feedback: some elements of what gathers in a residual are sent, and nothing is lost between the two.

On CPUs the custom calls read and write every array once where a sample of the elements foretells the threshold, which
pure JAX does not manage: XLA writes each result in a loop of its own that reads all operands anew. On GPUs
`send_largest` alone is a custom call, of two passes and as many over the candidates as it takes; XLA fuses the others.
"""

from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax

from zen_jax import selection
from zen_jax._typing import Array, AxisName
from zen_jax.errors import check_at_least, check_dtype, check_float, check_shape
from zen_jax.hashing import murmur3_finish
from zen_jax.kernels._lowering import custom_call_or
from zen_jax.kernels.aggregate import accumulator_dtype
from zen_jax.kernels.partition import partition

Listed: TypeAlias = tuple[Array, Array, Array]
"""Indices, values, and how many there are."""


def residual_dtype(dtype: Any) -> jnp.dtype:
    """The dtype of residuals and velocities of `dtype`: float32 for 16-bit floats, else its own."""
    return accumulator_dtype(dtype)


def send_largest(
    update: Array,
    residual: Array,
    least: Array | int,
    most: Array | int,
    *,
    velocity: Array | None = None,
    momentum: float = 0.0,
    scale: Array | None = None,
    model_axis: AxisName | None = None,
) -> tuple[Array, Array, Array | None]:
    """Sends the largest magnitudes of residual + update, or of residual + velocity.

    Args:
      update: float [...] of at least one element.
      residual: [...] of `residual_dtype`: what was not sent before. Its buffer becomes that of the new residual.
      least, most: how many elements to send, 1 <= least <= most <= size; may be traced. See `selection.largest`.
      velocity: [...] of residual's dtype; velocity = momentum * velocity + scale * update takes update's place, and
        becomes 0 where it is sent. None for neither.
      momentum: of the velocity.
      scale: [] of residual's dtype, what to multiply the update with, if there is a velocity; None for 1.
      model_axis: axis over whose shards of equal size `least` and `most` count; then pure JAX does the work.

    Returns:
      sent: [...] of update's dtype, zeros where nothing is sent.
      residual: [...], what stays: sent + residual is the total, to the bit.
      velocity: [...], or None.

    Raises:
      ValueError: for an update that is no float, shapes or dtypes that disagree, or 2**31 elements or more over all
        shards.

    >>> import jax.numpy as jnp
    >>> sent, residual, _ = send_largest(jnp.array([1.0, -3.0, 2.0]), jnp.array([0.0, 1.0, 1.0]), 1, 1)
    >>> sent.tolist(), residual.tolist()
    ([0.0, 0.0, 3.0], [1.0, -2.0, 0.0])

    Source: Lin et al., "Deep Gradient Compression" (ICLR 2018), section 3.
    """
    _check(update, residual, velocity)
    least, most = jnp.asarray(least, jnp.int32), jnp.asarray(most, jnp.int32)
    if scale is None:
        scale = jnp.ones((), residual.dtype)
    if model_axis is not None:
        return largest_reference(
            update, residual, velocity, scale, least, most, momentum=momentum, model_axis=model_axis
        )
    operands, attributes = _largest_call(update, residual, velocity, scale, least, most, momentum)

    def reference(update, residual, moved, scale, bounds):
        velocity = moved if moved.size else None
        sent, residual, velocity = largest_reference(
            update, residual, velocity, scale, bounds[0], bounds[1], momentum=momentum
        )
        return sent, residual, moved if velocity is None else velocity

    sent, residual, moved = custom_call_or(
        reference,
        "zen_send_largest",
        operands,
        [(array.shape, array.dtype) for array in operands[:3]],
        lambda cuda: cuda.send_largest_scratch_bytes(update.size, update.dtype.itemsize, int(attributes["chunks"])),
        aliases={1: 1, 2: 2},
        **attributes,
    )
    return sent, residual, None if velocity is None else moved


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
    model_axis: AxisName | None = None,
) -> tuple[Listed, Array, Array | None]:
    """Sends what `send_largest` sends, as a list: on CPUs nothing dense is written.

    Args:
      room: how many elements K the list holds; `most` are enough but for elements that are not finite.
      update, residual, least, most, velocity, momentum, scale, model_axis: as of `send_largest`.

    Returns:
      listed: indices int32 [K] into the flattened update, ascending, values [K] of update's dtype, none of them zero,
        and how many there are, int32 []. That may exceed K: then the list holds the first K. Entries at or beyond the
        count are unspecified.
      residual, velocity: as of `send_largest`, to the bit. What is not finite does not stay, whether listed or not.

    Raises:
      ValueError: as `send_largest`, or for a room below 1.

    >>> import jax.numpy as jnp
    >>> update, residual = jnp.array([1.0, -3.0, 2.0]), jnp.array([0.0, 1.0, 1.0])
    >>> (indices, values, count), residual, _ = list_largest(update, residual, 1, 1, room=1)
    >>> indices.tolist(), values.tolist(), int(count), residual.tolist()
    ([2], [3.0], 1, [1.0, -2.0, 0.0])

    Source: Lin et al., "Deep Gradient Compression" (ICLR 2018), section 3.
    """
    _check(update, residual, velocity)
    check_at_least("room", room, 1)
    least, most = jnp.asarray(least, jnp.int32), jnp.asarray(most, jnp.int32)
    if scale is None:
        scale = jnp.ones((), residual.dtype)

    def sent_then_listed(update, residual, velocity, scale, least, most):
        options = {"velocity": velocity, "momentum": momentum, "scale": scale, "model_axis": model_axis}
        sent, residual, velocity = send_largest(update, residual, least, most, **options)
        indices, values, counts = partition(sent.reshape(-1), 1, room)
        return (indices[0], values[0], counts[0]), residual, velocity

    if model_axis is not None:
        return sent_then_listed(update, residual, velocity, scale, least, most)
    operands, attributes = _largest_call(update, residual, velocity, scale, least, most, momentum)

    def reference(update, residual, moved, scale, bounds):
        velocity = moved if moved.size else None
        listed, residual, velocity = sent_then_listed(update, residual, velocity, scale, bounds[0], bounds[1])
        return *listed, residual, moved if velocity is None else velocity

    *listed, residual, moved = custom_call_or(
        reference,
        "zen_list_largest",
        operands,
        [((room,), jnp.int32), ((room,), update.dtype), ((), jnp.int32)]
        + [(array.shape, array.dtype) for array in operands[1:3]],
        aliases={1: 3, 2: 4},
        **attributes,
    )
    return tuple(listed), residual, None if velocity is None else moved


def send_drawn(update: Array, residual: Array, k: int, step: Array) -> tuple[Array, Array]:
    """Sends k random elements of residual + update, the same whatever their values are.

    Args:
      update: float [...] of at least one element.
      residual: [...] of `residual_dtype`: what was not sent before. Its buffer becomes that of the new residual.
      k: how many to send, 1 to size.
      step: uint32 [], a hash that gives other elements whenever it is another.

    Returns:
      sent, residual: as of `send_largest`. Elements that are not finite are sent beyond k.

    Raises:
      ValueError: for an update that is no float, shapes or dtypes that disagree, k not in 1 to size, or 2**31 elements
        or more.

    >>> import jax.numpy as jnp
    >>> sent, residual = send_drawn(jnp.ones(5), jnp.zeros(5), k=2, step=jnp.uint32(0))
    >>> int(sent.sum()), (sent + residual).tolist()
    (2, [1.0, 1.0, 1.0, 1.0, 1.0])
    """
    _check(update, residual)
    check_at_least("k", k, 1)
    if k > update.size:
        raise ValueError(f"k={k} must be at most the {update.size} elements of the update.")
    check_dtype("step", step.dtype, jnp.uint32)
    selection.check_size(update.size)
    return custom_call_or(
        lambda *operands: drawn_reference(*operands, k=k),
        "zen_send_drawn",
        [update, residual, step],
        [(update.shape, update.dtype), (residual.shape, residual.dtype)],
        aliases={1: 1},
        rank=np.int64(update.ndim),
        k=np.int64(k),
    )


def send_reaching(update: Array, residual: Array, value: float) -> tuple[Array, Array]:
    """Sends every element of residual + update that reaches a magnitude.

    Args:
      update: float [...].
      residual: [...] of `residual_dtype`: what was not sent before. Its buffer becomes that of the new residual.
      value: the magnitude, above 0.

    Returns:
      sent, residual: as of `send_largest`. Elements that are not finite are sent, too.

    Raises:
      ValueError: for an update that is no float, or shapes or dtypes that disagree.

    >>> import jax.numpy as jnp
    >>> sent, residual = send_reaching(jnp.array([1.0, -3.0, 2.0]), jnp.array([0.0, 1.0, 1.0]), 2.0)
    >>> sent.tolist(), residual.tolist()
    ([0.0, -2.0, 3.0], [1.0, 0.0, 0.0])
    """
    _check(update, residual)
    least = np.asarray(value, residual.dtype)
    return custom_call_or(
        lambda *operands: reaching_reference(*operands, value=value),
        "zen_send_reaching",
        [update, residual],
        [(update.shape, update.dtype), (residual.shape, residual.dtype)],
        aliases={1: 1},
        rank=np.int64(update.ndim),
        key=np.uint64(least.view(f"uint{8 * least.itemsize}")),
    )


def _check(update: Array, residual: Array, velocity: Array | None = None) -> None:
    check_float("update", update.dtype)
    check_shape("residual", residual.shape, update.shape)
    check_dtype("residual", residual.dtype, residual_dtype(update.dtype))
    if velocity is not None:
        check_shape("velocity", velocity.shape, update.shape)
        check_dtype("velocity", velocity.dtype, residual.dtype)


def _largest_call(
    update: Array, residual: Array, velocity: Array | None, scale: Array, least: Array, most: Array, momentum: float
) -> tuple[list[Array], dict[str, np.generic]]:
    """Operands and attributes of the custom calls that send the largest."""
    selection.check_size(update.size)
    chunks = selection.sample_chunks(update.size)
    ranks = selection.ranks_around(least, chunks * selection.CHUNK, update.size)
    # A custom call takes no None: no velocity is one of no elements.
    moved = jnp.zeros_like(update, residual.dtype, shape=(0,)) if velocity is None else velocity
    attributes = {"rank": np.int64(update.ndim), "momentum": np.float64(momentum), "chunks": np.int64(chunks)}
    return [update, residual, moved, scale, jnp.stack([least, most, *ranks])], attributes


# --- pure JAX ---------------------------------------------------------------------------------------------------------


def largest_reference(
    update: Array,
    residual: Array,
    velocity: Array | None,
    scale: Array,
    least: Array,
    most: Array,
    *,
    momentum: float,
    model_axis: AxisName | None = None,
) -> tuple[Array, Array, Array | None]:
    """The pure-JAX lowering of `send_largest`."""
    if velocity is not None:
        gradient = update.astype(residual.dtype) * scale
        velocity = residual.dtype.type(momentum) * velocity + gradient
    total = residual + (update.astype(residual.dtype) if velocity is None else velocity)
    chosen = selection.largest(total.reshape(-1), least, most, model_axis=model_axis).reshape(total.shape)
    if velocity is not None:
        velocity = jnp.where(chosen | ~jnp.isfinite(total), jnp.zeros_like(velocity), velocity)
    return *split(total, chosen, update.dtype), velocity


def drawn_reference(update: Array, residual: Array, step: Array, *, k: int) -> tuple[Array, Array]:
    """The pure-JAX lowering of `send_drawn`."""
    index = lax.iota(jnp.uint32, update.size)
    draws = (murmur3_finish(index ^ step) >> jnp.uint32(1)) | jnp.uint32(1)  # above zero, and none has a highest bit
    chosen = selection.largest(draws, k, k).reshape(update.shape)
    return split(update.astype(residual.dtype) + residual, chosen, update.dtype)


def reaching_reference(update: Array, residual: Array, *, value: float) -> tuple[Array, Array]:
    """The pure-JAX lowering of `send_reaching`."""
    total = update.astype(residual.dtype) + residual
    return split(total, jnp.abs(total) >= value, update.dtype)


def split(total: Array, chosen: Array, dtype: Any) -> tuple[Array, Array]:
    """Splits `total` into what is sent, in `dtype`, and what stays: sent + residual == total, to the bit.

    Sent are the chosen elements and those that are not finite: NaN and infinities reach whoever guards the training,
    and the residual is always finite. What rounding to a 16-bit `dtype` cuts off stays too.

    >>> import jax.numpy as jnp
    >>> sent, residual = split(jnp.array([1.0, jnp.inf, 3.0]), jnp.array([False, False, True]), jnp.float32)
    >>> sent.tolist(), residual.tolist()
    ([0.0, inf, 3.0], [1.0, 0.0, 0.0])
    """
    finite = jnp.isfinite(total)
    sent = jnp.where(chosen | ~finite, total, jnp.zeros_like(total))
    if dtype == total.dtype:
        return sent, jnp.where(chosen | ~finite, jnp.zeros_like(total), total)
    info = jnp.finfo(dtype)
    limit = total.dtype.type(info.max)
    sent = jnp.where(finite, jnp.clip(sent, -limit, limit), sent)
    # Unlike a pair of casts, XLA never takes reduce_precision for the identity.
    sent = lax.reduce_precision(sent, info.nexp, info.nmant)
    return sent.astype(dtype), jnp.where(finite, total - sent, jnp.zeros_like(total))
