"""How the leaves of a gradient tree are sent: each by itself, or several as one."""

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from zen_jax import _axis, errors
from zen_jax._typing import Array, AxisName, Unit
from zen_jax.buckets import TableKind, buckets, small_tables, table_kind
from zen_jax.info import Info
from zen_jax.planning.plan import Plan
from zen_jax.row_sparse import RowSparseGradient
from zen_jax.schemes import registry
from zen_jax.sparse import SparseGradient, concatenated
from zen_jax.trees import Leaf, densified


class Message(NamedTuple):
    """Leaves that are sent as one, or one by itself, and keyword arguments of `zen_jax.all_reduce` for them."""

    leaves: list[str]
    options: dict[str, Any]


def planned_messages(plan: Plan, leaves: Mapping[str, Leaf]) -> list[Message]:
    """Buckets as a plan has them, of which the capacities of all leaves that are there add up."""
    found: dict[Hashable, list[str]] = {}
    for name, leaf in leaves.items():
        bucket = plan.leaves[name].bucket
        found.setdefault(name if bucket is None else (bucket, _varying(leaf)), []).append(name)

    def options(names: list[str]) -> dict[str, Any]:
        planned = [plan.leaves[name] for name in names]
        if planned[0].capacity is None:
            return planned[0].options
        capacities = zip(*(leaf.capacity for leaf in planned), strict=True)
        return planned[0].options | {"capacity": tuple(max(1, sum(of_exchange)) for of_exchange in capacities)}

    return [Message(names, options(names)) for names in found.values()]


def unplanned_messages(
    leaves: Mapping[str, Leaf], *, scheme: str, unit: Unit, bucket_bytes: int, dense_below: int
) -> list[Message]:
    """Large arrays by themselves, large lists of elements and small leaves in buckets.

    Leaves of fewer than `dense_below` bytes are small. Under "auto", which sends dense what is not sparse, those that
    make up a table of at least as many are sent as this table; all others are sent dense.
    """
    small = [name for name, leaf in leaves.items() if leaf.nbytes < dense_below]
    own, dense = {"scheme": scheme, "unit": unit}, {"scheme": "dense_ordered", "unit": 1}
    if scheme in registry.DENSE:
        dense["scheme"] = scheme
    vectors = {name: ((leaf.dtype, _varying(leaf)), leaf.nbytes) for name, leaf in leaves.items()}
    listed = [name for name, leaf in leaves.items() if isinstance(leaf, SparseGradient) and name not in small]
    lists = buckets({name: vectors[name] for name in listed}, bucket_bytes) if is_elements(unit) else []
    candidates = {name: (_table_kind(leaves[name], unit), leaves[name].nbytes) for name in small}
    tables = small_tables(candidates, dense_below, bucket_bytes) if scheme == "auto" else []
    in_tables = set().union(*tables)
    fused = {name: vectors[name] for name in small if name not in in_tables}
    found = [Message(bucket, own) for bucket in lists + tables]
    found += [Message(bucket, dense) for bucket in buckets(fused, bucket_bytes)]
    joined = {name for message in found for name in message.leaves}
    # A number of columns is meant for tables: vectors have none to put together.
    vector = own | {"unit": 1} if errors.is_integer(unit) else own
    alone = (name for name in leaves if name not in joined)
    return found + [Message([name], own if len(leaves[name].shape) > 1 else vector) for name in alone]


def row_sparse_messages(tables: Mapping[str, RowSparseGradient], axes: AxisName, bucket_bytes: int) -> list[list[str]]:
    """The row-sparse gradients that are sent as one: those of one dtype and row shape, as far as int32 numbers rows."""
    if not tables:
        return []  # several axes have a size only where all devices can be workers
    n = _axis.axis_size(axes)
    kinds = {name: ((leaf.dtype, leaf.shape[1:], _varying(leaf)), leaf.rows.nbytes) for name, leaf in tables.items()}
    rows = {name: (None, n * -(-leaf.num_rows // n)) for name, leaf in tables.items()}  # virtual, as in schemes.tables
    return [
        group
        for bucket in buckets(kinds, bucket_bytes)
        for group in buckets({name: rows[name] for name in bucket}, errors.MAX_UNITS)
    ]


def reduce_as_one(
    reduce: Callable[..., tuple[Array, Info]], parts: list[Leaf], unit: Unit, **options: Any
) -> tuple[list[Array], Info]:
    """Reduces a message's leaves as one table: they have rows of one length, or the unit divides all of them."""
    if len(parts) == 1:
        array, info = reduce(parts[0], unit=unit, **options)
        return [array], info
    if all(isinstance(part, SparseGradient) for part in parts) and is_elements(unit):
        table, info = reduce(concatenated(parts), unit=unit, **options)
    else:
        columns = unit if errors.is_integer(unit) else math.prod(parts[0].shape[1:])
        # As rows: XLA joins some lists of vectors a hundred times as slowly on CPUs.
        flat = jnp.concatenate([densified(part).reshape(1, -1) for part in parts], axis=1)
        table, info = reduce(flat.reshape(-1, columns), unit=unit, **options)
    found = jnp.split(table.reshape(-1), np.cumsum([part.size for part in parts])[:-1])
    return [each.reshape(part.shape) for each, part in zip(found, parts, strict=True)], info


def is_elements(unit: Unit) -> bool:
    """Whether a unit is a single element where gradients list elements."""
    return unit in ("auto", "element", 1)


def _table_kind(leaf: Leaf, unit: Unit) -> tuple[TableKind, Hashable] | None:
    kind = table_kind(leaf.shape, leaf.dtype)
    divided = not errors.is_integer(unit) or math.prod(leaf.shape[1:]) % unit == 0
    return (kind, _varying(leaf)) if kind and divided else None


def _varying(leaf: Leaf) -> tuple[str, ...]:
    """The axes along which a leaf is known to vary.

    Shards of a model axis are sent separately: in one array with them, leaves that are equal along that axis would no
    longer be known to be.
    """
    return tuple(sorted({str(axis) for array in jax.tree.leaves(leaf) for axis in _axis.varying(array)}))
