"""Place own: completes a tensor from others' units with those that this worker alone touched."""

import jax.numpy as jnp
import numpy as np

from zen_jax import errors, hashing
from zen_jax._bits import bitmap_words, get_bits
from zen_jax._lowering import custom_call_or
from zen_jax._sums import accumulator_dtype, divide
from zen_jax._typing import Array


def place_own(
    x: Array, words: Array, positions: Array, values: Array, counts: Array, *, divisor: int = 1, seed: int = 0
) -> Array:
    """x with those of this worker's units whose bit is clear in their server's bitmap.

    Args:
      x: float [U, D], as `hash_bitmap_decode` makes it of `words` and others' units. Its buffer is reused.
      words: uint32 [n, ceil(T/32)] with T = ceil(U/n), as `aggregate_for_others` makes them.
      positions: int32 [n, C] below T, as `partition` makes them.
      values: [n, C, D] of x's dtype.
      counts: int32 [n], how many entries of each bucket there are; at most C of them are read.
      divisor: each unit is multiplied by the reciprocal of this, as `aggregate` would.
      seed: seed of the tile rotation.

    Returns:
      [U, D] of x's dtype.

    Raises:
      ValueError: for x that is not a float, shapes or dtypes that disagree, n or C or a divisor below 1, or a seed that
        is not a uint32.

    >>> import jax.numpy as jnp
    >>> words, own = jnp.array([[0b10], [0b00]], jnp.uint32), jnp.array([[[8.], [9.]], [[6.], [0.]]])
    >>> x = jnp.array([[0.], [0.], [0.], [7.]])
    >>> place_own(x, words, jnp.array([[0, 1], [0, 0]]), own, jnp.array([2, 1]), divisor=2).ravel().tolist()
    [4.0, 3.0, 0.0, 7.0]

    Source: zen_jax's own; the pull of ZEN (OSDI 2025), section 3.1, sends every worker all sums.
    """
    errors.check_float("x", x.dtype)
    errors.check_rank("x", x.shape, (2,))
    errors.check_at_least("divisor", divisor, 1)
    errors.check_seed(seed)
    errors.check_rank("values", values.shape, (3,))
    errors.check_message_rows("values", values.shape)
    n, room, _ = values.shape
    errors.check_shape("words", words.shape, (n, bitmap_words(-(-len(x) // n))))
    errors.check_shape("positions", positions.shape, (n, room))
    errors.check_shape("values", values.shape, (n, room, x.shape[1]))
    errors.check_shape("counts", counts.shape, (n,))
    errors.check_dtype("words", words.dtype, jnp.uint32)
    errors.check_dtype("positions", positions.dtype, jnp.int32)
    errors.check_dtype("values", values.dtype, x.dtype)
    errors.check_dtype("counts", counts.dtype, jnp.int32)
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
    n = len(words)
    indices = hashing.index_of(np.arange(n)[:, None], positions, n, seed)
    return place_at(x, words, positions, values, counts, indices, divisor)


def place_at(
    x: Array, words: Array, positions: Array, values: Array, counts: Array, indices: Array, divisor: int
) -> Array:
    """x with the units that are to be placed at `indices` int32 [n, C]: `place_own` for any hash."""
    errors.check_units(len(x))
    held = jnp.arange(positions.shape[1], dtype=jnp.int32)[None, :] < counts[:, None]
    where = jnp.where(held & ~get_bits(words, positions), indices, len(x))
    own = divide(values.astype(accumulator_dtype(x.dtype)), divisor, x.dtype)
    return x.at[where].set(own, mode="drop")
