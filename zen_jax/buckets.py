"""Groups leaves into buckets, each of which is sent as one."""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from zen_jax import errors

DENSE_BELOW = 1 << 20  # bytes under which a leaf costs latency rather than bandwidth
BUCKET_BYTES = 128 << 20


def buckets(leaves: Mapping[str, tuple[Hashable, int]], bucket_bytes: int) -> list[list[str]]:
    """Puts leaves of one kind, such as a dtype, into buckets of at most `bucket_bytes` where possible.

    Args:
      leaves: the kind and bytes of each leaf, by name.
      bucket_bytes: most bytes in a bucket. No more than 2**31 - 1 count: int32 then numbers the elements of all.

    Returns:
      Names of the leaves in each bucket, in order.

    >>> buckets({"a": ("f32", 40), "b": ("f16", 10), "c": ("f32", 50), "d": ("f32", 20)}, 100)
    [['a', 'c'], ['b'], ['d']]
    """
    found: list[list[str]] = []
    last: dict[Hashable, list[str]] = {}
    used: dict[Hashable, int] = {}
    for name, (kind, nbytes) in leaves.items():
        if kind not in last or used[kind] + nbytes > min(bucket_bytes, errors.MAX_UNITS):
            last[kind], used[kind] = [], 0
            found.append(last[kind])
        last[kind].append(name)
        used[kind] += nbytes
    return found


class TableKind(NamedTuple):
    """What leaves share that can be sent as one table, the rows of one after those of another."""

    dtype: str
    columns: int


def table_kind(shape: Sequence[int], dtype: Any) -> TableKind | None:
    """The kind of a leaf with at least two dimensions, whose rows are the slices along the first; None for others.

    >>> table_kind((1000, 8, 2), "float32"), table_kind((16,), "float32")
    (TableKind(dtype='float32', columns=16), None)
    """
    return TableKind(str(dtype), math.prod(shape[1:])) if len(shape) > 1 else None


def small_tables(
    leaves: Mapping[str, tuple[Hashable, int]], dense_below: int, bucket_bytes: int = BUCKET_BYTES
) -> list[list[str]]:
    """Which small leaves to send as one table: those of one kind that together reach `dense_below` bytes.

    Args:
      leaves: the kind and bytes of each leaf, by name; None for the kind of one that fits no table.
      dense_below: bytes under which even their table is sent dense.
      bucket_bytes: as in `buckets`.

    Returns:
      Names of the leaves in each table, in order.

    >>> wide, narrow = TableKind("f32", 64), TableKind("f32", 16)
    >>> small_tables({"a": (wide, 40), "b": (None, 90), "c": (narrow, 10), "d": (wide, 50)}, dense_below=80)
    [['a', 'd']]
    """
    tables = {name: leaf for name, leaf in leaves.items() if leaf[0] is not None}
    found = buckets(tables, bucket_bytes)
    return [bucket for bucket in found if sum(tables[name][1] for name in bucket) >= dense_below]
