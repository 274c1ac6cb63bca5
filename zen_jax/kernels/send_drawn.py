"""Error feedback at random: sends elements of an accumulated residual that random keys draw, whatever their values."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from zen_jax import errors, selection
from zen_jax._lowering import custom_call_or
from zen_jax._typing import Array
from zen_jax.hashing import fmix32
from zen_jax.kernels.error_feedback import check_leaf, split


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
    errors.check_shape("step", jnp.shape(step), ())
    selection.check_size(update.size)
    return custom_call_or(
        lambda *operands: reference(*operands, k=k),
        "zen_send_drawn",
        [update, residual, step],
        [(update.shape, update.dtype), (residual.shape, residual.dtype)],
        aliases={1: 1},
        rank=np.int64(update.ndim),
        k=np.int64(k),
    )


def reference(update: Array, residual: Array, step: Array, *, k: int) -> tuple[Array, Array]:
    """The pure-JAX lowering."""
    index = lax.iota(jnp.uint32, update.size)
    draws = (fmix32(index ^ step) >> jnp.uint32(1)) | jnp.uint32(1)  # above zero, highest bit clear
    chosen = selection.top_k_mask(draws, k, k).reshape(update.shape)
    return split(update.astype(residual.dtype) + residual, chosen, update.dtype)
