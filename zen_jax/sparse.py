"""`SparseGradient`: the gradient that a sparsifier produces, given by its non-zero elements."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zen_jax import errors, kernels
from zen_jax._typing import Array
from zen_jax.formats.message import locate_entries
from zen_jax.mark import MARK, is_cleared, is_intact, new_mark


# Floats first: optax takes the dtype of a tree's first array for that of all.
@partial(jax.tree_util.register_dataclass, data_fields=["values", "indices", "count", "mark"], meta_fields=["shape"])
@dataclass(frozen=True)
class SparseGradient:
    """A gradient given by its non-zero elements, as `zen_jax.top_k(density, compact=True)` passes it to `synchronize`.

    A pytree, and one leaf to `zen_jax.synchronize` and `zen_jax.all_reduce`, which return the dense reduced gradient.
    No other transformation supports it: put none in between.

    Attributes:
      indices: int32 [K], ascending and distinct, into the flattened gradient; unused from the count on. An index
        beyond its end is ignored. Negative or unsorted indices (`lax.top_k` sorts by size) make the gradient NaN.
      values: float [K], the elements there, none of them zero.
      count: int32 [], how many elements there were to list. Those beyond K are not listed: see `zen_jax.top_k`.
      shape: the gradient's shape.
      mark: shows whether something has computed with the indices; do not pass it.

    >>> import jax.numpy as jnp
    >>> gradient = SparseGradient(jnp.array([1, 3, 0]), jnp.array([2.0, 4.0, 9.0]), jnp.int32(2), (2, 2))
    >>> gradient.to_dense().tolist(), gradient.size
    ([[0.0, 2.0], [0.0, 4.0]], 4)
    """

    indices: Array
    values: Array
    count: Array
    shape: tuple[int, ...]
    mark: Array | None = None

    def __post_init__(self) -> None:
        if all(map(errors.is_integer, self.shape)):
            object.__setattr__(self, "shape", tuple(map(int, self.shape)))  # of NumPy's, a product may overflow
        if self.mark is None and hasattr(self.indices, "shape"):
            object.__setattr__(self, "mark", new_mark(self.indices))

    @property
    def dtype(self) -> jnp.dtype:
        return self.values.dtype

    @property
    def room(self) -> int:
        """K: how many elements the gradient can hold."""
        return self.indices.size

    @property
    def size(self) -> int:
        """Number of elements in the gradient."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the gradient, zeros included."""
        return self.size * self.dtype.itemsize

    def reshape(self, *shape: int) -> "SparseGradient":
        """The same elements in a gradient of another shape; one dimension may be -1."""
        known = prod(length for length in shape if length != -1)
        reshaped = tuple(self.size // known if length == -1 and known else length for length in shape)
        if prod(reshaped) != self.size:
            raise ValueError(f"a gradient of {self.size} elements, shape {self.shape}, cannot be reshaped to {shape}.")
        return replace(self, shape=reshaped)

    def __radd__(self, other: Any) -> Any:
        raise ValueError(
            f"a SparseGradient of shape {self.shape} cannot be added to an array. Put zen_jax.synchronize right after "
            "the sparsifier, or leave out compact=True."
        )

    def to_dense(self) -> Array:
        """The gradient of `shape`, zeros included."""
        gradient = nan_if_altered(self)
        if not self.room:
            return jnp.zeros_like(self.values, shape=self.shape)
        listed = gradient.indices[None], gradient.values[None], gradient.count[None]
        return kernels.aggregate(*listed, self.size).reshape(self.shape)


def concatenated(gradients: Sequence[SparseGradient]) -> SparseGradient:
    """Gradients of one dtype, flattened, one after another; altered ones as in `nan_if_altered`.

    >>> first = SparseGradient(jnp.array([1, 0]), jnp.array([2.0, 0.0]), jnp.int32(1), (2, 2))
    >>> both = concatenated([first, SparseGradient(jnp.array([0, 2]), jnp.array([3.0, 4.0]), jnp.int32(2), (3,))])
    >>> both.to_dense().tolist()
    [0.0, 2.0, 0.0, 0.0, 3.0, 0.0, 4.0]
    """
    gradients = [nan_if_altered(gradient) for gradient in gradients]
    rooms = np.asarray([gradient.room for gradient in gradients], np.int32)
    starts = np.cumsum(rooms, dtype=np.int32) - rooms
    offsets = np.cumsum([0, *(gradient.size for gradient in gradients)])
    counts = jnp.stack([gradient.count for gradient in gradients])
    exists, which, place = locate_entries(counts, int(rooms.sum()))
    entry = jnp.where(exists, jnp.asarray(starts)[which] + place, 0)
    indices = [gradient.indices + np.int32(offset) for gradient, offset in zip(gradients, offsets, strict=False)]
    return SparseGradient(
        jnp.concatenate(indices)[entry],
        jnp.concatenate([gradient.values for gradient in gradients])[entry],
        jnp.sum(counts, dtype=jnp.int32),
        (int(offsets[-1]),),
    )


def to_coo(units: Array | SparseGradient, room: int) -> tuple[Array, Array, Array]:
    """The first `room` non-zero units of [U, m], or of a gradient of shape [U, 1], in one bucket."""
    if not isinstance(units, SparseGradient):
        return kernels.partition(units, 1, room)
    units = nan_if_altered(units)
    return units.indices[None, :room], units.values[None, :room, None], units.count[None]


def nan_if_altered(gradient: SparseGradient) -> SparseGradient:
    """The gradient; if its mark has changed, or indices are negative or do not ascend, only a NaN as first element.

    Its count is that of the elements listed, without those beyond its end. Zeros alone are a zero gradient.

    Raises a ValueError if a transformation that does not know sparse leaves has changed the indices' dtype. One that
    computed with them but kept it cannot be seen before the step runs, and must not lose what was sent.
    """
    if not jnp.issubdtype(gradient.indices.dtype, jnp.integer):
        raise ValueError(
            f"SparseGradient has indices of {gradient.indices.dtype}, but they must be int32: a transformation before "
            "this one has computed with them. Put the sparsifier right before zen_jax.synchronize."
        )
    errors.check_dtype("indices of a SparseGradient", gradient.indices.dtype, jnp.int32)
    indices, values = jnp.asarray(gradient.indices), jnp.asarray(gradient.values)
    count = jnp.asarray(gradient.count, jnp.int32)  # a sum is int64 under x64
    used = jnp.arange(indices.size, dtype=jnp.int32) < count
    listed = jnp.sum(used & (indices < min(gradient.size, errors.MAX_UNITS)), dtype=jnp.int32)
    mark = jnp.where(is_cleared(gradient.mark, indices, values), MARK, gradient.mark)
    intact = is_intact(mark, indices, used)
    return replace(
        gradient,
        indices=indices.at[:1].set(jnp.where(intact, indices[:1], 0)),
        values=values.at[:1].set(jnp.where(intact, values[:1], jnp.nan)),
        count=jnp.where(intact, listed, min(1, gradient.size, gradient.room)),
        mark=mark,
    )
