"""A mark in every sparse leaf, which shows whether a transformation has computed with all of its arrays.

Optax transformations treat all arrays of a tree alike. One that scales or adds does so to indices too, and keeps their
dtype where the factor comes from a schedule: the wrong elements would be trained, silently.
"""

import jax.numpy as jnp
import numpy as np

from zen_jax._typing import Array

MARK = np.int32(0x2545F491)  # odd, so that in 32 bits no factor but 1 leaves it unchanged


def new_mark(indices: Array) -> Array:
    """int32 [1] for indices [K], [n, 1] for stacked ones [n, K]: what slices or shards them does the same to it."""
    return jnp.full_like(indices, MARK, shape=(*indices.shape[:-1], 1), dtype=jnp.int32)


def is_intact(mark: Array, indices: Array, used: Array) -> Array:
    """bool []: True if nothing has computed with the leaf, whose `used` indices then ascend from 0 or more."""
    ascending = jnp.all((indices[1:] > indices[:-1]) | ~used[1:]) & jnp.all((indices[:1] >= 0) | ~used[:1])
    return jnp.all(mark == MARK) & ascending


def is_cleared(mark: Array, indices: Array, values: Array) -> Array:
    """bool []: True if zeros have replaced the whole leaf, which is then a zero gradient, as a rejected step's is."""
    return ~(jnp.any(mark) | jnp.any(indices) | jnp.any(values))
