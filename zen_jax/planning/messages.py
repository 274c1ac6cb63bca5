"""Which leaves are sent as one, and how: the messages that a plan describes."""

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from zen_jax.buckets import BUCKET_BYTES, buckets, table_kind
from zen_jax.planning.cluster import Cluster
from zen_jax.planning.estimate import Estimated, estimate, estimate_leaf, fastest, latency
from zen_jax.planning.joined import joined_table, joined_vector
from zen_jax.planning.sparsity import LeafProfile, SparsityProfile
from zen_jax.schemes import registry


class Message(NamedTuple):
    """A leaf by itself, or several that are sent as one, and the fastest way to send them."""

    leaves: tuple[str, ...]
    way: Estimated


def messages(
    profile: SparsityProfile, cluster: Cluster, schemes: Sequence[str], bucket_bytes: int = BUCKET_BYTES
) -> list[Message]:
    """Every leaf in one message, joined with others where that takes no longer.

    Leaves that are sent as one pay the latency of one, but are copied into one array and out of it again. Those that
    add the least to a sparse table join others with rows of one length; then small ones that add the least to a dense
    vector join that. Where copying was not measured, it cannot be weighed: only small leaves are joined.

    Args:
      profile, cluster: as in `zen_jax.plan`.
      schemes: schemes to choose from, those preferred in a tie first; at least one is dense.
      bucket_bytes: most bytes of leaves that are sent as one.
    """
    prices = _Prices(profile, cluster, schemes)
    leaves = profile.leaves
    sparse = [scheme for scheme in schemes if scheme not in registry.DENSE]
    dense = [scheme for scheme in schemes if scheme in registry.DENSE]
    small = {name for name, leaf in leaves.items() if leaf.nbytes < profile.dense_below}
    kinds = {name: table_kind(leaf.shape, leaf.dtype) for name, leaf in leaves.items()}

    alone = {name: way.seconds for name, way in prices.alone.items()}
    in_vector = {name: prices.added(name, dense) if name in small else math.inf for name in leaves}
    fits_table = {name for name in leaves if kinds[name] and ("copy" in cluster.kernels or name in small)}
    in_table = {name: prices.added(name, sparse) if name in fits_table else math.inf for name in leaves}

    otherwise = {name: min(alone[name], in_vector[name]) for name in leaves}
    tables = {name: kinds[name] for name in leaves if in_table[name] <= otherwise[name]}
    found = prices.joined(tables, joined_table, bucket_bytes, otherwise)
    left = _without(leaves, found)
    vectors = {name: leaves[name].dtype for name in left if in_vector[name] <= alone[name]}
    found += prices.joined(vectors, joined_vector, bucket_bytes, alone)
    found += [Message((name,), prices.alone[name]) for name in _without(leaves, found)]
    order = {name: i for i, name in enumerate(leaves)}
    return sorted(found, key=lambda message: order[message.leaves[0]])


def _without(leaves: Collection[str], found: Sequence[Message]) -> list[str]:
    """The leaves that are in no message yet."""
    taken = {name for message in found for name in message.leaves}
    return [name for name in leaves if name not in taken]


class _Prices:
    """Seconds that the leaves of a profile take, by themselves or as part of a larger message."""

    def __init__(self, profile: SparsityProfile, cluster: Cluster, schemes: Sequence[str]) -> None:
        self._estimate = estimate(profile, cluster)
        self._leaves, self._cluster, self._schemes = profile.leaves, cluster, schemes
        self.alone = {name: self._estimate.best(name, schemes) for name in profile.leaves}

    def added(self, name: str, schemes: Sequence[str]) -> float:
        """What a leaf adds to a message that one of `schemes` sends; infinity if none can take it."""
        known = [scheme for scheme in schemes if scheme in self._estimate.leaves[name]]
        if not known:
            return math.inf
        way = self._estimate.best(name, known)
        return way.seconds - latency(way.candidate, self._cluster, self._estimate.n) + self._copying([name])

    def joined(
        self,
        kinds: Mapping[str, Hashable],
        join: Callable[[list[LeafProfile]], LeafProfile],
        bucket_bytes: int,
        limits: Mapping[str, float],
    ) -> list[Message]:
        """Leaves of one kind as one, where that takes no longer than the sum of their limits."""
        found = []
        for bucket in buckets({name: (kind, self._leaves[name].nbytes) for name, kind in kinds.items()}, bucket_bytes):
            profile = join([self._leaves[name] for name in bucket])
            way = fastest(estimate_leaf(profile, self._cluster, self._estimate.n), self._schemes)
            seconds, limit = way.seconds + self._copying(bucket), sum(limits[name] for name in bucket)
            if len(bucket) > 1 and (seconds <= limit or math.isclose(seconds, limit)):
                found.append(Message(tuple(bucket), replace(way, seconds=seconds)))
        return found

    def _copying(self, names: Collection[str]) -> float:
        nbytes = sum(self._leaves[name].nbytes for name in names)
        return self._cluster.seconds_computing("copy", 2 * nbytes, 0, self._cluster.workers)
