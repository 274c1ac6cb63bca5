"""The dtypes of gradients, and those that sums of them run in."""

import jax.numpy as jnp

FLOATS = ("float32", "float64", "float16", "bfloat16")
"""The names of the dtypes that gradients may have."""


def accumulator_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """The dtype in which sums of `dtype` run: float64 for float64, else float32."""
    return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)
