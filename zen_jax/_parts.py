"""Parts of messages: a loop that takes, sends and places them needs nothing compiled for each size of message."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax

from zen_jax._lowering import custom_call_or
from zen_jax._typing import Array


def room(like: Array, shape: tuple[int, int]) -> Array:
    """Rows of the dtype of a scalar, unspecified until parts are placed there."""
    (rows,) = custom_call_or(lambda like: (jnp.zeros(shape, like.dtype),), "zen_room", [like], [(shape, like.dtype)])
    return rows


def take(rows: Sequence[Array], start: Array, columns: int) -> Array:
    """A part of each row: `columns` elements from `start` on, or the last ones if fewer are left.

    Args:
      rows: n arrays [L] of one dtype.
      start: int32 [].
      columns: 1 to L.

    Returns:
      [n, columns].
    """
    (part,) = custom_call_or(
        lambda start, *rows: (take_reference(rows, start, columns),),
        "zen_take_part",
        [start, *rows],
        [((len(rows), columns), rows[0].dtype)],
        cpu_rows=True,
    )
    return part


def place(received: Array, start: Array, part: Sequence[Array]) -> tuple[Array, Array, Array]:
    """The inverse of `take`.

    Args:
      received: [n, L]. Its buffer is reused.
      start: int32 [].
      part: n arrays [columns].

    Returns:
      received, with the part; where the next one starts, int32 []; and whether there is one, bool [].
    """
    return custom_call_or(
        lambda received, start, *part: place_reference(received, start, part),
        "zen_place_part",
        [received, start, *part],
        [(received.shape, received.dtype), ((), jnp.int32), ((), jnp.bool)],
        aliases={0: 0},
    )


def take_reference(rows: Sequence[Array], start: Array, columns: int) -> Array:
    """The pure-JAX lowering of `take`."""
    return lax.dynamic_slice_in_dim(jnp.stack(rows), start, columns, axis=1)


def place_reference(received: Array, start: Array, part: Sequence[Array]) -> tuple[Array, Array, Array]:
    """The pure-JAX lowering of `place`."""
    columns, size = part[0].size, received.shape[1]
    placed = lax.dynamic_update_slice_in_dim(received, jnp.stack(part), start, axis=1)
    return placed, start + columns, start < size - columns
