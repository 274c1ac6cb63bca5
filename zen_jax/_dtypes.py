"""The dtypes that sums run in."""

import jax.numpy as jnp


def accumulator_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """The dtype in which sums of `dtype` run: float64 for float64, else float32."""
    return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)
