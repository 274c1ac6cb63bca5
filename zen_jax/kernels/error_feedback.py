"""Error feedback: sends some elements of an accumulated residual and keeps the rest; nothing is lost between the two.

The custom calls read and write every array once where a sample of the elements predicts the threshold. Pure JAX cannot:
on CPUs XLA writes each result in a loop of its own that rereads all operands. On GPUs a custom call sends the largest;
XLA makes one pass of whatever needs no threshold.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from zen_jax import errors, selection
from zen_jax._lowering import custom_call_or
from zen_jax._sums import accumulator_dtype
from zen_jax._typing import Array
from zen_jax.hashing import fmix32


def send_drawn(update: Array, residual: Array, k: int, step: Array) -> tuple[Array, Array]:
    """Sends k random elements of residual + update, chosen regardless of their values.

    Args:
      update: float [...] of at least one element.
      residual: [...], float32 for 16-bit floats, else of update's dtype: what was not sent before. Its buffer is reused
        for the new residual.
      k: how many to send, 1 to size.
      step: uint32 [], a hash; another one gives other elements.

    Returns:
      sent, residual: as in `zen_jax.kernels.send_largest`. Elements that are not finite are sent in addition to k.

    Raises:
      ValueError: for an update that is not a float, shapes or dtypes that disagree, k not in 1 to size, or 2**31 or
        more elements.

    >>> import jax.numpy as jnp
    >>> sent, residual = send_drawn(jnp.ones(5), jnp.zeros(5), k=2, step=jnp.uint32(0))
    >>> int(sent.sum()), (sent + residual).tolist()
    (2, [1.0, 1.0, 1.0, 1.0, 1.0])

    Source: Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory" (NeurIPS 2018), section 2.
    """
    check_leaf(update, residual)
    errors.check_at_least("k", k, 1)
    if k > update.size:
        raise ValueError(f"k={k} must be at most the {update.size} elements of the update.")
    errors.check_dtype("step", jnp.result_type(step), jnp.uint32)
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
    """Sends every element of residual + update whose magnitude reaches `value`.

    Args:
      update: float [...].
      residual: [...], float32 for 16-bit floats, else of update's dtype: what was not sent before. Its buffer is reused
        for the new residual.
      value: the magnitude, above 0.

    Returns:
      sent, residual: as in `zen_jax.kernels.send_largest`. Elements that are not finite are sent too.

    Raises:
      ValueError: for an update that is not a float, shapes or dtypes that disagree, 2**31 or more elements, or a value
        that residual's dtype cannot hold.

    >>> import jax.numpy as jnp
    >>> sent, residual = send_reaching(jnp.array([1.0, -3.0, 2.0]), jnp.array([0.0, 1.0, 1.0]), 2.0)
    >>> sent.tolist(), residual.tolist()
    ([0.0, -2.0, 3.0], [1.0, 0.0, 0.0])

    Source: Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing" (Interspeech 2015), without
    its quantisation.
    """
    check_leaf(update, residual)
    selection.check_size(update.size)
    if not 0 < value <= float(jnp.finfo(residual.dtype).max):
        raise ValueError(f"value={value!r} must be above 0 and no more than the largest {residual.dtype}.")
    least = np.asarray(value, residual.dtype)
    return custom_call_or(
        lambda *operands: reaching_reference(*operands, value=least),
        "zen_send_reaching",
        [update, residual],
        [(update.shape, update.dtype), (residual.shape, residual.dtype)],
        aliases={1: 1},
        rank=np.int64(update.ndim),
        key=np.uint64(least.view(f"uint{8 * least.itemsize}")),
    )


def check_leaf(update: Array, residual: Array, velocity: Array | None = None) -> None:
    """Refuses arrays that cannot be one leaf's update, residual and velocity."""
    errors.check_float("update", update.dtype)
    errors.check_shape("residual", residual.shape, update.shape)
    errors.check_dtype("residual", residual.dtype, accumulator_dtype(update.dtype))
    if velocity is not None:
        errors.check_shape("velocity", velocity.shape, update.shape)
        errors.check_dtype("velocity", velocity.dtype, residual.dtype)


# --- pure JAX ---------------------------------------------------------------------------------------------------------


def drawn_reference(update: Array, residual: Array, step: Array, *, k: int) -> tuple[Array, Array]:
    """The pure-JAX lowering of `send_drawn`."""
    index = lax.iota(jnp.uint32, update.size)
    draws = (fmix32(index ^ step) >> jnp.uint32(1)) | jnp.uint32(1)  # above zero, highest bit clear
    chosen = selection.top_k_mask(draws, k, k).reshape(update.shape)
    return split(update.astype(residual.dtype) + residual, chosen, update.dtype)


def reaching_reference(update: Array, residual: Array, *, value: np.ndarray) -> tuple[Array, Array]:
    """The pure-JAX lowering of `send_reaching`."""
    total = update.astype(residual.dtype) + residual
    return split(total, jnp.abs(total) >= value, update.dtype)


def split(total: Array, chosen: Array, dtype: Any) -> tuple[Array, Array]:
    """Splits `total` into what is sent, in `dtype`, and what stays: sent + residual == total, bit for bit.

    The chosen elements and those that are not finite are sent: NaN and infinities reach whatever guards the training,
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
    # XLA never treats reduce_precision as the identity, unlike a pair of casts.
    sent = lax.reduce_precision(clamped(sent, dtype), info.nexp, info.nmant)
    return sent.astype(dtype), jnp.where(finite, total - sent, jnp.zeros_like(total))


def clamped(x: Array, dtype: Any) -> Array:
    """x with finite elements clamped to the range of `dtype`, so that they stay finite there."""
    limit = x.dtype.type(jnp.finfo(dtype).max)
    return jnp.where(jnp.isfinite(x), jnp.clip(x, -limit, limit), x)
