"""`RowSparseGradient`: the gradient of a table, given by the rows that a batch touched."""

from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zen_jax import errors
from zen_jax._sums import accumulator_dtype
from zen_jax._typing import Array
from zen_jax.kernels import unique_ids
from zen_jax.mark import MARK, is_cleared, is_intact, new_mark


# Floats first: optax takes the dtype of a tree's first array for that of all.
@partial(jax.tree_util.register_dataclass, data_fields=["rows", "ids", "mark"], meta_fields=["num_rows"])
@dataclass(frozen=True)
class RowSparseGradient:
    """The gradient of a table [V, D], given by the rows that were looked up; all others are zero.

    A pytree, and one leaf to `zen_jax.synchronize` and the optimizers of `zen_jax.embedding`. Adding it to a table, as
    `optax.apply_updates` does, writes only the rows that it names.

    Attributes:
      ids: int32 [K], the touched rows, ascending and distinct; entries from the first `num_rows` on are unused.
      rows: float [K, ...D], the gradient of each; zeros where unused.
      num_rows: V, the number of rows in the table.
      mark: shows whether something has computed with the ids; do not pass it.

    >>> import jax.numpy as jnp
    >>> gradient = RowSparseGradient.from_lookups(jnp.array([5, 2, 5]), jnp.array([[1.0], [2.0], [3.0]]), num_rows=9)
    >>> gradient.ids.tolist(), gradient.rows[:, 0].tolist()
    ([2, 5, 9], [2.0, 4.0, 0.0])
    >>> gradient.to_dense()[:, 0].tolist()
    [0.0, 0.0, 2.0, 0.0, 0.0, 4.0, 0.0, 0.0, 0.0]
    """

    ids: Array
    rows: Array
    num_rows: int
    mark: Array | None = None
    __array_ufunc__ = None  # makes a NumPy table leave the addition to this class

    def __post_init__(self) -> None:
        if errors.is_integer(self.num_rows):
            object.__setattr__(self, "num_rows", int(self.num_rows))  # NumPy's would overflow, or widen the ids
        if self.mark is None and hasattr(self.ids, "shape"):
            object.__setattr__(self, "mark", new_mark(self.ids))

    @classmethod
    def from_lookups(cls, ids: Array, rows: Array, num_rows: int) -> "RowSparseGradient":
        """Merges the gradients of K lookups: int [...] and float [..., ...D]. Ids outside [0, V) are left out.

        The result has min(K, V) entries. Rows of equal ids are summed, 16-bit floats in float32. Raises a ValueError
        for ids that are not integers, if there is not one row for each id, or for a table of 2**31 or more rows.
        """
        errors.check_integers("ids", ids)
        check_rows(num_rows)
        ids, rows = widened(ids), jnp.asarray(rows)
        if rows.shape[: ids.ndim] != ids.shape:
            raise ValueError(
                f"rows have shape {rows.shape}, but ids have shape {ids.shape}. Give a row [...D] for each id."
            )
        ids, rows = ids.reshape(-1), rows.reshape(ids.size, *rows.shape[ids.ndim :])
        valid = (ids >= 0) & (ids < num_rows)
        unique, slots, _ = unique_ids(jnp.where(valid, ids, num_rows).astype(jnp.int32), num_rows)
        room = min(ids.size, num_rows)  # no more can be distinct and valid
        total = jnp.zeros_like(rows, accumulator_dtype(rows.dtype), shape=(room, *rows.shape[1:]))
        total = total.at[jnp.where(valid, slots, room)].add(rows.astype(total.dtype), mode="drop")
        return cls(unique[:room], total.astype(rows.dtype), num_rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """The table's shape (V, ...D)."""
        return (self.num_rows, *self.rows.shape[1:])

    @property
    def dtype(self) -> jnp.dtype:
        return self.rows.dtype

    @property
    def size(self) -> int:
        """Number of elements in the table."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return self.size * self.dtype.itemsize

    def to_dense(self) -> Array:
        """The gradient [V, ...D], zeros included."""
        return jnp.zeros_like(self.rows, shape=self.shape) + self

    def take(self, table: Array) -> Array:
        """[K, ...D]: the table's rows at `ids`; zeros where unused."""
        table = jnp.asarray(table)
        self._check(table)
        return rows_at(table, self.ids)

    def put(self, table: Array, rows: Array) -> Array:
        """The table with its rows at `ids` replaced by `rows` [K, ...D]; updated in place if the table is donated."""
        table = jnp.asarray(table)
        return self._at(table).set(rows.astype(table.dtype), **_UNIQUE)

    def __radd__(self, table: Array) -> Array:
        table, gradient = jnp.asarray(table), nan_if_altered(self)
        if gradient.dtype != table.dtype:  # one rounding, as of a dense update
            with jax.numpy_dtype_promotion("standard"):
                return gradient.put(table, gradient.take(table) + gradient.rows)
        return gradient._at(table).add(gradient.rows, **_UNIQUE)

    def _check(self, table: Array) -> None:
        check_intact(self)
        if table.shape != self.shape:
            raise ValueError(
                f"RowSparseGradient is for a table of shape {self.shape}, but the table has shape {table.shape}."
            )

    def _at(self, table: Array) -> Any:
        self._check(table)
        # Unused entries get distinct ids past the end, so that every index is unique.
        if self.num_rows + self.ids.size - 1 > errors.MAX_UNITS:
            raise ValueError(
                f"a table of {self.num_rows} rows leaves no room for {self.ids.size} unused ids past its end, which "
                "are int32 too. Split the table."
            )
        entry = jnp.arange(self.ids.size, dtype=jnp.int32)
        return table.at[jnp.where(self.ids < self.num_rows, self.ids, self.num_rows + entry)]


_UNIQUE: dict[str, Any] = {
    "mode": "drop",
    "indices_are_sorted": True,
    "unique_indices": True,
    "wrap_negative_indices": False,
}


def is_row_sparse(leaf: Any) -> bool:
    """Whether a tree node is a `RowSparseGradient`, for use as `is_leaf` in `jax.tree`."""
    return isinstance(leaf, RowSparseGradient)


def check_intact(gradient: RowSparseGradient) -> None:
    """Raises a ValueError if a transformation has changed the ids' dtype, or if there is not one row for each id."""
    if not jnp.issubdtype(gradient.ids.dtype, jnp.integer):
        raise ValueError(
            f"RowSparseGradient has ids of {gradient.ids.dtype}, but they must be int32: something has computed with "
            "them. A pmean or psum must go, as zen_jax.synchronize reduces; an optax transformation belongs after it, "
            "wrapped in zen_jax.embedding.lazy, which passes it only the rows."
        )
    errors.check_dtype("ids of a RowSparseGradient", gradient.ids.dtype, jnp.int32)
    if gradient.ids.shape != gradient.rows.shape[:1]:
        raise ValueError(
            f"RowSparseGradient has ids of shape {gradient.ids.shape}, but rows of shape {gradient.rows.shape}. Give "
            "ids [K] and rows [K, ...D], or merge lookups with from_lookups."
        )


def nan_if_altered(gradient: RowSparseGradient) -> RowSparseGradient:
    """The gradient, or one of NaN if its mark has changed or its ids do not ascend. Zeros alone are a zero gradient.

    A transformation that does not know row-sparse leaves may compute with the ids and keep their dtype, as
    `optax.scale_by_schedule` does. This cannot be seen before the step runs, and must not train the wrong rows.
    """
    check_intact(gradient)
    cleared = is_cleared(gradient.mark, gradient.ids, gradient.rows)
    ids, mark = jnp.where(cleared, gradient.num_rows, gradient.ids), jnp.where(cleared, MARK, gradient.mark)
    intact = is_intact(mark, ids, used=ids < gradient.num_rows)
    return replace(
        gradient,
        ids=jnp.where(intact, ids, jnp.arange(ids.size, dtype=jnp.int32)),
        rows=jnp.where(intact, gradient.rows, jnp.nan),
        mark=mark,
    )


def rows_at(table: Array, ids: Array) -> Array:
    """[K, ...D]: a table's rows at ascending ids; zeros for ids past its end."""
    if not table.shape[0]:  # of which JAX gathers nothing
        return jnp.zeros_like(table, shape=(ids.size, *table.shape[1:]))
    return table.at[ids].get(mode="fill", fill_value=0, indices_are_sorted=True, wrap_negative_indices=False)


def check_rows(num_rows: int) -> None:
    """Raises a ValueError unless int32 holds an id for every row of a table, plus one more id."""
    errors.check_at_least("num_rows", num_rows, 0)
    if num_rows > errors.MAX_UNITS:
        raise ValueError(f"a table of {num_rows} rows has more than the 2**31 - 1 that ids can name. Split it.")


def widened(ids: Any) -> Array:
    """Ids in `widened_dtype`; those that it cannot hold become its extremes, which name no row."""
    dtype = widened_dtype(ids)
    held = jnp.iinfo(dtype)
    return jnp.asarray(np.clip(ids, held.min, held.max) if isinstance(ids, np.ndarray | np.generic) else ids, dtype)


def widened_dtype(ids: Any) -> jnp.dtype:
    """At least 32 bits: to compare narrower ids with a number of rows, JAX would truncate it to their dtype."""
    dtype = jnp.result_type(ids)
    return dtype if dtype.itemsize >= 4 else jnp.dtype(jnp.int32)
