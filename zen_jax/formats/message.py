"""Messages: rows of uint32 words (head, positions, units) that one collective sends to or from n workers."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from zen_jax._lowering import custom_call_or
from zen_jax._search import count_below
from zen_jax._typing import Array
from zen_jax.formats.words import from_words, to_words, words_for


def pack(head: Array, positions: Array, values: Array, counts: Array, capacity: int, *, beyond: int = 0) -> Array:
    """Packs buckets into messages; entries beyond a bucket's count are left out.

    Args:
      head: int32 [n, H], the start of each message.
      positions: int32 [n, R]; or [1, R], the buckets one after another in one list; or [n, 0] for messages without any.
      values: float [n, R, D], or [1, R, D].
      counts: int32 [n].
      capacity: room C of a message, at most R; further entries are left out.
      beyond: the position written for entries beyond the count; their units are zeros.

    Returns:
      uint32 [n, words].
    """
    width, dtype = values.shape[2], values.dtype
    n, head_words = head.shape
    listed = capacity if positions.shape[1] else 0
    (messages,) = custom_call_or(
        lambda *parts: (pack_reference(*parts, capacity, beyond=beyond),),
        "zen_pack",
        [head, positions, values, counts],
        [((n, head_words + listed + words_for(capacity * width, dtype)), jnp.uint32)],
        # XLA's all-to-all on CPUs splits one array into its rows, and compiles a copy of each for that.
        cpu_rows=True,
        capacity=np.int64(capacity),
        beyond=np.int32(beyond),
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


def unpack_joined(
    messages: Array, counts: Array, room: int, head_words: int, capacity: int, width: int, dtype: jnp.dtype
) -> tuple[Array, Array]:
    """Unpacks messages with positions into one list: each one's entries up to its count, one after another.

    Args:
      messages: uint32 [n, words].
      counts: int32 [n], at most C.
      room: entries R of the list, at least the sum of the counts.
      head_words, capacity, width, dtype: as in `unpack`.

    Returns:
      positions int32 [R] and values [R, D], unspecified from the sum of the counts on.
    """
    return custom_call_or(
        lambda *operands: unpack_joined_reference(*operands, room, head_words, capacity, width, dtype),
        "zen_unpack_joined",
        [messages, counts],
        [((room,), jnp.int32), ((room, width), dtype)],
        capacity=np.int64(capacity),
    )


def locate_entries(counts: Array, room: int) -> tuple[Array, Array, Array]:
    """Which bucket each of `room` entries belongs to when n buckets follow one another.

    Returns:
      Whether the entry exists, its bucket and its place there; both are 0 for entries that do not exist.
    """
    end = jnp.cumsum(counts, dtype=jnp.int32)
    entry = jnp.arange(room, dtype=jnp.int32)
    exists = entry < end[-1]
    bucket = jnp.where(exists, count_below(end, entry + 1), 0)
    return exists, bucket, jnp.where(exists, entry - _at(end - counts, bucket), 0)


def pack_reference(
    head: Array, positions: Array, values: Array, counts: Array, capacity: int, *, beyond: int = 0
) -> Array:
    """The pure-JAX lowering of `pack`."""
    places = jnp.arange(capacity, dtype=jnp.int32)[None, :]
    filled = places < counts[:, None]
    if values.shape[0] == counts.size:
        positions, values = positions[:, :capacity], values[:, :capacity]
    else:
        begin = jnp.cumsum(counts, dtype=jnp.int32) - counts
        entry = jnp.minimum(begin[:, None] + places, values.shape[1] - 1)
        positions, values = _at(positions[0], entry), _at(values[0], entry)
    positions = jnp.where(filled[:, : positions.shape[1]], positions, beyond)
    values = jnp.where(filled[:, :, None], values, jnp.zeros((), values.dtype))
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


def unpack_joined_reference(
    messages: Array, counts: Array, room: int, head_words: int, capacity: int, width: int, dtype: jnp.dtype
) -> tuple[Array, Array]:
    """The pure-JAX lowering of `unpack_joined`."""
    _, positions, values = unpack_reference(messages, head_words, capacity, capacity, width, dtype)
    _, *source = locate_entries(counts, room)
    return _at(positions, tuple(source)), _at(values, tuple(source))


def _at(x: Array, indices: Array | tuple[Array, ...]) -> Array:
    """x at indices within its bounds: each branch of a ladder would have to compile the handling of others."""
    return x.at[indices].get(mode="promise_in_bounds")
