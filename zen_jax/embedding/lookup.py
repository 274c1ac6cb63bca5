"""Row lookup: from a table, or from the rows of it that `take_rows` set apart for differentiation."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from zen_jax import errors
from zen_jax._search import count_below
from zen_jax._sums import accumulator_dtype
from zen_jax._typing import Array, PyTree
from zen_jax.kernels import unique_ids
from zen_jax.row_sparse import RowSparseGradient, check_rows, rows_at, widened, widened_dtype

COMBINERS = ("sum", "mean")


@partial(jax.tree_util.register_dataclass, data_fields=["ids", "rows", "others"], meta_fields=["num_rows"])
@dataclass(frozen=True, eq=False)
class TakenRows:
    """The rows of a table that a step looks up, each once; they stand for the table in the differentiated function.

    `lookup` and `bag` take it in place of the table, and `taken[ids]` is `lookup(taken, ids)`.

    Attributes:
      ids: int32 [K], ascending; the first entry equal to `num_rows` and all after it are unused.
      rows: float [K, ...D], the table's rows; zeros where unused.
      num_rows: V, the rows of the table.
      others: float [1, 1], NaN in place of all other rows, so that whatever computes with every array of the parameters
        (a norm, a sum of squares) gives NaN, and not a number made of ids and a few rows.
    """

    ids: Array
    rows: Array
    num_rows: int
    others: Array = field(default_factory=lambda: np.full((1, 1), np.nan, np.float32))

    @property
    def shape(self) -> tuple[int, ...]:
        """The table's shape (V, ...D)."""
        return (self.num_rows, *self.rows.shape[1:])

    @property
    def dtype(self) -> jnp.dtype:
        return self.rows.dtype

    def __getitem__(self, ids: Array) -> Array:
        if ids is None or ids is Ellipsis or isinstance(ids, slice | tuple):
            raise ValueError(
                f"table[{ids}]: only rows at ids can be read. Reading more needs the dense gradient. (flax.nnx.Embed "
                "reads the whole table: use zen_jax.embedding.nnx.Embed.)"
            )
        return lookup(self, ids)

    def __jax_array__(self) -> Array:
        raise ValueError(
            f"a table of shape {self.shape} is used as an array, but only rows at ids can be read: table[ids], not "
            "jnp.take(table, ids). Reading more needs the dense gradient."
        )

    def _refuse(self, *_: Any) -> NoReturn:
        self.__jax_array__()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __matmul__ = __rmatmul__ = __pow__ = __neg__ = __abs__ = __len__ = __iter__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> NoReturn:  # of what a table has as an array, and this has not
        raise AttributeError(
            f"table.{name}: the table is used as an array, but only rows at ids can be read: table[ids]. Reading more "
            "needs the dense gradient."
        )

    def gradient(self, rows: Array) -> RowSparseGradient:
        """The table's gradient, from the gradient [K, ...D] of `rows`."""
        return RowSparseGradient(self.ids, rows, self.num_rows)


def is_taken(table: Any) -> bool:
    """Whether a `TakenRows` stands for a table; for `is_leaf` in `jax.tree`."""
    return isinstance(table, TakenRows)


def take_rows(table: Array, ids: PyTree, *, padding_id: int | None = None) -> TakenRows:
    """Sets apart the rows of a table that a step looks up.

    Differentiate with respect to `TakenRows.rows`: JAX's gradient of them is [K, D], with equal ids summed, whereas the
    gradient of the table would be [V, D].

    Args:
      table: float [V, ...D].
      ids: an integer array of any shape or a tree of them: K ids in all, duplicates included.
      padding_id: an id that names no row, or None. It need not lie in [0, V).

    Returns:
      A TakenRows with min(K, V) entries.

    Raises:
      ValueError: for ids that are not integers or lie outside [0, V). Under jit, where ids are not known, looking up
        ids outside gives rows of NaN.

    >>> import jax, jax.numpy as jnp
    >>> table, ids = jnp.arange(10.0)[:, None], jnp.array([7, 3, 7])
    >>> taken = take_rows(table, ids)
    >>> gradient = jax.grad(lambda rows: jnp.sum(lookup(TakenRows(taken.ids, rows, 10), ids) ** 2))(taken.rows)
    >>> taken.ids.tolist(), taken.gradient(gradient).rows[:, 0].tolist()
    ([3, 7, 10], [6.0, 28.0, 0.0])
    """
    table = jnp.asarray(table)
    num_rows = _num_rows(table)
    arrays = jax.tree.leaves(ids)
    for array in arrays:
        check_ids(array, num_rows, padding_id)
    flat = [_valid_or_num_rows(widened(array).reshape(-1), num_rows, padding_id) for array in arrays]
    unique, _, _ = unique_ids(jnp.concatenate([jnp.zeros(0, jnp.int32), *flat]), num_rows)
    unique = unique[:num_rows]  # no more can be distinct and valid
    return TakenRows(unique, rows_at(table, unique), num_rows)


def lookup(table: Array | TakenRows, ids: Array, *, padding_id: int | None = None) -> Array:
    """The rows of a table at the given ids.

    Args:
      table: float [V, ...D], or its TakenRows.
      ids: integers of any shape.
      padding_id: an id that gives zeros and has no gradient, or None. It need not lie in [0, V).

    Returns:
      [*ids.shape, ...D] of the table's dtype.

    Raises:
      ValueError: for ids that are not integers or lie outside [0, V), or a TakenRows whose own ids were cast. Under
        jit, where ids are not known, ids outside give rows of NaN; so do ids that `take_rows` was not given.

    >>> import jax.numpy as jnp
    >>> lookup(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([1, -1, 0]), padding_id=-1).tolist()
    [[3.0, 4.0], [0.0, 0.0], [1.0, 2.0]]
    """
    if not is_taken(table):
        table = jnp.asarray(table)
    elif table.ids.dtype != jnp.int32:
        raise ValueError(
            f"TakenRows has ids of {table.ids.dtype}, but they must be int32: something has cast all arrays of the "
            "parameters, or computed with them. Leave integers out, or cast the rows after lookup."
        )
    num_rows = _num_rows(table)
    check_ids(ids, num_rows, padding_id)
    ids = widened(ids)
    at = _valid_or_num_rows(ids, num_rows, padding_id)
    rows = table.rows if is_taken(table) else table
    if not rows.shape[0]:
        rows = jnp.full_like(rows, jnp.nan, shape=(1, *rows.shape[1:]))  # JAX refuses to read from an empty array
    elif is_taken(table):
        found = count_below(table.ids, at)
        missing = (at == num_rows) | (table.ids.at[found].get(mode="clip") != at)
        at = jnp.where(missing, rows.shape[0], found)
    looked_up = rows.at[at].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
    if padding_id is None:
        return looked_up
    padding = lax.expand_dims(ids == padding_id, range(ids.ndim, looked_up.ndim))
    return jnp.where(padding, jnp.zeros((), looked_up.dtype), looked_up)


def bag(table: Array | TakenRows, ids: Array, *, combiner: str = "sum", padding_id: int | None = None) -> Array:
    """The sum or mean of the rows of each bag of ids.

    Args:
      table: float [V, ...D], or its TakenRows.
      ids: integers [..., L]: bags of L ids; shorter ones are padded with `padding_id`.
      combiner: "sum" or "mean". Means leave out padding; the mean of a bag with nothing else is zero.
      padding_id: as in `lookup`.

    Returns:
      [..., ...D] of the table's dtype; 16-bit floats are summed and divided in float32 and rounded once.

    Raises:
      ValueError: for an unknown combiner, ids that have no last axis, and as in `lookup`.

    >>> import jax.numpy as jnp
    >>> table = jnp.array([[1.0], [2.0], [6.0]])
    >>> bag(table, jnp.array([[0, 2], [1, -1]]), combiner="mean", padding_id=-1).tolist()
    [[3.5], [2.0]]
    """
    errors.check_choice("combiner", combiner, COMBINERS)
    rows = lookup(table, ids, padding_id=padding_id)
    if not jnp.ndim(ids):
        raise ValueError("ids are a scalar, but must have a last axis, the length of a bag. Give an array [..., L].")
    axis = jnp.ndim(ids) - 1
    total = jnp.sum(rows, axis=axis, dtype=accumulator_dtype(rows.dtype))
    if combiner == "mean":
        counted = jnp.ones_like(ids, bool) if padding_id is None else widened(ids) != padding_id
        counts = jnp.maximum(jnp.sum(counted, axis=axis), 1).astype(total.dtype)
        total = total / lax.expand_dims(counts, range(axis, total.ndim))
    return total.astype(rows.dtype)


def looked_up(table: Array | TakenRows, ids: Array, combiner: str | None, padding_id: int | None, dtype: Any) -> Array:
    """The output of either Flax `Embed`: `lookup`, or `bag` with a combiner, in `dtype` unless that is None."""
    if combiner is None:
        rows = lookup(table, ids, padding_id=padding_id)
    else:
        rows = bag(table, ids, combiner=combiner, padding_id=padding_id)
    return rows if dtype is None else rows.astype(dtype)


def check_ids(ids: Any, num_rows: int, padding_id: int | None = None) -> None:
    """Raises a ValueError if ids or padding are not integers, or if ids are known and lie outside [0, num_rows)."""
    errors.check_integers("ids", ids)
    held = jnp.iinfo(widened_dtype(ids))
    if padding_id is not None and not (errors.is_integer(padding_id) and held.min <= padding_id <= held.max):
        raise ValueError(f"padding_id={padding_id!r} must be None or an integer that fits in {held.dtype}, as ids do.")
    if isinstance(ids, jax.core.Tracer):
        return
    ids = np.asarray(ids)
    outside = (ids < 0) | (ids >= num_rows)
    if padding_id is not None:
        outside &= ids != padding_id
    if outside.any():
        where = tuple(int(i) for i in np.argwhere(outside)[0])
        raise ValueError(
            f"ids hold {ids[where]} at {list(where)}, but the table has rows 0 to {num_rows - 1}. "
            "Map unknown ids to a row of their own, or pass the id that stands for no row as padding_id."
        )


def _num_rows(table: Array | TakenRows) -> int:
    """V of a table [V, ...D]."""
    if not table.shape:
        raise ValueError("table is a scalar, but must have rows. Give an array [V, ...D].")
    check_rows(table.shape[0])
    return table.shape[0]


def _valid_or_num_rows(ids: Array, num_rows: int, padding_id: int | None) -> Array:
    """`widened` ids as int32, with `num_rows` in place of padding and of ids outside [0, num_rows)."""
    valid = (ids >= 0) & (ids < num_rows)
    if padding_id is not None:
        valid &= ids != padding_id
    return jnp.where(valid, ids, num_rows).astype(jnp.int32)
