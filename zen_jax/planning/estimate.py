"""`estimate`: seconds and bytes of every scheme for every leaf, and the lower bound."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from zen_jax import errors
from zen_jax._sums import accumulator_dtype
from zen_jax.planning.cluster import Cluster, check_cluster
from zen_jax.planning.costs import Candidate, candidates, lower_bound
from zen_jax.planning.sparsity import LeafProfile, SparsityProfile
from zen_jax.planning.table import table
from zen_jax.schemes import registry


@dataclass(frozen=True)
class Estimated:
    """A candidate and the time it would take in one step."""

    candidate: Candidate
    seconds: float

    @property
    def nbytes(self) -> float:
        """Bytes that a worker pushes and pulls."""
        return self.candidate.nbytes


class Cost(NamedTuple):
    """Time of one step, and the bytes that a worker pushes and pulls in it."""

    seconds: float
    nbytes: float

    def to_json(self) -> dict[str, float]:
        """The cost as plain values."""
        return {"seconds": self.seconds, "bytes": self.nbytes}


@dataclass(frozen=True)
class Estimate:
    """Every scheme for every leaf, at its best unit and formats. `str(estimate)` is a table."""

    n: int
    leaves: Mapping[str, Mapping[str, Estimated]]  # by leaf, then by scheme
    bounds: Mapping[str, Cost]  # the least that any scheme could take: what a worker receives, at the link's full rate
    counts_computing: bool  # besides sending: whether the cluster has measured kernels

    def best(self, leaf: str, schemes: Sequence[str]) -> Estimated:
        """The fastest of `schemes` for a leaf; among equals, the first in their order.

        Raises a ValueError if the leaf or a scheme is unknown, or no scheme can take the leaf.
        """
        errors.check_choice("leaf", leaf, self.leaves)
        for scheme in schemes:
            errors.check_choice("schemes", scheme, registry.names())
        known = self.leaves[leaf]
        if not any(scheme in known for scheme in schemes):
            raise ValueError(f"schemes={tuple(schemes)!r} cannot take {leaf!r}. Add one of {', '.join(known)}.")
        return fastest(known, schemes)

    def under(self, scheme: str) -> dict[str, Estimated]:
        """Each leaf under one scheme; under dense_ordered if the scheme cannot take the leaf.

        Raises a ValueError if the scheme is unknown.
        """
        errors.check_choice("scheme", scheme, registry.names())
        return {leaf: known.get(scheme, known["dense_ordered"]) for leaf, known in self.leaves.items()}

    def total(self, scheme: str) -> Cost:
        """The cost of all leaves under one scheme, as `under`."""
        return total_cost(self.under(scheme).values())

    @property
    def bound(self) -> Cost:
        """The least cost of all leaves."""
        return total_cost(self.bounds.values())

    def to_json(self) -> dict[str, Any]:
        """The estimate as plain values."""
        leaves = {
            leaf: {
                scheme: {"seconds": each.seconds, "bytes": each.nbytes, "unit": each.candidate.unit}
                for scheme, each in schemes.items()
            }
            | {"lower bound": self.bounds[leaf].to_json()}
            for leaf, schemes in self.leaves.items()
        }
        return {"n": self.n, "counts_computing": self.counts_computing, "leaves": leaves}

    def __str__(self) -> str:
        rows = [("leaf", "scheme", "unit", "MB", "ms")]
        for leaf, schemes in self.leaves.items():
            for scheme, each in sorted(schemes.items(), key=lambda item: item[1].seconds):
                unit = str(each.candidate.unit) if each.candidate.capacity else "any"
                rows.append((leaf, scheme, unit, f"{each.nbytes / 1e6:.3f}", f"{each.seconds * 1e3:.3f}"))
            bound = self.bounds[leaf]
            rows.append((leaf, "lower bound", "", f"{bound.nbytes / 1e6:.3f}", f"{bound.seconds * 1e3:.3f}"))
        return f"estimate for {self.n} workers, MB pushed and pulled by each{self.caveat}\n{table(rows)}"

    @property
    def caveat(self) -> str:
        """What a reader must know about the seconds, to append to a heading."""
        return "" if self.counts_computing else "; compute time is left out: zen_jax.calibrate measures it"


def profiled_workers(profile: SparsityProfile, cluster: Cluster) -> int:
    """The number of workers of a profile; raises a ValueError if it is no profile, or the cluster is not for them."""
    errors.check_instance("profile", profile, SparsityProfile, "Use zen_jax.profile(stacked_gradients).")
    check_cluster(cluster)
    cluster.check_workers(profile.n, profile.devices_per_host)
    return profile.n


def total_cost(leaves: Collection[Estimated | Cost]) -> Cost:
    """The cost of several leaves."""
    return Cost(sum(leaf.seconds for leaf in leaves), sum(leaf.nbytes for leaf in leaves))


def estimate(profile: SparsityProfile, cluster: Cluster) -> Estimate:
    """Estimates the time and bytes of synchronising profiled gradients under every scheme, each leaf by itself.

    Args:
      profile: from `zen_jax.profile`, with as many workers as the cluster has devices, or hosts; with hosts, the
        devices of each reduce and gather among themselves, dense, and each device synchronises its share.
      cluster: the links.

    Returns:
      An Estimate. Bytes are those that one worker (or host) pushes and pulls, unused room in messages included.

    Raises:
      ValueError: for a profile with another number of workers, or of hosts with other devices.

    >>> import jax.numpy as jnp
    >>> from zen_jax.planning.profile import profile
    >>> gradients = {"table": jnp.zeros((4, 1000, 64)).at[:, :20].set(1.0)}
    >>> found = estimate(profile(gradients), Cluster(4, inter_gbps=1))
    >>> found.best("table", ("dense", "zen")).candidate.scheme, f"{found.bounds['table'].nbytes:.0f}"
    ('zen', '5120')

    Source: ZEN (OSDI 2025), Equations 1 and 2 and section 4.
    """
    n = profiled_workers(profile, cluster)
    leaves = {name: estimate_leaf(leaf, cluster, n) for name, leaf in profile.leaves.items()}
    bounds = {name: _bound(leaf, cluster, n) for name, leaf in profile.leaves.items()}
    return Estimate(n, leaves, bounds, counts_computing=bool(cluster.kernels))


def estimate_leaf(leaf: LeafProfile, cluster: Cluster, n: int) -> dict[str, Estimated]:
    """The fastest candidate of every scheme that can take a leaf, by scheme."""
    # Machines send their sums in the dtype that they accumulate in.
    travelling = leaf if n == cluster.workers else replace(leaf, dtype=str(accumulator_dtype(np.dtype(leaf.dtype))))
    inside = _seconds_inside(leaf.nbytes, cluster, n)
    found: dict[str, Estimated] = {}
    for candidate in candidates(travelling, n):
        if candidate.pull_format == "others" and "for_others" not in cluster.kernels:
            continue  # fewer bytes, but more work, and not everywhere by a custom call: only known costs can weigh it
        way = Estimated(candidate, inside + candidate.seconds(cluster, n))
        if candidate.scheme not in found or way.seconds < found[candidate.scheme].seconds:
            found[candidate.scheme] = way
    return {scheme: found[scheme] for scheme in registry.names() if scheme in found}


def fastest(ways: Mapping[str, Estimated], schemes: Sequence[str]) -> Estimated:
    """The fastest way of a leaf by any of `schemes`; among equals, that of the first."""
    return min((ways[scheme] for scheme in schemes if scheme in ways), key=lambda way: way.seconds)


def latency(candidate: Candidate, cluster: Cluster, n: int) -> float:
    """The part of a candidate's time, in seconds, that does not depend on how much is sent."""
    across = sum(cluster.seconds(each.collective, 0, n, each.distance) for each in candidate.exchanges)
    return _seconds_inside(0, cluster, n) + across


def _bound(leaf: LeafProfile, cluster: Cluster, n: int) -> Cost:
    least = lower_bound(leaf, n)
    transfer = least * 8 / (cluster.fastest_gbps(n) * 1e9)
    # Without latency, which leaves that are sent as one pay once.
    inside = _seconds_inside(leaf.nbytes, cluster, n) - _seconds_inside(0, cluster, n)
    return Cost(inside + transfer, least)


def _seconds_inside(nbytes: float, cluster: Cluster, n: int) -> float:
    """Time among the devices of each machine, if the n workers are machines."""
    return 0.0 if n == cluster.workers else cluster.seconds_inside(nbytes)
