"""The sparsity profile: what section 2.1 of the paper defines, leaf by leaf, and how full messages get."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Self

import jax
import numpy as np

from zen_jax import errors
from zen_jax._typing import Array, PyTree, Unit
from zen_jax.errors import check_at_least, check_float, check_not_negative, check_positive, check_seed, check_workers
from zen_jax.formats.tensor_block import BLOCK
from zen_jax.planning.buckets import DENSE_BELOW
from zen_jax.planning.documents import Kept
from zen_jax.planning.statistics import Counts, count_stacked, partitions
from zen_jax.planning.table import table
from zen_jax.trees import named_leaves
from zen_jax.units import check_unit, unit_width


@dataclass(frozen=True)
class UnitProfile:
    """A gradient seen in units of one width. Means are over workers and steps, maxima over all of them.

    Raises:
      ValueError: for numbers that no gradient has.

    Source: ZEN (OSDI 2025), section 2.1.
    """

    width: int  # elements in a unit
    units: int
    unions: tuple[float, ...]  # mean non-zero units in the sum of any k workers, k = 1 .. n
    overlap: float  # mean overlap ratio of two workers (Definition 3)
    partition_skewness: Mapping[int, float]  # mean skewness ratio (Definition 5) by number of partitions
    groups: tuple[int, ...]  # most non-zero units in a partial sum before each stage of recursive doubling, and at last
    push: int  # units in the fullest message to one of n hashed servers
    pull: int  # units in the fullest shard of a hashed server
    contiguous_push: int  # as push and pull, where server j owns the j-th n-th of the units
    contiguous_pull: int

    def __post_init__(self) -> None:
        n = len(self.unions)
        check_workers(n)
        for name in ("width", "units"):
            check_at_least(name, getattr(self, name), 1)
        for name in _FULLEST:
            check_at_least(name, getattr(self, name), 0)
        check_not_negative("overlap", self.overlap)
        for union in self.unions:
            check_not_negative("unions", union)
        for group in self.groups:
            check_at_least("groups", group, 0)
        for parts, ratio in self.partition_skewness.items():
            check_at_least("partitions", parts, 1)
            check_positive("partition_skewness", ratio)
        if list(self.unions) != sorted(self.unions) or self.unions[-1] > self.units:
            raise ValueError(f"unions={self.unions} must grow, to {self.units} units at most. Profile again.")
        if n not in self.partition_skewness:
            raise ValueError(f"partition_skewness={self.partition_skewness} lacks {n} partitions. Profile again.")
        if len(self.groups) <= (n - 1).bit_length():
            raise ValueError(f"groups={self.groups} lack some of the partial sums of {n} workers. Profile again.")

    @property
    def nonzero(self) -> float:
        """Mean non-zero units of a worker."""
        return self.unions[0]

    @property
    def density(self) -> float:
        """Mean share of a worker's units that are non-zero."""
        return self.nonzero / self.units

    def densification(self, k: int) -> float:
        """Mean density of the sum of k workers over that of one (Definition 4); 1 where nothing is non-zero."""
        return self.unions[k - 1] / self.nonzero if self.nonzero else 1.0

    def skewness(self, parts: int) -> float:
        """Mean share of the fullest of equal contiguous partitions, times their number (Definition 5)."""
        return self.partition_skewness[parts]


@dataclass(frozen=True)
class LeafProfile:
    """One leaf: its shape, and what was measured by unit width; nothing, for a leaf too small to be worth it.

    Raises:
      ValueError: for a shape that is none, or units that do not make it up.
    """

    shape: tuple[int, ...]
    dtype: str
    units: Mapping[int, UnitProfile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for size in self.shape:
            check_at_least("shape", size, 0)
        for width, unit in self.units.items():
            if unit.width != width or unit.units != -(-self.elements // unit.width):
                raise ValueError(
                    f"units={unit.units} of width={unit.width}, kept under {width}, do not make up shape={self.shape}. "
                    "Profile again."
                )

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * np.dtype(self.dtype).itemsize

    def at(self, unit: Unit, n: int) -> UnitProfile:
        """The profile at a unit as `zen_jax.all_reduce` takes it, for n workers; a ValueError where not measured."""
        width = unit_width(self.shape, unit, n)
        if width not in self.units:
            known = ", ".join(map(str, sorted(self.units))) or "none"
            raise ValueError(f"unit={unit!r} ({width} elements) was not profiled; these were: {known}. Profile it too.")
        return self.units[width]


@dataclass(frozen=True)
class SparsityProfile(Kept):
    """Profiles of a tree's leaves by name, of n workers over some steps. `str(profile)` is a table.

    Raises:
      ValueError: for counts out of range, a dtype that is no float, or leaves profiled among other numbers of workers.
    """

    kind = "profile"

    n: int
    leaves: Mapping[str, LeafProfile]
    seed: int = 0
    steps: int = 1
    dense_below: int = DENSE_BELOW  # bytes under which a leaf may be fused into a dense bucket

    def __post_init__(self) -> None:
        check_workers(self.n)
        check_seed(self.seed)
        check_at_least("steps", self.steps, 1)
        check_at_least("dense_below", self.dense_below, 0)
        for name, leaf in self.leaves.items():
            check_float(name, np.dtype(str(leaf.dtype)))  # of None NumPy makes float64
            measured = {len(unit.unions) for unit in leaf.units.values()}
            if measured - {self.n}:
                raise ValueError(f"{name} was profiled among {max(measured)} workers, but n={self.n}.")

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        leaves = {}
        for name, leaf in document["leaves"].items():
            units = {int(width): _unit_from_json(unit) for width, unit in leaf["units"].items()}
            leaves[name] = LeafProfile(tuple(leaf["shape"]), leaf["dtype"], units)
        return cls(document["n"], leaves, document["seed"], document["steps"], document["dense_below"])

    def __str__(self) -> str:
        header = ("leaf", "shape", "unit", "density", f"densification({self.n})", f"skewness({self.n})", "overlap")
        rows = [(*header, "push", "pull")]
        for name, leaf in self.leaves.items():
            for width, unit in sorted(leaf.units.items(), reverse=True):
                ratios = (unit.densification(self.n), unit.skewness(self.n), unit.overlap)
                cells = (f"{unit.density:.3%}", *(f"{ratio:.2f}" for ratio in ratios), str(unit.push), str(unit.pull))
                rows.append((name, str(leaf.shape), str(width), *cells))
        unmeasured = sum(not leaf.units for leaf in self.leaves.values())
        note = f", {unmeasured} small leaves left out" if unmeasured else ""
        return f"profile of {self.n} workers, {self.steps} step(s){note}\n{table(rows)}"


def profile(*steps: PyTree, unit: Unit | None = None, seed: int = 0) -> SparsityProfile:
    """Profiles the sparsity of gradients of one or more steps.

    Args:
      steps: trees of stacked gradients, each leaf float [n, ...]: one slice per worker.
      unit: as in `zen_jax.all_reduce`, to measure that unit alone; None for single elements, whole rows, blocks of
        columns down to what "auto" takes, and blocks of 256 elements.
      seed: seed of the tile rotation.

    Returns:
      A SparsityProfile, exact for these gradients.

    Raises:
      ValueError: for no steps, steps of different trees, leaves without a common leading axis or that are no floats.

    >>> import jax.numpy as jnp
    >>> gradients = jnp.zeros((4, 1000, 64)).at[:, :20].set(1.0)  # four workers, each touched the first 20 rows
    >>> rows = profile(gradients).leaves[""].at("row", n=4)
    >>> rows.density, rows.densification(4), rows.skewness(4), rows.overlap
    (0.02, 1.0, 4.0, 1.0)

    Source: ZEN (OSDI 2025), section 2.1.
    """
    check_seed(seed)
    if unit is not None:
        check_unit(unit)
    if not steps:
        raise ValueError("profile needs the stacked gradients of at least one step.")
    measured = [named_leaves(step) for step in steps]
    sizes = {leaf.shape[:1] for named in measured for _, leaf in named}
    if len(sizes) != 1 or () in sizes:
        raise ValueError(f"stacked gradients must share one leading axis, one slice per worker; got {sorted(sizes)}.")
    kinds = [[(name, leaf.shape, leaf.dtype) for name, leaf in named] for named in measured]
    if any(kind != kinds[0] for kind in kinds):
        raise ValueError("steps must be gradients of one tree, alike in names, shapes and dtypes. Profile them apart.")
    ((n,),) = sizes
    leaves = {}
    for position, (name, stacked) in enumerate(measured[0]):
        check_float(name, stacked.dtype)
        alone = len(measured[0]) == 1
        widths = () if _left_out(stacked, None if alone else unit) else candidate_widths(stacked.shape[1:], n, unit)
        counted = [
            jax.device_get(count_stacked(_as_counted(named[position][1]), widths=widths, seed=seed)) if widths else {}
            for named in measured
        ]
        leaves[name] = leaf_profile(stacked.shape[1:], stacked.dtype, counted)
    return SparsityProfile(n, leaves, seed, len(steps))


def _left_out(stacked: Array, unit: Unit | None) -> bool:
    """Whether nothing is measured: of an empty leaf, and of a small one, to be fused, that the unit does not divide."""
    fused = stacked.nbytes < DENSE_BELOW * stacked.shape[0]
    undivided = errors.is_integer(unit) and math.prod(stacked.shape[2:]) % unit != 0
    return not stacked.size or (fused and undivided)


def _as_counted(stacked: Array) -> Array:
    """A leaf as JAX takes it: without x64 it rounds float64 to float32, and what is tiny to zero."""
    if jax.dtypes.canonicalize_dtype(stacked.dtype) == stacked.dtype:
        return stacked
    return (np.asarray(stacked) != 0).astype(np.float32)


def candidate_widths(shape: tuple[int, ...], n: int, unit: Unit | None = None) -> tuple[int, ...]:
    """Widths at which a leaf is measured, widest first; in 2**31 units or more the kernels take none.

    >>> candidate_widths((1000, 512), n=4), candidate_widths((1000,), n=4), candidate_widths((1000, 512), 4, "row")
    ((512, 256, 128, 1), (256, 1), (512,))
    """
    if unit is not None:
        return (unit_width(shape, unit, n),)
    columns, narrowest = max(1, math.prod(shape[1:])), unit_width(shape, "auto", n)
    halvings = [columns >> k for k in range(columns.bit_length()) if columns % (1 << k) == 0]
    widths = {BLOCK, 1, narrowest, *(m for m in halvings if m >= narrowest)}
    return tuple(sorted((width for width in widths if math.prod(shape) // width < 2**31), reverse=True))


def leaf_profile(shape: tuple[int, ...], dtype: Any, steps: Sequence[Mapping[int, Counts]]) -> LeafProfile:
    """A leaf's profile from the counts of each step: means of what is typical, maxima of what must fit."""
    elements = math.prod(shape)
    units = {width: _merge([_unit_profile(elements, width, step[width]) for step in steps]) for width in steps[0]}
    return LeafProfile(tuple(shape), str(dtype), units)


def _unit_profile(elements: int, width: int, counts: Counts) -> UnitProfile:
    """One step's. Counts of a sample are scaled up, and Theorem 2 bounds what a sample cannot tell."""
    units = -(-elements // width)
    scale = units / counts.units
    touched = np.diagonal(counts.together).astype(np.float64) * scale
    n = touched.size
    # Beside a model axis counts are the largest of any shard, which together may be more than there is.
    unions = np.minimum(_mean_unions(np.asarray(counts.sharers, np.float64) * scale), units)
    first, second = np.triu_indices(n, 1)
    smaller = np.minimum(touched[first], touched[second])
    overlaps = counts.together[first, second][smaller > 0] * scale / smaller[smaller > 0]
    push, pull = int(counts.push), int(counts.pull)
    if scale > 1:
        push, pull = (min(fullest_bin(balls / n), -(-units // n)) for balls in (touched.max(), unions[-1]))
    return UnitProfile(
        width=width,
        units=units,
        unions=tuple(float(union) for union in unions),
        overlap=float(overlaps.mean()) if overlaps.size else 0.0,
        partition_skewness={
            parts: float(np.clip(ratio, 1, parts))
            for parts, ratio in zip(partitions(n), np.asarray(counts.skewness, np.float64), strict=True)
        },
        groups=tuple(math.ceil(group * scale) for group in counts.groups),
        push=push,
        pull=pull,
        contiguous_push=math.ceil(counts.contiguous_push * scale),
        contiguous_pull=math.ceil(counts.contiguous_pull * scale),
    )


def fullest_bin(mean: float) -> int:
    """Most balls in any bin of a universal hash that puts `mean` into each: Theorem 2's mu + 6 sqrt(mu).

    >>> fullest_bin(0.0), fullest_bin(100.0), fullest_bin(1e6)
    (0, 160, 1006000)
    """
    return math.ceil(mean + 6 * math.sqrt(mean))


def _mean_unions(sharers: np.ndarray) -> np.ndarray:
    """Mean units that any k of n workers touch, k = 1 .. n, over all choices of k.

    A unit that c workers touch is in the sum of k of them unless all k are among the other n - c.
    """
    n = sharers.size
    missed, unions = np.ones(n), []  # missed[c - 1]: the share of choices of k workers without any of c given ones
    others = n - np.arange(1, n + 1)
    for k in range(n):
        missed = missed * np.maximum(others - k, 0) / (n - k)
        unions.append(np.sum(sharers * (1 - missed)))
    return np.asarray(unions)


def _merge(steps: Sequence[UnitProfile]) -> UnitProfile:
    def mean(pick: Callable[[UnitProfile], float]) -> float:
        return fmean(map(pick, steps))

    first = steps[0]
    return UnitProfile(
        width=first.width,
        units=first.units,
        unions=tuple(mean(lambda step: step.unions[k]) for k in range(len(first.unions))),  # noqa: B023
        overlap=mean(lambda step: step.overlap),
        partition_skewness={p: mean(lambda step: step.partition_skewness[p]) for p in first.partition_skewness},  # noqa: B023
        groups=tuple(map(max, zip(*(step.groups for step in steps), strict=True))),
        **{name: max(getattr(step, name) for step in steps) for name in _FULLEST},
    )


_FULLEST = ("push", "pull", "contiguous_push", "contiguous_pull")


def _unit_from_json(unit: Mapping[str, Any]) -> UnitProfile:
    skewness = {int(parts): ratio for parts, ratio in unit["partition_skewness"].items()}
    lists = {name: tuple(unit[name]) for name in ("unions", "groups")}
    return UnitProfile(**{**unit, **lists, "partition_skewness": skewness})
