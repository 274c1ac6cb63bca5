"""Error feedback by a magnitude: sends the elements of an accumulated residual that have reached it."""

import jax.numpy as jnp
import numpy as np

from zen_jax import selection
from zen_jax._lowering import custom_call_or
from zen_jax._typing import Array
from zen_jax.kernels.error_feedback import check_leaf, split


def send_reaching(update: Array, residual: Array, value: float) -> tuple[Array, Array]:
    """Sends every element of residual + update whose magnitude reaches `value`.

    Args:
      update: float [...].
      residual: [...], float32 for 16-bit floats, else of update's dtype: what was not sent before. Its buffer is reused
        for the new residual.
      value: the magnitude, a normal number of residual's dtype above 0.

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
    held = jnp.finfo(residual.dtype)
    if not float(held.tiny) <= value <= float(held.max):  # one that becomes zero would send everything
        raise ValueError(
            f"value={value!r} must be from {held.tiny} to {held.max}, the normal numbers of {residual.dtype} above 0."
        )
    least = np.asarray(value, residual.dtype)
    return custom_call_or(
        lambda *operands: reference(*operands, value=least),
        "zen_send_reaching",
        [update, residual],
        [(update.shape, update.dtype), (residual.shape, residual.dtype)],
        aliases={1: 1},
        rank=np.int64(update.ndim),
        key=np.uint64(least.view(f"uint{8 * least.itemsize}")),
    )


def reference(update: Array, residual: Array, *, value: np.ndarray) -> tuple[Array, Array]:
    """The pure-JAX lowering."""
    total = update.astype(residual.dtype) + residual
    return split(total, jnp.abs(total) >= value, update.dtype)
