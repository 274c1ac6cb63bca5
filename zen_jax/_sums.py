"""How gradients are summed: in which dtype and order, divided and rounded once, and never to -0.0."""

import jax
import jax.numpy as jnp
from jax import lax

from zen_jax._typing import Array

UNROLLED_WORKERS = 32


def accumulator_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """The dtype in which sums of `dtype` run: float64 for float64, else float32."""
    return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)


def sum_in_order(parts: Array, divisor: int) -> Array:
    """[n, ...] to [...]: the sum in worker order, divided; 16-bit floats in float32, rounded once."""
    n, dtype = parts.shape[0], parts.dtype
    parts = parts.astype(accumulator_dtype(dtype))

    def add_worker(worker: int, acc: Array) -> Array:
        # Indexing with brackets would need 64-bit indices where parts have 2**31 elements.
        return acc + lax.dynamic_index_in_dim(parts, worker, keepdims=False)

    # Unrolled, the sums of up to this many workers fuse into one pass over their parts.
    total = lax.fori_loop(1, n, add_worker, parts[0], unroll=UNROLLED_WORKERS)
    return divide(total, divisor, dtype)


def divide(total: Array, divisor: int, dtype: jnp.dtype) -> Array:
    """Sums multiplied by the reciprocal of `divisor`, as XLA compiles the division in `pmean`, rounded to `dtype`."""
    mean = total * (1 / total.dtype.type(divisor)) if divisor > 1 else total
    return _no_negative_zero(mean.astype(dtype))


@jax.custom_jvp
def _no_negative_zero(x: Array) -> Array:
    # Zeros are not sent, so -0.0 in a result would depend on the scheme and the unit. XLA would fold away adding +0.
    return jnp.where(x == 0, jnp.zeros_like(x), x)


_no_negative_zero.defjvps(lambda tangent, result, x: tangent)
