"""`simulate`: what the schemes would cost with more workers than were profiled."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np

from zen_jax import errors
from zen_jax.planning.cluster import Cluster
from zen_jax.planning.estimate import Cost, Estimate, estimate, profiled_workers, total_cost
from zen_jax.planning.leaf_profile import fullest_hashed
from zen_jax.planning.plan import WORKER_ORDER_SCHEMES, candidate_schemes
from zen_jax.planning.sparsity import SparsityProfile, UnitProfile
from zen_jax.planning.table import table
from zen_jax.schemes.sparcml import stages

MOST_WORKERS = 4096


@dataclass(frozen=True)
class Simulated:
    """Estimates for n workers, and the scheme that a plan would choose for each leaf."""

    n: int
    estimate: Estimate
    choice: dict[str, str]

    @property
    def planned(self) -> Cost:
        """The cost of all leaves, each under its chosen scheme."""
        return total_cost([self.estimate.leaves[leaf][scheme] for leaf, scheme in self.choice.items()])

    @property
    def speed_up(self) -> float:
        """How many times as fast as dense the choices are; 1 if nothing takes time."""
        seconds = self.planned.seconds
        return self.estimate.total("dense").seconds / seconds if seconds else 1.0


@dataclass(frozen=True)
class Simulation:
    """Estimates by number of workers. `str(simulation)` is a table of all leaves together."""

    points: tuple[Simulated, ...]

    @property
    def schemes(self) -> tuple[str, ...]:
        """The schemes that any leaf could take with any number of workers."""
        leaves = (leaf for point in self.points for leaf in point.estimate.leaves.values())
        return tuple(dict.fromkeys(scheme for leaf in leaves for scheme in leaf))

    def to_json(self) -> dict[str, Any]:
        """The simulation as plain values, for all leaves together."""
        points = [
            {
                "n": point.n,
                "schemes": {scheme: point.estimate.total(scheme).to_json() for scheme in self.schemes},
                "lower bound": point.estimate.bound.to_json(),
                "planned": point.planned.to_json(),
                "speed_up": point.speed_up,
                "choice": point.choice,
            }
            for point in self.points
        ]
        return {"points": points}

    def __str__(self) -> str:
        rows = [("n", *self.schemes, "lower bound", "speed-up", "choice")]
        for point in self.points:
            costs = (*map(point.estimate.total, self.schemes), point.estimate.bound)
            ms = (f"{cost.seconds * 1e3:.2f}" for cost in costs)
            choice = ", ".join(dict.fromkeys(point.choice.values()))
            rows.append((str(point.n), *ms, f"{point.speed_up:.2f}", choice))
        caveat = self.points[0].estimate.caveat if self.points else ""
        return f"ms by number of workers, and the speed-up of the choice over dense{caveat}\n{table(rows)}"


def simulate(
    profile: SparsityProfile,
    cluster: Cluster,
    *,
    workers: Sequence[int] | int | None = None,
    schemes: Collection[str] = WORKER_ORDER_SCHEMES,
) -> Simulation:
    """Estimates every scheme for other numbers of workers, with each leaf by itself and as many hosts as that takes.

    Beyond the profiled workers, the union of k workers' units grows as a power of k (Heaps' law), up to all units; with
    every doubling, the exponent falls by as much as it last did. The skewness ratio grows as a power of the number of
    partitions, with the last measured exponent. Of n hashed messages with a mean of mu units, the fullest holds
    mu + 6 sqrt(mu) (Theorem 2).

    Args:
      profile: a profile of at least 2 workers.
      cluster: the links, and as many hosts as were profiled.
      workers: one or several numbers of workers, each a multiple of the devices per host, or fewer than those; None
        for `doubled_workers`.
      schemes: as in `zen_jax.plan`.

    Returns:
      A Simulation.

    Raises:
      ValueError: for a profile of one worker or of another cluster, or numbers of workers that do not fit the hosts.

    >>> import jax.numpy as jnp
    >>> from zen_jax.planning.profile import profile
    >>> gradients = jnp.zeros((4, 10_000, 64)).at[:, :50].set(1.0)
    >>> print([point.choice["(array)"] for point in simulate(profile(gradients), Cluster(4), workers=(4, 4096)).points])
    ['agsparse', 'auto']
    """
    schemes = candidate_schemes(schemes)
    if profiled_workers(profile, cluster) < 2:
        raise ValueError("a profile of 1 worker says nothing about more. Profile at least two workers.")
    flat = profile.n == cluster.workers
    workers = doubled_workers(profile.n, cluster) if workers is None else workers
    points = []
    for n in (workers,) if isinstance(workers, Real) else workers:
        errors.check_at_least("workers", n, 2)
        errors.check_workers(n)
        n = int(n)  # NumPy integers have no bit_length
        devices = min(n, cluster.devices_per_host)
        if flat and n % devices:
            raise ValueError(f"workers={n} does not fill hosts of {devices} devices. Use multiples of {devices}.")
        resized = replace(cluster, hosts=n // devices, devices_per_host=devices) if flat else replace(cluster, hosts=n)
        estimated = estimate(extrapolate(profile, n), resized)
        choice = {leaf: estimated.best(leaf, schemes).candidate.scheme for leaf in profile.leaves}
        points.append(Simulated(n, estimated, choice))
    return Simulation(tuple(points))


def doubled_workers(profiled: int, cluster: Cluster, most: int = MOST_WORKERS) -> list[int]:
    """The number profiled, and doublings of a full host's workers, or of one host if hosts were profiled; up to `most`.

    >>> doubled_workers(6, Cluster(hosts=2, devices_per_host=3), most=24)
    [3, 6, 12, 24]
    """
    first = cluster.devices_per_host if profiled == cluster.workers else 1
    return sorted(n for n in {first << k for k in range(most.bit_length())} | {profiled} if 2 <= n <= most)


def extrapolate(profile: SparsityProfile, n: int) -> SparsityProfile:
    """The profile that n workers would likely have."""
    if n == profile.n:
        return profile
    devices = profile.devices_per_host
    leaves = {
        name: replace(leaf, by_width={w: _extrapolate_unit(u, n, devices) for w, u in leaf.by_width.items()})
        for name, leaf in profile.leaves.items()
    }
    return replace(profile, n=n, leaves=leaves)


def _extrapolate_unit(unit: UnitProfile, n: int, devices: int) -> UnitProfile:
    measured, size = len(unit.unions), -(-unit.units // n)
    unions = _unions(unit, n)
    fullest_worker = unit.partial_sums[0]
    uneven = fullest_worker / unit.nonzero if unit.nonzero else 1.0
    sizes = [1] + [min(n, 2**s) for s in range(1, len(stages(n)) + 1)]
    skew = _skewness(unit, n)
    # How much more skewed the summed units are than those of one worker, as measured.
    pull_skew = unit.contiguous_pull * measured / unit.unions[-1] / unit.skewness(measured) if unit.nonzero else 1.0
    return replace(
        unit,
        unions=tuple(map(float, unions)),
        partition_skewness={**unit.partition_skewness, n: skew},
        partial_sums=tuple(math.ceil(min(unit.units, uneven * unions[k - 1])) for k in sizes),
        push=min(size, fullest_hashed(fullest_worker, n, devices)),
        pull=min(size, fullest_hashed(unions[-1], n, devices)),
        contiguous_push=min(size, math.ceil(fullest_worker * skew / n)),
        contiguous_pull=min(size, math.ceil(unions[-1] * min(n, max(1.0, skew * pull_skew)) / n)),
    )


def _unions(unit: UnitProfile, n: int) -> np.ndarray:
    """Mean non-zero units in the sum of 1 to n workers."""
    known = np.asarray(unit.unions)
    measured = known.size
    if n <= measured or not unit.nonzero:
        return np.resize(known[:n], n)
    doublings = np.log2(np.arange(measured + 1, n + 1) / measured)
    last = _growth(known, measured)
    slowing = min(0.0, last - _growth(known, measured // 2)) if measured >= 4 else 0.0
    growth = last * doublings + slowing * doublings * (doublings + 1) / 2
    grown = known[-1] * np.exp2(np.maximum.accumulate(np.maximum(growth, 0.0)))
    return np.concatenate([known, np.minimum(grown, unit.units)])


def _growth(unions: np.ndarray, k: int) -> float:
    """The exponent with which the union grew from k // 2 to k workers."""
    half = k // 2
    return math.log(unions[k - 1] / unions[half - 1]) / math.log(k / half)


def _skewness(unit: UnitProfile, parts: int) -> float:
    """Interpolates and extrapolates the measured skewness ratios, linearly in logarithms."""
    known = dict(sorted({1: 1.0, **unit.partition_skewness}.items()))
    x, y = np.log(list(known)), np.log(list(known.values()))
    i = int(np.clip(np.searchsorted(x, math.log(parts)), 1, x.size - 1))
    slope = (y[i] - y[i - 1]) / (x[i] - x[i - 1])
    return float(np.clip(np.exp(y[i] + slope * (math.log(parts) - x[i])), 1.0, parts))
