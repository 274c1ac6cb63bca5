"""Which leaves are sent as one, and how: the messages that a plan describes."""

import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from zen_jax.planning.buckets import BUCKET_BYTES, buckets, table_kind
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
    vector join that. Without measured kernels, copying cannot be weighed: only small leaves are joined.

    Args:
      profile, cluster: as in `zen_jax.plan`.
      schemes: schemes to choose from, those preferred in a tie first; at least one is dense.
      bucket_bytes: most bytes of leaves that are sent as one.
    """
    estimated, leaves = estimate(profile, cluster), profile.leaves
    n = estimated.n
    sparse = [scheme for scheme in schemes if scheme not in registry.DENSE]
    dense = [scheme for scheme in schemes if scheme in registry.DENSE]

    def copying(names: Collection[str]) -> float:
        return cluster.seconds_computing("copy", 2 * sum(leaves[name].nbytes for name in names), 0, cluster.workers)

    def added(name: str, schemes: Sequence[str]) -> float:
        """What a leaf adds to the time of others if they are sent as one."""
        way = estimated.best(name, schemes)
        return way.seconds - latency(way.candidate, cluster, n) + copying([name])

    def joined(
        kinds: Mapping[str, Hashable], join: Callable[[list[LeafProfile]], LeafProfile], apart: Mapping[str, float]
    ) -> Iterator[Message]:
        """Leaves of one kind as one, where that takes no longer than what they would take or add apart."""
        for bucket in buckets({name: (kind, leaves[name].nbytes) for name, kind in kinds.items()}, bucket_bytes):
            way = fastest(estimate_leaf(join([leaves[name] for name in bucket]), cluster, n), schemes)
            seconds, limit = way.seconds + copying(bucket), sum(apart[name] for name in bucket)
            if len(bucket) > 1 and (seconds <= limit or math.isclose(seconds, limit)):
                yield Message(tuple(bucket), replace(way, seconds=seconds))

    alone = {name: estimated.best(name, schemes) for name in leaves}
    by_itself = {name: way.seconds for name, way in alone.items()}
    small = [name for name, leaf in leaves.items() if leaf.nbytes < profile.dense_below]
    to_vector = {name: added(name, dense) for name in small}
    otherwise = {name: min(by_itself[name], to_vector.get(name, math.inf)) for name in leaves}
    kinds = {
        name: table_kind(leaves[name].shape, leaves[name].dtype)
        for name in (leaves if cluster.kernels else small)
        if any(scheme in estimated.leaves[name] for scheme in sparse) and added(name, sparse) <= otherwise[name]
    }
    found = list(joined({name: kind for name, kind in kinds.items() if kind}, joined_table, otherwise))
    left = set(leaves).difference(*(message.leaves for message in found))
    fused = {name: leaves[name].dtype for name in small if name in left and to_vector[name] <= by_itself[name]}
    found += joined(fused, joined_vector, by_itself)
    left = left.difference(*(message.leaves for message in found))
    found += [Message((name,), alone[name]) for name in leaves if name in left]
    order = {name: i for i, name in enumerate(leaves)}
    return sorted(found, key=lambda message: order[message.leaves[0]])
