"""A mark in every sparse leaf, which shows whether a transformation has computed with all of its arrays.

Transformations of optax treat each array of a tree alike. One that scales or adds does so with indices, too, and in
their dtype where the factor comes from a schedule: other elements would be trained, without a word.
"""

import jax.numpy as jnp
import numpy as np

from zen_jax._typing import Array

MARK = np.int32(0x2545F491)  # odd, so that in 32 bits no factor but 1 leaves it as it is


def new_mark(indices: Array) -> Array:
    """int32 [1] beside indices [K], [n, 1] beside stacked ones [n, K]: whatever cuts or shards them does so with it."""
    return jnp.full_like(indices, MARK, shape=(*indices.shape[:-1], 1), dtype=jnp.int32)


def is_whole(mark: Array) -> Array:
    """bool []: whether nothing has computed with a leaf."""
    return jnp.all(mark == MARK)
