"""Error feedback: what the kernels share that send some elements of an accumulated residual and keep the rest.

Nothing is lost between the two. The custom calls read and write every array once where a sample of the elements
predicts the threshold. Pure JAX cannot: on CPUs XLA writes each result in a loop of its own that rereads all operands.
On GPUs a custom call sends the largest; XLA makes one pass of whatever needs no threshold.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax

from zen_jax import errors
from zen_jax._sums import accumulator_dtype
from zen_jax._typing import Array


def check_leaf(update: Array, residual: Array, velocity: Array | None = None) -> None:
    """Refuses arrays that cannot be one leaf's update, residual and velocity."""
    errors.check_float("update", update.dtype)
    errors.check_shape("residual", residual.shape, update.shape)
    errors.check_dtype("residual", residual.dtype, accumulator_dtype(update.dtype))
    if velocity is not None:
        errors.check_shape("velocity", velocity.shape, update.shape)
        errors.check_dtype("velocity", velocity.dtype, residual.dtype)


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
    limit = total.dtype.type(info.max)
    sent = jnp.where(finite, jnp.clip(sent, -limit, limit), sent)  # what is finite stays so
    # XLA never treats reduce_precision as the identity, unlike a pair of casts.
    sent = lax.reduce_precision(sent, info.nexp, info.nmant)
    return sent.astype(dtype), jnp.where(finite, total - sent, jnp.zeros_like(total))
