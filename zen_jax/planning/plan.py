"""A plan: the scheme, unit, formats, capacities and bucket of every leaf of a gradient tree."""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import jax.numpy as jnp
import numpy as np

from zen_jax import errors
from zen_jax._typing import Array
from zen_jax.buckets import BUCKET_BYTES
from zen_jax.planning.cluster import Cluster, counted
from zen_jax.planning.costs import Candidate, Route
from zen_jax.planning.documents import JsonDocument, each_entry
from zen_jax.planning.messages import Message, messages
from zen_jax.planning.sparsity import LeafProfile, SparsityProfile
from zen_jax.planning.table import table
from zen_jax.row_sparse import is_row_sparse
from zen_jax.schemes import registry
from zen_jax.schemes.pull import check_formats
from zen_jax.units import unit_width

WORKER_ORDER_SCHEMES = ("dense_ordered", "auto", "zen", "agsparse", "sparse_ps", "omnireduce")
"""The schemes that sum in worker order: whichever of them a plan picks, results are bitwise the same."""


@dataclass(frozen=True)
class LeafPlan(Route):
    """How one leaf is sent.

    Raises:
      ValueError: for an unknown scheme or format, a capacity below 1 (in a bucket 0), an invalid dtype, unit or bucket,
        or a unit that does not divide the columns.

    >>> LeafPlan((1000, 64), "float32", scheme="zen", unit=16, capacity=(30, 100)).options["capacity"]
    (30, 100)
    """

    shape: tuple[int, ...]
    dtype: str  # "float32"
    scheme: str = "auto"
    unit: int = 1  # elements
    capacity: tuple[int, ...] | None = None  # its units in the fullest message of each exchange
    push_format: str = "coo"
    pull_format: str = "hash_bitmap"
    bucket: int | None = None  # leaves of one bucket differ only in shape and are sent as one; None: by itself

    def __post_init__(self) -> None:
        if self.dtype is None:  # float64 to NumPy
            raise ValueError("dtype=None is not a dtype. Give the leaf's, such as 'float32'.")
        capacity = (self.capacity,) if errors.is_integer(self.capacity) else self.capacity
        try:
            dtype = jnp.dtype(self.dtype)
            if isinstance(capacity, str):
                raise TypeError("a string has no numbers of units")
            capacity = None if capacity is None else tuple(capacity)
            plain = {"shape": tuple(self.shape), "dtype": str(dtype), "capacity": capacity}
        except (TypeError, SyntaxError) as error:  # which NumPy's parser of dtypes raises as well
            raise ValueError(f"{self} has an invalid shape, dtype or capacity: {error}.") from error
        errors.check_float("dtype", dtype)
        for name, value in plain.items():
            object.__setattr__(self, name, value)
        errors.check_choice("scheme", self.scheme, registry.names())
        check_formats(self.push_format, self.pull_format)
        errors.check_at_least("unit", self.unit, 1)
        errors.check_array_shape(self.shape)
        unit_width(self.shape, self.unit, n=1)  # refuses one that does not divide the columns
        if self.capacity == ():
            raise ValueError("capacity=() has no entries. Give one for each exchange, or None.")
        if self.bucket is not None:
            errors.check_at_least("bucket", self.bucket, 0)
        for capacity in self.capacity or ():
            errors.check_capacity(capacity, least=1 if self.bucket is None else 0)


@dataclass(frozen=True)
class Plan(JsonDocument):
    """Plans for a tree's leaves by name, for n workers and a hash seed. `str(plan)` is a table.

    If `devices_per_host` is above 1, the n are hosts, whose devices add up their gradients first (`intra_axis`).

    Leaves with row-sparse gradients need no plan: they are sent as they are. A tree that is synchronised in parts
    (`optax.partition`) has one plan, in which each part finds its own leaves; of a bucket, too, it sends those that it
    has, with their capacities added up.

    Raises a ValueError for numbers of workers or seeds that cannot be, more capacities than a scheme has exchanges, or
    leaves of one bucket that are sent differently.

    >>> plan = Plan(4, {"table": LeafPlan((1000, 64), "float32", scheme="zen", unit=16, capacity=(30, 100))})
    >>> print(plan)
    plan for 4 workers
    leaf   shape       dtype    scheme  unit  formats           capacity  bucket
    table  (1000, 64)  float32  zen     16    coo, hash_bitmap  30, 100
    """

    kind = "plan"

    n: int
    leaves: dict[str, LeafPlan] = field(hash=False)
    seed: int = 0
    devices_per_host: int = 1

    def __post_init__(self) -> None:
        errors.check_workers(self.n)
        errors.check_workers(self.devices_per_host, "devices_per_host")
        errors.check_seed(self.seed)
        errors.check_entries("leaves", self.leaves, LeafPlan)
        kinds: dict[int, dict[str, Any]] = {}
        for name, leaf in self.leaves.items():
            registry.check_exchanges(leaf.capacity or (), leaf.scheme, self.n)
            kind = {"dtype": leaf.dtype, **leaf.options, "capacity": leaf.capacity and len(leaf.capacity)}
            if leaf.bucket is not None and kinds.setdefault(leaf.bucket, kind) != kind:
                raise ValueError(
                    f"{name} is sent with {kind}, but bucket {leaf.bucket} with {kinds[leaf.bucket]}. Give it another "
                    "bucket."
                )

    def check(self, named: list[tuple[str, Array]], n: int | None, devices: int = 1) -> None:
        """Raises a ValueError that says what differs if this is a plan for another tree, n or devices of a host.

        The leaves may be only part of the tree. If n is None, they are parameters, which tell only their names:
        gradients may have another dtype and, under tensor parallelism inside shard_map, the shape of a shard.
        """
        if n is not None and (n, devices) != (self.n, self.devices_per_host):
            here = counted(n, devices)
            raise ValueError(
                f"plan is for {counted(self.n, self.devices_per_host)}, but there are {here}. Make a plan for {here}."
            )
        lacking = [name for name, leaf in named if name not in self.leaves and not is_row_sparse(leaf)]
        # Row-sparse gradients need no plan. Parameters do not tell which gradients are row-sparse, but hardly all are.
        if lacking and (n is not None or (self.leaves and len(lacking) == len(named))):
            names = {name for name, _ in named}
            others = ", ".join(repr(name) for name in self.leaves if name not in names)
            has = f" but has {others}" if others else ""
            raise ValueError(
                f"plan is for other leaves: it lacks {', '.join(map(repr, lacking))}{has}. Make a plan for this tree, "
                "or pass None if all its gradients are row-sparse."
            )
        for name, leaf in named:
            planned = self.leaves.get(name)
            if planned and n is not None and (planned.shape, planned.dtype) != (leaf.shape, str(leaf.dtype)):
                raise ValueError(
                    f"plan is for {name} as {planned.dtype}{list(planned.shape)}, but the gradient is "
                    f"{leaf.dtype}{list(leaf.shape)}. Make a plan for these shapes."
                )

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        leaves = each_entry("leaves", document["leaves"], lambda leaf: LeafPlan(**leaf))
        return cls(document["n"], leaves, document["seed"], document["devices_per_host"])

    def __str__(self) -> str:
        rows = [("leaf", "shape", "dtype", "scheme", "unit", "formats", "capacity", "bucket")]
        for name, leaf in self.leaves.items():
            how = ("any", "", "any")
            if leaf.capacity is not None:
                formats = f"{leaf.push_format}, {leaf.pull_format}" if leaf.scheme in ("auto", "zen") else ""
                how = (str(leaf.unit), formats, ", ".join(map(str, leaf.capacity)))
            bucket = "" if leaf.bucket is None else str(leaf.bucket)
            rows.append((name, str(leaf.shape), leaf.dtype, leaf.scheme, *how, bucket))
        return f"plan for {counted(self.n, self.devices_per_host)}\n{table(rows)}"


def plan(
    profile: SparsityProfile,
    cluster: Cluster,
    *,
    schemes: Collection[str] = WORKER_ORDER_SCHEMES,
    bucket_bytes: int = BUCKET_BYTES,
) -> Plan:
    """Plans how each leaf is sent: the scheme, unit and formats that `estimate` finds fastest, and messages that fit.

    Capacities are 3 % above the fullest messages profiled or, if a `Profiler` sampled the leaf, above their estimated
    size: under hashed schemes, Theorem 2's bound. A message that outgrows its capacity is still sent, in the next
    larger size. `auto` in a plan is zen, with steps that go dense if that moves fewer bytes.

    Leaves are sent as one, in a bucket, where that takes no longer: sparse tables with rows of one length as one table,
    and leaves of fewer bytes than the profile's `dense_below` as one dense vector. Joining costs copies, and pulls by
    `others` save bytes at the price of work: both only where the cluster's kernels were measured. Without, tables of
    more bytes are sent by themselves.

    Args:
      profile: from `zen_jax.profile`.
      cluster: the links.
      schemes: schemes to choose from, including "dense_ordered" or "dense"; by default all that sum in worker order, so
        that a plan changes no bit of a result. `zen_jax.schemes.names()` adds "dense" (psum) and "sparcml".
      bucket_bytes: most bytes of leaves that are sent as one.

    Returns:
      A Plan for `zen_jax.synchronize(..., plan=plan)` with the profile's seed.

    Raises:
      ValueError: for a profile with another number of workers, unknown schemes, or schemes without a dense one.

    >>> import jax.numpy as jnp
    >>> from zen_jax.planning.profile import profile
    >>> gradients = {"table": jnp.zeros((4, 1000, 64)).at[:, :20].set(1.0), "bias": jnp.ones((4, 64))}
    >>> print(plan(profile(gradients), Cluster(hosts=4, inter_gbps=0.1)))
    plan for 4 workers
    leaf   shape       dtype    scheme         unit  formats   capacity  bucket
    bias   (64,)       float32  dense_ordered  any             any
    table  (1000, 64)  float32  auto           16    coo, coo  21, 21

    Source: ZEN (OSDI 2025), section 3: the scheme by comparing Equations 1 and 2.
    """
    errors.check_at_least("bucket_bytes", bucket_bytes, 1)
    return plan_of(messages(profile, cluster, candidate_schemes(schemes), bucket_bytes), profile, cluster)


def plan_of(sent: Sequence[Message], profile: SparsityProfile, cluster: Cluster) -> Plan:
    """The plan that sends a profile's leaves in these messages."""
    chosen, fused = {}, itertools.count()
    for message in sent:
        bucket = next(fused) if len(message.leaves) > 1 else None
        leaves, candidate = [profile.leaves[name] for name in message.leaves], message.way.candidate
        for name, leaf, capacity in zip(message.leaves, leaves, _capacities(candidate, leaves), strict=True):
            options = candidate.options | {"capacity": capacity}
            chosen[name] = LeafPlan(leaf.shape, leaf.dtype, **options, bucket=bucket)
    leaves = {name: chosen[name] for name in profile.leaves}
    return Plan(profile.n, leaves, profile.seed, cluster.devices_of_worker(profile.n))


def _capacities(candidate: Candidate, leaves: Sequence[LeafProfile]) -> list[tuple[int, ...] | None]:
    """Each leaf's part of the capacity of a candidate for all, by its non-zero units."""
    if candidate.capacity is None:
        return [None] * len(leaves)
    nearest = [leaf.by_width[min(leaf.by_width, key=lambda width: abs(width - candidate.unit))] for leaf in leaves]
    upto = np.cumsum([unit.unions[-1] for unit in nearest])
    ends = np.rint(np.outer(upto / upto[-1] if upto[-1] else np.ones(len(leaves)), candidate.capacity))
    return [tuple(map(int, part)) for part in np.diff(ends, axis=0, prepend=0)]


def candidate_schemes(schemes: Collection[str]) -> tuple[str, ...]:
    """Each scheme once, those preferred in a tie first; a ValueError if one is unknown or none is dense."""
    if isinstance(schemes, str) or not isinstance(schemes, Collection):
        raise ValueError(f"schemes={schemes!r} is no collection of names. Use for instance ('dense_ordered', 'zen').")
    for scheme in schemes:
        errors.check_choice("schemes", scheme, registry.names())
    if not set(registry.DENSE) & set(schemes):
        raise ValueError(f"schemes={tuple(schemes)!r} has no dense scheme. Add 'dense_ordered' or 'dense'.")
    # Never in the order of a set, which differs between processes.
    return tuple(dict.fromkeys(scheme for scheme in (*WORKER_ORDER_SCHEMES, *registry.names()) if scheme in schemes))
