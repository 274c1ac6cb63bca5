"""Selection of the largest keys without a sort: it finds thresholds by counting, at full speed on every platform.

The key of a float, its bits without the sign, orders by magnitude, so the k-th largest is found as an integer: each
pass counts how many keys reach each of a few probes and keeps the gap that holds the answer, which is five times
narrower. A sample places the first probes, so one pass usually suffices for an approximate k, a few for an exact one.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from zen_jax import _axis, hashing
from zen_jax._typing import Array, AxisName

PROBES = 4  # one for each byte of a uint32
WAYS = (8, 16)  # a byte must hold the count: 8 * 16 < 256
UNROLLED = 1 << 12  # a smaller tensor is counted plainly, which compiles faster
SAMPLED = 1 << 16  # a smaller tensor is faster to count than to sample
SAMPLE_SHARE, SMALLEST_SAMPLE, CHUNK = 0.01, 1 << 14, 64
SPREAD = 3.0  # standard deviations of the sampled rank that the first probes span


def top_k_mask(x: Array, least: Array | int, most: Array | int, model_axis: AxisName | None = None) -> Array:
    """Marks between `least` and `most` elements, none of which is smaller in magnitude than an unmarked one.

    Where ties would exceed `most`, exactly `least` are marked, ties in index order; zeros are marked all or not at all,
    because they select nothing. NaN counts as larger than infinity.

    Args:
      x: [size], size at least 1, float; or unsigned integers whose highest bit is ignored like a sign.
      least, most: how many to mark over all shards, 1 <= least <= most <= size; may be traced.
      model_axis: a named axis whose shards, of equal size, share one threshold.

    Returns:
      bool [size]. With a model axis, ties are broken by the index within the shard, so up to one more tie for each
      further shard is marked beyond `least`.

    Raises:
      ValueError: for 2**31 or more elements over all shards.

    >>> import jax.numpy as jnp
    >>> top_k_mask(jnp.array([1.0, -5.0, 0.0, 3.0, -3.0]), 2, 2).tolist()
    [False, True, False, True, False]
    """
    bits = lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")
    shards = 1 if model_axis is None else _axis.axis_size(model_axis, "model_axis")
    check_size(bits.size * shards)
    search, probes = functools.partial(_search, model_axis=model_axis), _sampled_probes(bits, least, model_axis)
    if model_axis is not None:
        # Hosts may round differently, and would then leave a loop of collectives at different times.
        least, most, probes = lax.pmax((jnp.asarray(least), jnp.asarray(most), probes), model_axis)
    found = search(bits, least, most, probes)
    threshold = found.low
    tied = (found.reach_low > most) & (threshold > 0)

    def last_tie() -> Array:
        wanted = jnp.asarray(least, jnp.int32) - found.reach_high
        ties = jnp.where(_keys(bits) == threshold, _reversed_index(bits.size), jnp.uint32(0))
        # Under vmap both branches run: one that is not needed must have nothing to look for.
        most_wanted = jnp.where(tied, wanted, jnp.int32(bits.size * shards))
        return search(ties, wanted, most_wanted, _even_probes(jnp.uint32)).low

    # What both branches and the result need is cheaper to recompute than to pass: XLA would write it to memory.
    cut = lax.cond(tied, last_tie, lambda: _matching(jnp.uint32(0), bits, threshold, model_axis=model_axis))
    keys = _keys(bits)
    return (keys > threshold) | ((keys == threshold) & (_reversed_index(bits.size) >= cut))


def check_size(size: int) -> None:
    """Raises a ValueError for more elements than can be counted."""
    if size >= 2**31:
        raise ValueError(f"a leaf has {size} elements, but at most 2**31 - 1 can be counted. Split it.")


def _keys(bits: Array) -> Array:
    return bits & bits.dtype.type(_top(bits.dtype) - 1)


def _reversed_index(size: int) -> Array:
    """size, ..., 1: the larger, the earlier."""
    return jnp.uint32(size) - lax.iota(jnp.uint32, size)


class _Gap(NamedTuple):
    """Between two keys: at least `least` keys reach `low`, fewer than that reach `high`."""

    low: Array
    high: Array
    reach_low: Array
    reach_high: Array
    probes: Array  # [PROBES], where to look next


def _search(
    bits: Array, least: Array | int, most: Array | int, probes: Array, model_axis: AxisName | None = None
) -> _Gap:
    """The gap whose `low` at most `most` keys reach, or within which no key lies."""
    least, most = jnp.asarray(least, jnp.int32), jnp.asarray(most, jnp.int32)
    dtype = probes.dtype
    everything = bits.size * (1 if model_axis is None else _axis.axis_size(model_axis))

    def unfinished(gap: _Gap) -> Array:
        return (gap.reach_low > most) & (gap.high - gap.low > 1)

    def narrow(gap: _Gap) -> _Gap:
        reach = _reach(bits, gap.probes)
        if model_axis is not None:
            reach = lax.psum(reach, model_axis)
        enough = reach >= least
        low = jnp.maximum(gap.low, jnp.max(jnp.where(enough, gap.probes, jnp.zeros_like(gap.probes))))
        high = jnp.minimum(gap.high, jnp.min(jnp.where(enough, gap.high, gap.probes)))
        reach_low = jnp.minimum(gap.reach_low, jnp.min(jnp.where(enough, reach, gap.reach_low)))
        reach_high = jnp.maximum(gap.reach_high, jnp.max(jnp.where(enough, gap.reach_high, reach)))
        return _Gap(low, high, reach_low, reach_high, _probes_between(low, high))

    start = (dtype.type(0), _top(dtype), jnp.int32(everything), jnp.int32(0), probes)
    start = [_matching(jnp.asarray(x), bits, least, most, probes, model_axis=model_axis) for x in start]
    return lax.while_loop(unfinished, narrow, _Gap(*start))


def _matching(x: Array, *operands: Array, model_axis: AxisName | None) -> Array:
    """x as the search leaves it: it varies where its operands do, except over shards, which agree."""
    return _axis.varying_like(x, *operands, apart_from=() if model_axis is None else _axis.axis_names(model_axis))


def _top(dtype: Any) -> np.generic:
    """The smallest value that no key reaches."""
    return dtype.type(1 << (8 * dtype.itemsize - 1))


def _even_probes(dtype: Any) -> Array:
    dtype = jnp.dtype(dtype)
    return _probes_between(jnp.asarray(dtype.type(0)), jnp.asarray(_top(dtype)))


def _probes_between(low: Array, high: Array) -> Array:
    steps = jnp.arange(1, PROBES + 1, dtype=low.dtype)
    return jnp.minimum(low + jnp.maximum((high - low) // low.dtype.type(PROBES + 1) * steps, steps), high)


def _reach(bits: Array, probes: Array) -> Array:
    """How many keys of bits [size] reach each of `probes` [PROBES]: int32 [PROBES].

    XLA on CPUs vectorises sums of equal parts, but not a sum over an axis. The counts stay in the bytes of a word
    while they fit.
    """

    def packed(part: Array) -> Array:
        fields = [jnp.where(_reaches(part, probes[i]), jnp.uint32(1 << 8 * i), jnp.uint32(0)) for i in range(PROBES)]
        return functools.reduce(jnp.add, fields)

    block = WAYS[0] * WAYS[1]
    whole = bits.size // block * block if bits.size >= UNROLLED else 0
    tail = jnp.sum(_reaches(bits[whole:][None, :], probes[:, None]), axis=1, dtype=jnp.int32)
    if not whole:
        return tail
    words = _sum_of_parts(_sum_of_parts(bits[:whole], WAYS[0], packed), WAYS[1], lambda part: part)
    shifts = np.arange(0, 8 * PROBES, 8, dtype=np.uint32)
    counts = (words[None, :] >> shifts[:, None]) & np.uint32(255)
    return jnp.sum(counts, axis=1, dtype=jnp.int32) + tail


def _reaches(bits: Array, probe: Array) -> Array:
    """Whether bits without their highest are at least the probe: then subtracting it borrows nothing from the highest.

    The probe comes first: XLA would hoist an operation on the bits alone out of a loop and write its result to memory.
    """
    return ((bits - probe) ^ bits) < _top(bits.dtype)


def _sum_of_parts(x: Array, ways: int, of: Callable[[Array], Array]) -> Array:
    length = x.size // ways
    return functools.reduce(jnp.add, [of(x[i * length : (i + 1) * length]) for i in range(ways)])


def _sampled_probes(bits: Array, least: Array | int, model_axis: AxisName | None) -> Array:
    """Keys that, judging by a sample, lie evenly around the one at rank `least`."""
    dtype = bits.dtype
    if not sample_chunks(bits.size):
        return _even_probes(dtype)
    sample = _sample(bits)
    shards = 1
    if model_axis is not None:
        sample = _axis.all_gather(sample, model_axis).reshape(-1)
        shards = _axis.axis_size(model_axis)
    ranks = ranks_around(least, sample.size, bits.size * shards)
    below, above = jax.vmap(lambda rank: _key_of_rank(sample, rank))(ranks)
    return below + (above - below) // dtype.type(PROBES - 1) * jnp.arange(PROBES, dtype=dtype)


def ranks_around(least: Array | int, sampled: int, size: int) -> Array:
    """The ranks, int32 [2], in a sample of `sampled` of `size` keys that enclose the key at rank `least`."""
    rank = jnp.asarray(least, jnp.float32) * np.float32(sampled / size)
    spread = np.float32(SPREAD) * jnp.sqrt(rank) + np.float32(1)
    return jnp.clip(jnp.stack([rank + spread, rank - spread]), 1, max(sampled, 1)).astype(jnp.int32)


def _key_of_rank(bits: Array, rank: Array) -> Array:
    low = _search(bits, rank, rank, _even_probes(bits.dtype)).low
    keys = _keys(bits)
    return jnp.min(jnp.where(keys >= low, keys, _top(bits.dtype)))


def sample_chunks(size: int) -> int:
    """How many chunks of CHUNK elements a sample of `size` takes; 0 where counting is quicker than sampling."""
    return 0 if size < SAMPLED else max(int(size * SAMPLE_SHARE), SMALLEST_SAMPLE) // CHUNK


def _sample(x: Array) -> Array:
    """A sample of x [size] in chunks of whole cache lines, one at a hashed place in each equal stretch of x."""
    chunks = sample_chunks(x.size)
    stretch = x.size // chunks
    places = lax.iota(jnp.uint32, chunks)
    starts = places * np.uint32(stretch) + hashing.reduce_to_range(hashing.murmur3(places, 0), stretch - CHUNK + 1)
    return jax.vmap(lambda start: lax.dynamic_slice(x, (start,), (CHUNK,)))(starts.astype(jnp.int32)).reshape(-1)
