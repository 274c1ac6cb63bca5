"""The capacity ladder: message sizes fixed at trace time, of which every step takes the smallest that fits."""

import jax.numpy as jnp
import numpy as np

from zen_jax._typing import Array

DEFAULT_RATIO = 1.25
PLANNED_RATIOS = (1.0, 1.125, 1.25, 1.5, 2.0, 4.0, 8.0, 16.0)
SMALLEST_SHARE = 1 / 1024
_MULTIPLE = 8


def ladder(top: int, capacity: int | None) -> tuple[int, ...]:
    """Capacities in ascending order, from `capacity` (a plan's), or a 1024th of `top`, up to `top`.

    Without a plan they grow by a quarter, so that a message is at most a quarter larger than what it carries. With
    one, the first fits the steady state and the next catch what outgrows it.

    Args:
      top: units that always fit, at least 1.
      capacity: units expected in the fullest message, or None.

    >>> ladder(1000, 300)
    (300, 338, 375, 450, 600, 1000)
    >>> ladder(100, None)[:4], ladder(100, None)[-2:]
    ((8, 16, 24, 32), (80, 100))
    """
    if capacity is not None:
        rungs = [int(np.ceil(capacity * ratio)) for ratio in PLANNED_RATIOS]
    else:
        steps = np.arange(np.ceil(np.log(1 / SMALLEST_SHARE) / np.log(DEFAULT_RATIO)))
        wanted = top * SMALLEST_SHARE * DEFAULT_RATIO**steps
        rungs = (np.ceil(wanted / _MULTIPLE) * _MULTIPLE).astype(int).tolist()
    return tuple(sorted({rung for rung in rungs if rung < top} | {top}))


def rung_for(count: Array, rungs: tuple[int, ...]) -> Array:
    """Index of the smallest rung that holds `count` units (len(rungs) where none does)."""
    return jnp.sum(count > jnp.array(rungs, jnp.int32), dtype=jnp.int32)
