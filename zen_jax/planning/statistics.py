"""What a profile counts, on the devices and under the named axis: who touched which unit, and how full messages get.

Only bitmaps of touched units travel: each worker receives every worker's bits of an n-th of the units, counts there,
and the counts are added up. A gradient's values stay where they are.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from zen_jax import _axis, kernels
from zen_jax._typing import Array, AxisName
from zen_jax.kernels._bits import BITS_PER_WORD, pack_bits, unpack_bits

PARTITIONS = (2, 4, 8, 16, 32, 64, 128)  # for which the skewness ratio is taken, beside n
_SAMPLED_TOGETHER = 1024  # elements that a sample takes in one piece


class Counts(NamedTuple):
    """Counts of one gradient at one unit, the same on every worker; int32 but for `skewness`."""

    units: Array  # [] units looked at
    together: Array  # [n, n] units that workers i and j both touch; on the diagonal those of worker i
    sharers: Array  # [n] units that exactly 1 to n workers touch
    groups: Array  # [stages + 1] most units that one partial sum of recursive doubling holds, before each stage
    push: Array  # [] units in the fullest message to a hashed server
    pull: Array  # [] units in the fullest shard of a hashed server
    contiguous_push: Array  # [] as push, where server j owns the j-th n-th of the units
    contiguous_pull: Array  # []
    skewness: Array  # float32 [len(partitions(n))] mean over workers; 0 where no worker has a non-zero


def partitions(n: int) -> tuple[int, ...]:
    """Numbers of partitions for which `Counts.skewness` is taken."""
    return tuple(sorted({*PARTITIONS, n}))


def sample_stride(elements: int, widths: tuple[int, ...], limit: int | None) -> int:
    """Of how many pieces of a gradient one is looked at, so that at most about `limit` of the finest units are.

    >>> [sample_stride(1 << 20, widths, limit) for widths, limit in [((1,), None), ((1,), 1 << 18), ((16,), 1 << 18)]]
    [1, 4, 1]
    """
    finest = elements // math.gcd(*widths)
    pieces = elements // math.lcm(*widths, _SAMPLED_TOGETHER)
    return 1 if limit is None or finest <= limit else max(1, min(-(-finest // limit), pieces // 2))


def count(x: Array, axis_name: AxisName, widths: tuple[int, ...], *, seed: int, limit: int | None) -> dict[int, Counts]:
    """Counts for each unit width of one gradient over a named axis.

    Args:
      x: this worker's gradient, float of any shape but not empty.
      axis_name: the workers' axis.
      widths: elements in a unit; the gradient is cut flat, and its last unit may be short.
      seed: seed of the tile rotation.
      limit: of the finest units about so many are looked at, every `sample_stride`-th piece; None for all. Where
        pieces are left out, `push` and `pull` are 0: positions in a sample say nothing of hashed servers.

    Returns:
      Counts by width. Those of a sample are of the sample.
    """
    stride = sample_stride(x.size, widths, limit)
    flat = x.reshape(-1)
    if stride > 1:
        piece = math.lcm(*widths, _SAMPLED_TOGETHER)
        flat = flat[: x.size // piece * piece].reshape(-1, piece)[::stride].reshape(-1)
    finest = math.gcd(*widths)
    base = jnp.pad(flat, (0, -flat.size % finest)).reshape(-1, finest)
    words, _, _ = kernels.hash_bitmap_encode(base, 1)
    bits = unpack_bits(words)[: base.shape[0]]
    counts = {}
    for width in widths:
        ratio = width // finest
        touched = jnp.pad(bits, (0, -bits.size % ratio)).reshape(-1, ratio).any(axis=1)
        counts[width] = _count_bits(touched, axis_name, seed=seed, hashed=stride == 1)
    return counts


def _count_bits(touched: Array, axis_name: AxisName, *, seed: int, hashed: bool) -> Counts:
    n, units = _axis.axis_size(axis_name), touched.size
    words = pack_bits(touched)
    slices = jnp.pad(words, (0, -words.size % n)).reshape(n, -1)
    received = _axis.all_to_all(slices, axis_name)  # [n, W/n]: every worker's bits of my units
    together = _ones(received[:, None, :] & received[None, :, :])
    touching = jnp.sum(unpack_bits(received), axis=0, dtype=jnp.int32)
    sharing = touching[None, :] == jnp.arange(1, n + 1, dtype=jnp.int32)[:, None]
    sharers = jnp.sum(sharing, axis=1, dtype=jnp.int32)
    groups = _partial_sums(received)
    union = _axis.all_gather(groups[-1][0], axis_name).reshape(-1)[: words.size]
    together, sharers, groups = lax.psum((together, sharers, [_ones(group) for group in groups]), axis_name)

    def fullest(bits: Array) -> Array:
        if not hashed:
            return jnp.zeros((), jnp.int32)
        return jnp.max(kernels.partition(bits.astype(jnp.float32), n, 1, seed=seed)[2])

    every_partition = np.asarray(partitions(n))
    of_n = partitions(n).index(n)
    fullest_segments = _fullest_segments(words, units, every_partition)
    total = jnp.maximum(_ones(words), 1).astype(jnp.float32)
    skewness = fullest_segments.astype(jnp.float32) * every_partition.astype(np.float32) / total
    mine = [lax.bitcast_convert_type(skewness, jnp.int32), jnp.stack([fullest(touched), fullest_segments[of_n]])]
    everyone = _axis.all_gather(jnp.concatenate(mine), axis_name)
    skewness = lax.bitcast_convert_type(everyone[:, :-2], jnp.float32)
    having = jnp.maximum(jnp.sum(skewness[:, 0] > 0), 1).astype(jnp.float32)
    return Counts(
        units=jnp.int32(units),
        together=together,
        sharers=sharers,
        groups=jnp.stack([jnp.max(group) for group in groups]),
        push=jnp.max(everyone[:, -2]),
        pull=fullest(unpack_bits(union)[:units]),
        contiguous_push=jnp.max(everyone[:, -1]),
        contiguous_pull=_fullest_segments(union, units, np.asarray([n]))[0],
        skewness=jnp.sum(skewness, axis=0) / having,
    )


def _partial_sums(received: Array) -> list[Array]:
    """Bitmaps [n, W] of workers, then of what they hold after each stage of `zen_jax.schemes.sparcml`, to [1, W]."""
    n = received.shape[0]
    power = 1 << (n.bit_length() - 1)
    stages = [received]
    if n > power:
        stages.append(received[:power] | jnp.pad(received[power:], ((0, 2 * power - n), (0, 0))))
    while stages[-1].shape[0] > 1:
        stages.append(stages[-1][0::2] | stages[-1][1::2])
    return stages


def _ones(words: Array) -> Array:
    """Set bits along the last axis."""
    return jnp.sum(lax.population_count(words), axis=-1, dtype=jnp.int32)


def _fullest_segments(words: Array, units: int, parts: np.ndarray) -> Array:
    """Most set bits in any of p equal segments (the last may be short) of a bitmap of `units` bits, for each p."""
    ends = np.arange(parts.max() + 1)[None, :] * -(-units // parts)[:, None]
    ends = np.minimum(ends, units)
    word, bit = ends // BITS_PER_WORD, ends % BITS_PER_WORD
    whole = jnp.pad(jnp.cumsum(lax.population_count(words), dtype=jnp.int32), (1, 0))
    below = jnp.pad(words, (0, 1))[word] & ((np.uint32(1) << bit.astype(np.uint32)) - np.uint32(1))
    before = whole[word] + lax.population_count(below).astype(jnp.int32)
    return jnp.max(jnp.diff(before, axis=1), axis=1)


@jax.jit(static_argnames=("widths", "seed"))
def count_stacked(stacked: Array, *, widths: tuple[int, ...], seed: int) -> dict[int, Counts]:
    """`count` of all of stacked gradients [n, ...], one worker a slice, emulated on this device."""
    worker = lambda x: count(x, "workers", widths, seed=seed, limit=None)  # noqa: E731
    return jax.tree.map(lambda of_workers: of_workers[0], jax.vmap(worker, axis_name="workers")(stacked))
