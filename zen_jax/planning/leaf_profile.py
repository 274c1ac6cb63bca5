"""The profile of a leaf: the unit widths at which it is measured, and what follows from what was counted at each."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from zen_jax._typing import Unit
from zen_jax.formats.tensor_block import BLOCK
from zen_jax.planning.counts import Counts, partitions, units_together
from zen_jax.planning.sparsity import FULLEST, LeafProfile, UnitProfile
from zen_jax.units import unit_width


def candidate_widths(shape: tuple[int, ...], n: int, unit: Unit | None = None) -> tuple[int, ...]:
    """Widths at which a leaf is measured, widest first, except those with 2**31 units or more, which kernels refuse.

    With a unit only its width; for vectors, which have no columns to put together, that of elements.

    >>> candidate_widths((1000, 512), n=4), candidate_widths((1000,), n=4), candidate_widths((1000, 512), 4, "row")
    ((512, 256, 128, 1), (256, 1), (512,))
    """
    if unit is not None:
        return (unit_width(shape, unit if len(shape) > 1 else "element", n),)
    columns, narrowest = max(1, math.prod(shape[1:])), unit_width(shape, "auto", n)
    halvings = [columns >> k for k in range(columns.bit_length()) if columns % (1 << k) == 0]
    widths = {BLOCK, 1, narrowest, *(m for m in halvings if m >= narrowest)}
    return tuple(sorted((width for width in widths if math.prod(shape) // width < 2**31), reverse=True))


def leaf_profile(
    shape: tuple[int, ...], dtype: Any, steps: Sequence[Mapping[int, Counts]], devices: int = 1
) -> LeafProfile:
    """A leaf's profile from the counts of each step: means of what is typical, maxima of what must fit.

    Steps that overflowed, as while a loss scale is found, are left out unless there are no others: where all is NaN,
    nothing is sparse.
    """
    elements = math.prod(shape)
    steps = [step for step in steps if not has_overflowed(step)] or steps
    units = {width: _merge([_unit_profile(elements, width, step, devices) for step in steps]) for width in steps[0]}
    return LeafProfile(tuple(shape), str(dtype), units)


def has_overflowed(step: Mapping[int, Counts]) -> bool:
    """Whether a leaf's counts are of a step in which it was not finite."""
    return any(counts.overflowed for counts in step.values())


def _unit_profile(elements: int, width: int, step: Mapping[int, Counts], devices: int) -> UnitProfile:
    """The profile of one step at one width.

    A sample gives ratios; how many units each worker touches in all, which is counted exactly, gives the scale. It may
    miss most of what lies together, as the frequent words of a vocabulary do: one piece's worth of units is added to
    every worker's, as if no two shared any (the worst for unions) and one server owned them all (the worst for ranges).
    Theorem 2 bounds what a sample cannot tell.
    """
    counts = step[width]
    units, n = -(-elements // width), counts.touched.size
    sampled, range_size = int(counts.units) < units, -(-units // n)
    touched, seen = (np.asarray(each, np.float64) for each in (counts.touched, np.diagonal(counts.co_touched)))
    alone = units_together(width, step) if sampled else 0

    def of_all(count: Any, workers: Any, typical: Callable[[np.ndarray], Any]) -> np.ndarray:
        """Units that sums over so many workers have, where `count` of those examined are seen in them."""
        examined = typical(seen) + alone
        return (np.asarray(count, np.float64) + alone * workers) * (typical(touched) / examined if examined else 0.0)

    # With a model axis, each count is the largest of any shard; together they may exceed the number of units.
    unions = np.minimum(
        of_all(_mean_unions(np.asarray(counts.sharers, np.float64)), np.arange(1, n + 1), np.mean), units
    )
    stages = np.minimum(2 ** np.arange(len(counts.partial_sums)), n)
    partial_sums = np.minimum(np.ceil(of_all(counts.partial_sums, stages, np.max)), units)
    contiguous = np.ceil(of_all([counts.contiguous_push, counts.contiguous_pull], np.asarray([1, n]), np.max))
    fullest = [counts.push, counts.pull]
    if sampled:
        fullest = [fullest_hashed(units, n, devices) for units in (touched.max(), unions[-1])]
    push, pull, contiguous_push, contiguous_pull = (min(int(most), range_size) for most in (*fullest, *contiguous))
    first, second = np.triu_indices(n, 1)
    smaller = np.minimum(seen[first], seen[second])
    overlaps = counts.co_touched[first, second][smaller > 0] / smaller[smaller > 0]
    return UnitProfile(
        width=width,
        units=units,
        unions=tuple(map(float, unions)),
        overlap=float(overlaps.mean()) if overlaps.size else 0.0,
        partition_skewness={
            parts: float(np.clip(ratio, 1, parts))
            for parts, ratio in zip(partitions(n), np.asarray(counts.skewness, np.float64), strict=True)
        },
        partial_sums=tuple(map(int, partial_sums)),
        push=push,
        pull=pull,
        contiguous_push=contiguous_push,
        contiguous_pull=contiguous_pull,
    )


def fullest_hashed(touched: float, n: int, devices: int = 1) -> int:
    """The most of the units touched that one of n hashed servers owns; of hosts, `devices` times a device's most.

    Theorem 2: of bins with a mean of mu, the fullest holds mu + 6 sqrt(mu).

    >>> fullest_hashed(0.0, 8), fullest_hashed(800.0, 8), fullest_hashed(800.0, 8, devices=2)
    (0, 160, 186)
    """
    mean = touched / (n * devices)
    return devices * math.ceil(mean + 6 * math.sqrt(mean))


def _mean_unions(sharers: np.ndarray) -> np.ndarray:
    """Mean number of units that k of n workers touch, k = 1 .. n, over all choices of the k workers.

    A unit that c workers touch is in the sum of k workers unless all k are among the other n - c.
    """
    n = sharers.size
    missed, unions = np.ones(n), []  # missed[c - 1]: the share of choices of k workers without any of c given ones
    others = n - np.arange(1, n + 1)
    for k in range(n):
        missed = missed * np.maximum(others - k, 0) / (n - k)
        unions.append(np.sum(sharers * (1 - missed)))
    return np.asarray(unions)


def _merge(steps: Sequence[UnitProfile]) -> UnitProfile:
    first = steps[0]
    return UnitProfile(
        width=first.width,
        units=first.units,
        unions=tuple(map(fmean, zip(*(step.unions for step in steps), strict=True))),
        overlap=fmean(step.overlap for step in steps),
        partition_skewness={p: fmean(step.partition_skewness[p] for step in steps) for p in first.partition_skewness},
        partial_sums=tuple(map(max, zip(*(step.partial_sums for step in steps), strict=True))),
        **{name: max(getattr(step, name) for step in steps) for name in FULLEST},
    )
