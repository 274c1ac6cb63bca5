"""Place own: completes a tensor from others' units with those that this worker alone touched."""

import jax.numpy as jnp
import numpy as np

from zen_jax import errors, hashing
from zen_jax._bits import bitmap_words, get_bits
from zen_jax._lowering import custom_call_or
from zen_jax._sums import accumulator_dtype, divide
from zen_jax._typing import Array
from zen_jax.kernels.aggregate import check_messages


def place_own(
    x: Array, words: Array, positions: Array, values: Array, counts: Array, *, divisor: int = 1, seed: int = 0
) -> Array:
    """x with those of this worker's units whose bit is clear in their server's bitmap.

    Args:
      x: float [U, D], as `hash_bitmap_decode` makes it of `words` and others' units: zero where a bit is clear. Its
        buffer is reused.
      words: uint32 [n, ceil(T/32)] with T = ceil(U/n), as `aggregate_for_others` makes them.
      positions: int32 [n, C] below T, as `partition` makes them.
      values: [n, C, D] of x's dtype.
      counts: int32 [n], how many entries of each bucket there are; at most C of them are read.
      divisor: each unit is multiplied by the reciprocal of this, as `aggregate` would.
      seed: seed of the tile rotation.

    Returns:
      [U, D] of x's dtype.

    Raises:
      ValueError: for values that are not floats, shapes or dtypes that disagree, n or C or a divisor below 1, T above
        2**31 - 1, or a seed that is not a uint32.

    >>> import jax.numpy as jnp
    >>> words, own = jnp.array([[0b10], [0b00]], jnp.uint32), jnp.array([[[8.], [9.]], [[6.], [0.]]])
    >>> x = jnp.array([[0.], [0.], [0.], [7.]])
    >>> place_own(x, words, jnp.array([[0, 1], [0, 0]]), own, jnp.array([2, 1]), divisor=2).ravel().tolist()
    [4.0, 3.0, 0.0, 7.0]

    Source: zen_jax's own; the pull of ZEN (OSDI 2025), section 3.1, sends every worker all sums.
    """
    errors.check_rank("values", values.shape, (3,))
    errors.check_message_rows("values", values.shape)
    n, _, width = values.shape
    errors.check_shape("x", x.shape, (None, width))
    size = -(-len(x) // n)
    check_messages(positions, values, counts, size, divisor)
    errors.check_dtype("x", x.dtype, values.dtype)
    errors.check_shape("words", words.shape, (n, bitmap_words(size)))
    errors.check_dtype("words", words.dtype, jnp.uint32)
    errors.check_seed(seed)
    (x,) = custom_call_or(
        lambda *operands: (reference(*operands, divisor=divisor, seed=seed),),
        "zen_place_own",
        [x, words, positions, values, counts],
        [(x.shape, x.dtype)],
        aliases={0: 0},
        divisor=np.int64(divisor),
        seed=np.uint32(seed),
    )
    return x


def reference(
    x: Array, words: Array, positions: Array, values: Array, counts: Array, *, divisor: int = 1, seed: int = 0
) -> Array:
    """The pure-JAX lowering."""
    n, room, _ = values.shape
    errors.check_units(len(x))
    held = jnp.arange(room, dtype=jnp.int32)[None, :] < counts[:, None]
    indices = hashing.index_of(np.arange(n)[:, None], positions, n, seed)
    where = jnp.where(held & ~get_bits(words, positions), indices, len(x))
    own = divide(values.astype(accumulator_dtype(x.dtype)), divisor, x.dtype)
    # Added to zeros, as the server does: an addition may change the bits of a NaN, and others have received those.
    return x.at[where].add(own, mode="drop")
