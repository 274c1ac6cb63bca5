"""Messages: rows of uint32 words, a head, positions and units, that one collective sends to or from n workers."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from zen_jax._typing import Array
from zen_jax.formats.words import from_words, to_words, words_for
from zen_jax.kernels._lowering import custom_call_or


def pack(head: Array, positions: Array, values: Array, counts: Array, capacity: int) -> Array:
    """Packs buckets into messages; what lies beyond a bucket's count becomes zeros.

    Args:
      head: int32 [n, H], which each message begins with.
      positions: int32 [n, R], or [n, 0] for messages without any.
      values: float [n, R, D].
      counts: int32 [n].
      capacity: room C of a message, at most R; further entries are left out.

    Returns:
      uint32 [n, words].
    """
    n, _, width = values.shape
    listed = capacity if positions.shape[1] else 0

    def reference(head: Array, positions: Array, values: Array, counts: Array) -> tuple[Array]:
        filled = jnp.arange(capacity, dtype=jnp.int32)[None, :] < counts[:, None]
        positions = jnp.where(filled[:, :listed], positions[:, :listed], 0)
        values = jnp.where(filled[:, :, None], values[:, :capacity], jnp.zeros((), values.dtype))
        integers = lax.bitcast_convert_type(jnp.concatenate([head, positions], axis=1), jnp.uint32)
        return (jnp.concatenate([integers, to_words(values.reshape(n, -1))], axis=1),)

    (messages,) = custom_call_or(
        reference,
        "zen_pack",
        [head, positions, values, counts],
        [((n, head.shape[1] + listed + words_for(capacity * width, values.dtype)), jnp.uint32)],
        # XLA's all-to-all on CPUs takes the rows of one array apart, and compiles a copy of each for that.
        cpu_rows=True,
        capacity=np.int64(capacity),
    )
    return messages


def unpack(
    messages: Array, head_words: int, listed: int, capacity: int, width: int, dtype: jnp.dtype
) -> tuple[Array, Array, Array]:
    """The inverse of `pack`.

    Args:
      messages: uint32 [n, words].
      head_words: words H of a head.
      listed: how many positions there are: C, or 0.
      capacity: units C in a message, of `width` elements D of `dtype`.

    Returns:
      head int32 [n, H], positions int32 [n, listed] and values [n, C, D].
    """
    n, units = messages.shape[0], head_words + listed

    def reference(messages: Array) -> tuple[Array, Array, Array]:
        integers = lax.bitcast_convert_type(messages[:, :units], jnp.int32)
        values = from_words(messages[:, units:], capacity * width, dtype).reshape(n, capacity, width)
        return integers[:, :head_words], integers[:, head_words:], values

    results = [((n, head_words), jnp.int32), ((n, listed), jnp.int32), ((n, capacity, width), dtype)]
    return custom_call_or(reference, "zen_unpack", [messages], results)
