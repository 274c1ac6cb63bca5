"""The sparsity profile as a document: by leaf, what section 2.1 of the paper defines and how full messages get."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from reprlib import repr as shortened
from typing import Any, Self

import numpy as np

from zen_jax import errors
from zen_jax._typing import Unit
from zen_jax.buckets import DENSE_BELOW
from zen_jax.planning.cluster import counted
from zen_jax.planning.documents import JsonDocument, as_object, as_tuple, each_entry
from zen_jax.planning.table import table
from zen_jax.units import unit_width

FULLEST = ("push", "pull", "contiguous_push", "contiguous_pull")
"""The fields of a `UnitProfile` that are maxima."""

ROUNDING = 1e-6  # relative, of means


@dataclass(frozen=True)
class UnitProfile:
    """A gradient seen in units of one width. Means are over workers and steps, maxima over all of them.

    Raises:
      ValueError: for numbers that no gradient can have.

    Source: ZEN (OSDI 2025), section 2.1.
    """

    width: int  # elements in a unit
    units: int
    unions: tuple[float, ...]  # mean non-zero units in the sum of any k workers, k = 1 .. n
    overlap: float  # mean overlap ratio of two workers (Definition 3)
    partition_skewness: Mapping[int, float]  # mean skewness ratio (Definition 5) by number of partitions
    partial_sums: tuple[int, ...]  # most non-zero units in one, before each stage of recursive doubling and at its end
    push: int  # units in the fullest message to one of n hashed servers
    pull: int  # units in the fullest shard of a hashed server
    contiguous_push: int  # as push and pull, if server j owns the j-th of n equal ranges of units
    contiguous_pull: int

    def __post_init__(self) -> None:
        n = len(self.unions)
        errors.check_workers(n, "the length of unions")
        for name in ("width", "units"):
            errors.check_at_least(name, getattr(self, name), 1)
        for name in FULLEST:
            errors.check_at_least(name, getattr(self, name), 0)
        errors.check_not_negative("overlap", self.overlap)
        for union in self.unions:
            errors.check_not_negative("unions", union)
        for count in self.partial_sums:
            errors.check_at_least("partial_sums", count, 0)
        for parts, ratio in self.partition_skewness.items():
            errors.check_workers(parts, "partitions")
            errors.check_between(f"partition_skewness[{parts}]", ratio, 1, parts)
        unions = shortened(self.unions)
        if list(self.unions) != sorted(self.unions) or self.unions[-1] > self.units:
            raise ValueError(f"unions={unions} must not decrease, nor exceed {self.units} units. Profile again.")
        if any(union > k * self.unions[0] * (1 + ROUNDING) for k, union in enumerate(self.unions, 1)):
            raise ValueError(
                f"unions={unions} grow faster than the number of workers, which no sum does. Profile again."
            )
        most = {name: getattr(self, name) for name in FULLEST}
        for name, count in (most | {"partial_sums": max(self.partial_sums, default=0)}).items():
            if count > self.units:
                raise ValueError(f"{name}={count} exceeds the {self.units} units. Profile again.")
        if n not in self.partition_skewness:
            known = ", ".join(map(str, sorted(self.partition_skewness))) or "none"
            raise ValueError(f"partition_skewness has no entry for {n} partitions, only for: {known}. Profile again.")
        if len(self.partial_sums) <= (n - 1).bit_length():
            raise ValueError(
                f"partial_sums={shortened(self.partial_sums)} lacks some of those of {n} workers. Profile again."
            )

    @property
    def nonzero(self) -> float:
        """Mean number of non-zero units of a worker."""
        return self.unions[0]

    @property
    def density(self) -> float:
        """Mean share of a worker's units that are non-zero."""
        return self.nonzero / self.units

    def densification(self, k: int) -> float:
        """Mean density of the sum of k workers divided by that of one (Definition 4); 1 if nothing is non-zero."""
        return self.unions[k - 1] / self.nonzero if self.nonzero else 1.0

    def skewness(self, parts: int) -> float:
        """Mean share of non-zeros in the fullest of equal contiguous partitions, times their number (Definition 5)."""
        return self.partition_skewness[parts]


@dataclass(frozen=True)
class LeafProfile:
    """One leaf: its shape, and what was measured, by unit width; nothing for a leaf too small to be worth it.

    Raises:
      ValueError: for an invalid shape, a dtype that is not the name of a float, or units that do not make it up.
    """

    shape: tuple[int, ...]
    dtype: str
    by_width: dict[int, UnitProfile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        errors.check_array_shape(self.shape)
        errors.check_instance("dtype", self.dtype, str, "Give its name, as in 'float32'.")
        errors.check_choice("dtype", self.dtype, errors.FLOATS)
        errors.check_entries("by_width", self.by_width, UnitProfile)
        for width, unit in self.by_width.items():
            if unit.width != width or unit.units != -(-self.elements // unit.width):
                raise ValueError(
                    f"units={unit.units} of width={unit.width}, stored under {width}, do not make up "
                    f"shape={self.shape}. Profile again."
                )

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * np.dtype(self.dtype).itemsize

    def at(self, unit: Unit, n: int) -> UnitProfile:
        """The profile at a unit as in `zen_jax.all_reduce`, for n workers; a ValueError if it was not measured."""
        width = unit_width(self.shape, unit, n)
        if width not in self.by_width:
            known = ", ".join(map(str, sorted(self.by_width))) or "none"
            raise ValueError(f"unit={unit!r} ({width} elements) was not profiled; these were: {known}. Profile it too.")
        return self.by_width[width]


@dataclass(frozen=True)
class SparsityProfile(JsonDocument):
    """Profiles of a tree's leaves by name, for n workers (or hosts) over some steps. `str(profile)` is a table.

    Raises:
      ValueError: for counts out of range, or leaves profiled for other numbers of workers.
    """

    kind = "profile"

    n: int
    leaves: dict[str, LeafProfile] = field(hash=False)
    seed: int = 0
    steps: int = 1
    dense_below: int = DENSE_BELOW  # bytes under which a leaf may be sent dense, in one vector with others
    devices_per_host: int = 1  # if above 1, the n are hosts, each of whose devices sends a share of their sum

    def __post_init__(self) -> None:
        errors.check_workers(self.n)
        errors.check_seed(self.seed)
        errors.check_at_least("steps", self.steps, 1)
        errors.check_at_least("dense_below", self.dense_below, 0)
        errors.check_workers(self.devices_per_host, "devices_per_host")
        errors.check_entries("leaves", self.leaves, LeafProfile)
        for name, leaf in self.leaves.items():
            measured = {len(unit.unions) for unit in leaf.by_width.values()}
            if measured - {self.n}:
                raise ValueError(f"{name} was profiled with {max(measured)} workers, but n={self.n}. Profile again.")

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        leaves = each_entry("leaves", document["leaves"], _leaf_from_json)
        return cls(**{field.name: document[field.name] for field in fields(cls)} | {"leaves": leaves})

    def __str__(self) -> str:
        header = ("leaf", "shape", "unit", "density", f"densification({self.n})", f"skewness({self.n})", "overlap")
        rows = [(*header, "push", "pull")]
        for name, leaf in self.leaves.items():
            for width, unit in sorted(leaf.by_width.items(), reverse=True):
                ratios = (unit.densification(self.n), unit.skewness(self.n), unit.overlap)
                cells = (f"{unit.density:.3%}", *(f"{ratio:.2f}" for ratio in ratios), str(unit.push), str(unit.pull))
                rows.append((name, str(leaf.shape), str(width), *cells))
        unmeasured = sum(not leaf.by_width for leaf in self.leaves.values())
        note = f", {unmeasured} small leaves left out" if unmeasured else ""
        return f"profile of {counted(self.n, self.devices_per_host)}, {self.steps} step(s){note}\n{table(rows)}"


def _leaf_from_json(leaf: Mapping[str, Any]) -> LeafProfile:
    units = each_entry("by_width", leaf["by_width"], _unit_from_json)
    by_width = {int(width): unit for width, unit in units.items()}
    return LeafProfile(as_tuple("shape", leaf["shape"]), leaf["dtype"], by_width)


def _unit_from_json(unit: Mapping[str, Any]) -> UnitProfile:
    skewness = as_object("partition_skewness", unit["partition_skewness"])
    skewness = {int(parts): ratio for parts, ratio in skewness.items()}
    lists = {name: as_tuple(name, unit[name]) for name in ("unions", "partial_sums")}
    return UnitProfile(**{**unit, **lists, "partition_skewness": skewness})
