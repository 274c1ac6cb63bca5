"""Parts of messages. A loop over them is free of what XLA for CPUs would compile anew for each size of message."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax

from zen_jax._lowering import custom_call_or
from zen_jax._typing import Array


def room(like: Array, shape: tuple[int, int]) -> Array:
    """Rows of like's dtype for parts to come, unspecified until then."""
    return custom_call_or(lambda like: (jnp.zeros(shape, like.dtype),), "zen_room", [like], [(shape, like.dtype)])[0]


def take(rows: Sequence[Array], start: Array, columns: int) -> Array:
    """The elements of rows [L] from `start` int32 [] on, or the last ones: [n, columns]."""
    (part,) = custom_call_or(
        lambda start, *rows: (lax.dynamic_slice_in_dim(jnp.stack(rows), start, columns, axis=1),),
        "zen_take_part",
        [start, *rows],
        [((len(rows), columns), rows[0].dtype)],
        cpu_rows=True,
    )
    return part


def place(received: Array, start: Array, part: Sequence[Array]) -> tuple[Array, Array, Array]:
    """The inverse of `take`: places rows of a part in `received` [n, L], whose buffer is reused.

    Returns:
      received; where the next part starts, int32 []; and whether there is one, bool [].
    """
    columns, size = len(part[0]), received.shape[1]

    def reference(received: Array, start: Array, *part: Array) -> tuple[Array, Array, Array]:
        received = lax.dynamic_update_slice_in_dim(received, jnp.stack(part), start, axis=1)
        return received, start + columns, start < size - columns

    results = [(received.shape, received.dtype), ((), jnp.int32), ((), jnp.bool)]
    return custom_call_or(reference, "zen_place_part", [received, start, *part], results, aliases={0: 0})
