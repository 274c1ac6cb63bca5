"""The capacity ladder: message sizes fixed at trace time, of which every step takes the smallest that fits."""

import math

import jax.numpy as jnp

from zen_jax._typing import Array

DEFAULT_RATIO = 1.25
PLANNED_RATIOS = (1.0, 1.125, 1.25, 1.5, 2.0, 4.0, 8.0, 16.0)
OUTGROWN_RATIO = 8.0  # beyond these
SMALLEST_SHARE = 1 / 1024
SMALLEST_BYTES = 4 << 10  # below this a message costs latency, not bytes


def ladder(top: int, capacity: int | None, unit_bytes: int, ratio: float | None = None) -> tuple[int, ...]:
    """Capacities in ascending order, up to `top`.

    Without a plan they grow by `ratio` from a 1024th of `top` or 4 KiB, so that by default a larger message is at most
    a quarter larger than its content. With a plan, the first fits the steady state, the next catch what outgrows it,
    and the last, far apart, what the plan did not foresee at all.

    Args:
      top: units that always fit, at least 1.
      capacity: units expected in the fullest message, or None.
      unit_bytes: bytes of one unit.
      ratio: of one rung to the one below it, without a plan; None for DEFAULT_RATIO.

    >>> ladder(1000, 300, unit_bytes=4)
    (300, 338, 375, 450, 600, 1000)
    >>> ladder(1000, None, unit_bytes=16)
    (256, 320, 400, 500, 625, 782, 978, 1000)
    >>> ladder(1_000_000, 1, unit_bytes=4)
    (1, 2, 4, 8, 16, 128, 1024, 8192, 65536, 524288, 1000000)
    """
    if capacity is not None:
        rungs, ratio = [math.ceil(capacity * planned) for planned in PLANNED_RATIOS], OUTGROWN_RATIO
    else:
        rungs = [max(1, math.ceil(top * SMALLEST_SHARE), SMALLEST_BYTES // unit_bytes)]
    while rungs[-1] < top:
        rungs.append(math.ceil(rungs[-1] * (ratio or DEFAULT_RATIO)))
    return tuple(sorted({rung for rung in rungs if rung < top} | {top}))


def rung_for(count: Array, rungs: tuple[int, ...]) -> Array:
    """Index of the smallest rung that holds `count` units (len(rungs) where none does)."""
    return jnp.sum(count > jnp.array(rungs, jnp.int32), dtype=jnp.int32)


def rounds(fullest: Array, planned: int | None) -> Array:
    """How many messages of planned capacity the fullest one would fill: 1 while the plan holds, or without a plan."""
    if not planned:
        return jnp.ones((), jnp.float32)
    # In integers: XLA divides floats by a constant via its reciprocal, and 90 / 30 would be above 3.
    return jnp.maximum((fullest - 1) // planned + 1, 1).astype(jnp.float32)
