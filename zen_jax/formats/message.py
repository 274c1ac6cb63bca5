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
    (messages,) = custom_call_or(
        lambda *parts: (pack_reference(*parts, capacity),),
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
      listed: positions in a message: C, or 0.
      capacity: units C in a message, of `width` elements D of `dtype`.

    Returns:
      head int32 [n, H], positions int32 [n, listed] and values [n, C, D].
    """
    n = messages.shape[0]
    return custom_call_or(
        lambda messages: unpack_reference(messages, head_words, listed, capacity, width, dtype),
        "zen_unpack",
        [messages],
        [((n, head_words), jnp.int32), ((n, listed), jnp.int32), ((n, capacity, width), dtype)],
    )


def pack_reference(head: Array, positions: Array, values: Array, counts: Array, capacity: int) -> Array:
    """The pure-JAX lowering of `pack`."""
    filled = jnp.arange(capacity, dtype=jnp.int32)[None, :] < counts[:, None]
    positions = positions[:, :capacity]
    positions = jnp.where(filled[:, : positions.shape[1]], positions, 0)
    values = jnp.where(filled[:, :, None], values[:, :capacity], jnp.zeros((), values.dtype))
    integers = lax.bitcast_convert_type(jnp.concatenate([head, positions], axis=1), jnp.uint32)
    return jnp.concatenate([integers, to_words(values.reshape(len(values), -1))], axis=1)


def unpack_reference(
    messages: Array, head_words: int, listed: int, capacity: int, width: int, dtype: jnp.dtype
) -> tuple[Array, Array, Array]:
    """The pure-JAX lowering of `unpack`."""
    units = head_words + listed
    integers = lax.bitcast_convert_type(messages[:, :units], jnp.int32)
    values = from_words(messages[:, units:], capacity * width, dtype).reshape(-1, capacity, width)
    return integers[:, :head_words], integers[:, head_words:], values
