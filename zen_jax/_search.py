"""Binary search."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from zen_jax import _axis
from zen_jax._typing import Array


@jax.jit(inline=True)
def count_below(ascending: Array, values: Array) -> Array:
    """How many of ascending integers [K] are below each value: int32 of the shape of `values`.

    In place of `jnp.searchsorted`, which JAX 0.10 refuses in a shard_map that leaves axes to the compiler.

    >>> count_below(jnp.array([2, 2, 5]), jnp.array([2, 3, 9])).tolist()
    [0, 2, 3]
    """
    values = jnp.asarray(values)
    size, steps = ascending.size, np.int32(ascending.size.bit_length())

    def step(i: Array, below: Array) -> Array:
        further = below + (np.int32(1) << (steps - 1 - i))
        passed = (further <= size) & (ascending.at[further - 1].get(mode="clip") < values)
        return jnp.where(passed, further, below)

    none = _axis.varying_like(jnp.zeros(values.shape, jnp.int32), values, ascending)
    return lax.fori_loop(np.int32(0), steps, step, none) if size else none
