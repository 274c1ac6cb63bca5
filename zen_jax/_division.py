"""From sums to results: divided, rounded once, and never -0.0."""

import jax
import jax.numpy as jnp

from zen_jax._typing import Array


def divide(total: Array, divisor: int, dtype: jnp.dtype) -> Array:
    """Sums multiplied by the reciprocal of `divisor`, as XLA compiles the division in `pmean`, rounded to `dtype`."""
    mean = total * (1 / total.dtype.type(divisor)) if divisor > 1 else total
    return _no_negative_zero(mean.astype(dtype))


@jax.custom_jvp
def _no_negative_zero(x: Array) -> Array:
    # Zeros are not sent, so -0.0 in a result would depend on the scheme and the unit. XLA would fold away adding +0.
    return jnp.where(x == 0, jnp.zeros_like(x), x)


_no_negative_zero.defjvps(lambda tangent, result, x: tangent)
