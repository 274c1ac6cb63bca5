"""How the leaves of a gradient tree are sent: each by itself, or several as one."""

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from zen_jax import _axis
from zen_jax._typing import AxisName, Unit
from zen_jax.errors import MAX_UNITS, is_integer
from zen_jax.planning.buckets import TableKind, buckets, small_tables, table_kind
from zen_jax.planning.plan import LeafPlan
from zen_jax.row_sparse import RowSparseGradient
from zen_jax.schemes import registry
from zen_jax.schemes.tables import together
from zen_jax.sparse import is_sparse
from zen_jax.trees import Leaf, values_of


class Unplanned(NamedTuple):
    """How a leaf is sent without a plan: what reducing it needs of a `LeafPlan`."""

    options: dict[str, Any]
    bucket: int | None = None


def unplanned_routes(
    leaves: Mapping[str, Leaf],
    small: Collection[str],
    *,
    scheme: str,
    unit: Unit,
    bucket_bytes: int,
    dense_below: int,
) -> dict[str, Unplanned]:
    """Routes without a plan: large arrays by themselves, large lists of elements and small leaves in buckets.

    Under "auto", which sends dense what is not sparse, small leaves that make up a table of at least `dense_below`
    bytes are sent as this table. All other small leaves are sent dense.
    """
    own, dense = {"scheme": scheme, "unit": unit}, {"scheme": "dense_ordered", "unit": 1}
    if scheme in registry.DENSE:
        dense["scheme"] = scheme
    vectors = {name: ((leaf.dtype, _varying(leaf)), leaf.nbytes) for name, leaf in leaves.items()}
    listed = {name: vectors[name] for name, leaf in leaves.items() if is_sparse(leaf) and name not in small}
    lists = [
        bucket for bucket in buckets(listed, min(bucket_bytes, MAX_UNITS)) if len(bucket) > 1 and is_elements(unit)
    ]
    candidates = {name: (_table_kind(leaves[name], unit), leaves[name].nbytes) for name in small}
    tables = small_tables(candidates, dense_below, bucket_bytes) if scheme == "auto" else []
    fused = {name: vectors[name] for name in small if name not in set().union(*tables)}
    found = [(own, bucket) for bucket in lists + tables] + [(dense, bucket) for bucket in buckets(fused, bucket_bytes)]
    alone = {name: Unplanned(own) for name in leaves}
    return alone | {name: Unplanned(options, i) for i, (options, bucket) in enumerate(found) for name in bucket}


def is_elements(unit: Unit) -> bool:
    """Whether a unit is a single element where gradients list elements."""
    return unit in ("auto", "element", 1)


def _table_kind(leaf: Leaf, unit: Unit) -> tuple[TableKind, Hashable] | None:
    kind = table_kind(leaf.shape, leaf.dtype)
    divided = not is_integer(unit) or math.prod(leaf.shape[1:]) % unit == 0
    return (kind, _varying(leaf)) if kind and divided else None


def _varying(leaf: Leaf) -> tuple[str, ...]:
    """The axes along which a leaf is known to vary.

    Shards of a model axis are sent separately: in one array with them, leaves that are equal along that axis would no
    longer be known to be.
    """
    return tuple(sorted(map(str, _axis.varying(values_of(leaf)))))


def by_bucket(routes: Mapping[str, LeafPlan | Unplanned], leaves: Mapping[str, Leaf]) -> list[list[str]]:
    """The leaves that are sent as one, for each bucket in order."""
    found: dict[tuple[int, tuple[str, ...]], list[str]] = {}
    for name, leaf in leaves.items():
        if routes[name].bucket is not None:
            found.setdefault((routes[name].bucket, _varying(leaf)), []).append(name)
    return [found[number] for number in sorted(found)]


def options_of(routes: Sequence[LeafPlan | Unplanned]) -> dict[str, Any]:
    """Keyword arguments of `zen_jax.all_reduce` for leaves of a bucket, sent as one: their capacities add up."""
    options = dict(routes[0].options)
    if options.get("capacity") is not None:
        capacities = zip(*(route.options["capacity"] for route in routes), strict=True)
        options["capacity"] = tuple(max(1, sum(of_exchange)) for of_exchange in capacities)
    return options


def by_exchange(tables: Mapping[str, RowSparseGradient], axes: AxisName, bucket_bytes: int) -> list[list[str]]:
    """The row-sparse gradients that are sent as one, for each exchange in order."""
    if not tables:
        return []  # several axes have a size only where all devices can be workers
    names = list(tables)
    groups = together(list(tables.values()), _axis.axis_size(axes), bucket_bytes)
    return [[names[i] for i in group] for group in groups]
