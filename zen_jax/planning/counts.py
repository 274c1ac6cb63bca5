"""What a profile counts, on the devices under the named axis: who touched which unit, and how full messages get.

Only bitmaps of touched units are sent: each worker receives every worker's bits for one n-th of the units and counts
them, and the counts are added up. The gradients' values are not sent.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from zen_jax import _axis, kernels
from zen_jax._bits import BITS_PER_WORD, pack_bits, unpack_bits
from zen_jax._typing import Array, AxisName

PARTITIONS = (2, 4, 8, 16, 32, 64, 128)  # for which the skewness ratio is measured, besides n
FINITE_SAMPLE = 1 << 12  # about how many elements tell whether a gradient has overflowed
SAMPLED_TOGETHER = 1024  # minimum elements in one piece of a sample
BITS_PER_BYTE = 8  # of a bitmap: widths that are multiples of so many of the finest units are fast to derive from it


class Counts(NamedTuple):
    """Counts of one gradient at one unit, the same on every worker; int32 except for `skewness`.

    All but `touched` are of the units examined.
    """

    units: Array  # [] units examined
    touched: Array  # [n] units that each worker touches, whether examined or not
    co_touched: Array  # [n, n] units that workers i and j both touch; on the diagonal those of worker i
    sharers: Array  # [n] units that exactly 1, 2, ..., n workers touch
    partial_sums: Array  # [K] most units that one of recursive doubling holds, by stage of `_partial_sums`
    push: Array  # [] units in the fullest message to a hashed server; the fullest device's times `devices`
    pull: Array  # [] units in the fullest shard of a hashed server, likewise
    contiguous_push: Array  # [] units in the fullest message, if server j owns the j-th of n equal ranges of units
    contiguous_pull: Array  # []
    skewness: Array  # float32 [len(partitions(n))] mean over workers; 0 if no worker has a non-zero
    overflowed: Array  # [] 1 if any worker's gradient is not finite in some element of a sample, else 0


def partitions(n: int) -> tuple[int, ...]:
    """Numbers of partitions for which `Counts.skewness` is measured."""
    return tuple(sorted({*PARTITIONS, n}))


def sample_stride(elements: int, width: int, limit: int | None, finest: int = 1) -> int:
    """Stride of the sample in pieces of a gradient, so that at most about `limit` units are examined.

    >>> [sample_stride(1 << 20, width, limit) for width, limit in [(1, None), (1, 1 << 18), (16, 1 << 18)]]
    [1, 4, 1]
    """
    units, pieces = elements // width, elements // _piece(width, finest)
    return 1 if limit is None or units <= limit else max(1, min(-(-units // limit), pieces // 2))


def _piece(width: int, finest: int) -> int:
    """Elements in one piece of a sample: whole units, and whole words of a bitmap of units of `finest` elements."""
    unit = math.lcm(width, finest * BITS_PER_WORD)
    return unit * -(-SAMPLED_TOGETHER // unit)


def units_together(width: int, widths: Collection[int]) -> int:
    """Units of one width in one piece of a sample, where a gradient is counted at all of `widths`.

    >>> units_together(16, (256, 16, 1)), units_together(300, (300, 150))
    (64, 16)
    """
    return _piece(width, _finest(width, widths)) // width


def _finest(width: int, widths: Collection[int]) -> int:
    """Elements of the units whose bitmap, found in one pass over the gradient, tells those of `width`.

    One pass serves all widths, unless bitmaps of elements, or of the few that such widths have in common, would cost
    more.
    """
    fast = lambda width: width == 1 or width % BITS_PER_BYTE == 0
    return math.gcd(*(other for other in widths if fast(other) == fast(width)))


class Touched(NamedTuple):
    """Which units of one gradient this worker touched."""

    bits: Array  # bool [units], of those examined
    overflowed: Array  # int32 [], as in `Counts`
    in_all: Array | None  # int32 [], how many of all units, if those examined are a sample

    @property
    def sampled(self) -> bool:
        return self.in_all is not None


def touched(x: Array, limits: Mapping[int, int | None]) -> dict[int, Touched]:
    """Which units of each width a gradient touches, found in one or two passes over it.

    Args:
      x: this worker's gradient, float of any shape but not empty.
      limits: about how many units to examine, for each width in elements: one random piece of every `sample_stride`,
        the same on every worker; None for all. The flattened gradient is cut into units, of which the last may be
        short.
    """
    groups: dict[int, dict[int, int | None]] = {}
    for width, limit in limits.items():
        groups.setdefault(_finest(width, limits), {})[width] = limit
    found = [_touched_together(x, finest, group) for finest, group in groups.items()]
    return {width: bitmap for group in found for width, bitmap in group.items()}


def _touched_together(x: Array, finest: int, limits: Mapping[int, int | None]) -> dict[int, Touched]:
    """As `touched`, by way of a bitmap of units of `finest` elements, which all widths are made up of."""
    # XLA would copy an array that is reshaped by way of a vector.
    base = jnp.pad(x.reshape(-1), (0, -x.size % finest)) if x.size % finest else x
    words, _, in_all = kernels.hash_bitmap_encode(base.reshape(-1, finest), 1)
    overflowed = (~jnp.isfinite(x.reshape(-1)[:: -(-x.size // FINITE_SAMPLE)])).any().astype(jnp.int32)

    def at(width: int, limit: int | None) -> Touched:
        ratio, stride = width // finest, sample_stride(x.size, width, limit, finest)
        every = _coarser(words, ratio)[: -(-x.size // width)]
        if stride == 1:
            return Touched(every, overflowed, None)
        piece = _piece(width, finest)
        pieces = words[: x.size // piece * (piece // finest // BITS_PER_WORD)].reshape(x.size // piece, -1)
        first = np.arange(0, pieces.shape[0] - stride + 1, stride)
        sample = pieces[first + np.random.default_rng(0).integers(stride, size=first.size)].reshape(-1)
        return Touched(_coarser(sample, ratio), overflowed, in_all if ratio == 1 else _popcount(pack_bits(every)))

    return {width: at(width, limit) for width, limit in limits.items()}


def _coarser(words: Array, ratio: int) -> Array:
    """bool [W * 32 / ratio], the last one of fewer: whether any of `ratio` neighbouring bits of a bitmap is set."""
    if ratio % BITS_PER_BYTE == 0:
        bits, ratio = lax.bitcast_convert_type(words, jnp.uint8).reshape(-1) != 0, ratio // BITS_PER_BYTE
    else:
        bits = unpack_bits(words)
    return jnp.pad(bits, (0, -bits.size % ratio)).reshape(-1, ratio).any(axis=1)


def count(bitmaps: Sequence[Touched], axis_name: AxisName, *, seed: int, devices: int = 1) -> list[Counts]:
    """Counts of gradients over a named axis, in two collectives for any number of gradients.

    Args:
      bitmaps: what this worker touched, for each gradient and unit.
      axis_name: the workers' axis.
      seed: seed of the tile rotation.
      devices: how many share a worker's units, as in `zen_jax.schemes.hierarchy`.

    Returns:
      Counts for each bitmap. Those of a sample cover only the sample, and their `push` and `pull` are 0: positions in a
      sample say nothing about hashed servers.
    """
    n, rank = _axis.axis_size(axis_name), lax.axis_index(axis_name)
    sizes = [bitmap.bits.size for bitmap in bitmaps]
    words = [pack_bits(bitmap.bits) for bitmap in bitmaps]
    slices = [jnp.pad(w, (0, -w.size % n)).reshape(n, -1) for w in words]
    ends = np.cumsum([each.shape[1] for each in slices])[:-1].tolist()
    received = _axis.all_to_all(jnp.concatenate(slices, axis=1), axis_name)  # everyone's bits of my units
    received = jnp.split(received, ends, axis=1)

    def my_part_of_union(words: Array, sums: list[Array]) -> Array:
        """The bitmap of the units that any worker touches, without those that other workers count."""
        mine = sums[-1][0]
        return lax.dynamic_update_slice(jnp.zeros(n * mine.size, mine.dtype), mine, (rank * mine.size,))[: words.size]

    def by_server(bitmap: Touched, bits: Array) -> Array:
        """How many of these bits each hashed server owns of each device's share: int32 [devices, n]; 0 for a sample."""
        if bitmap.sampled:
            return jnp.zeros((devices, n), jnp.int32)
        shares = jnp.pad(bits, (0, -bits.size % devices)).reshape(-1, devices).T.astype(jnp.float32)
        return jax.vmap(lambda share: kernels.partition(share, n, 1, seed=seed)[2])(shares)

    def count_my_units(
        bitmap: Touched, received: Array, sums: list[Array], union: Array, segments: Array
    ) -> dict[str, Any]:
        touching = jnp.sum(unpack_bits(received), axis=0, dtype=jnp.int32)
        sharing = touching[None, :] == jnp.arange(1, n + 1, dtype=jnp.int32)[:, None]
        return {
            "co_touched": _popcount(received[:, None, :] & received[None, :, :]),
            "sharers": jnp.sum(sharing, axis=1, dtype=jnp.int32),
            "partial_sums": [_popcount(group) for group in sums],
            "pull": by_server(bitmap, unpack_bits(union)[: bitmap.bits.size]),
            "contiguous_pull": segments[0],
        }

    def count_my_messages(bitmap: Touched, words: Array, segments: Array) -> dict[str, Array]:
        return {
            "push": jnp.max(by_server(bitmap, bitmap.bits)),
            "segments": jnp.max(segments, axis=1),
            "touched": bitmap.in_all if bitmap.sampled else _popcount(words),
            "overflowed": bitmap.overflowed,
        }

    sums = [_partial_sums(bits) for bits in received]
    unions = [my_part_of_union(*each) for each in zip(words, sums, strict=True)]
    in_unions, in_words = (_in_segments(w, sizes, parts) for w, parts in ((unions, [n]), (words, partitions(n))))
    of_units = [count_my_units(*each) for each in zip(bitmaps, received, sums, unions, in_unions, strict=True)]
    mine = [count_my_messages(*each) for each in zip(bitmaps, words, in_words, strict=True)]
    my_row = jnp.where(jnp.arange(n)[:, None] == rank, pack(mine)[None, :], 0)
    of_units, rows = unpack(lax.psum(pack((of_units, my_row)), axis_name), (of_units, my_row))

    def counts_of(bitmap: Touched, summed: dict[str, Any], every: dict[str, Array]) -> Counts:
        total = jnp.diagonal(summed["co_touched"]).astype(jnp.float32)
        segments = every["segments"].astype(jnp.float32) * np.asarray(partitions(n), np.float32)[None, :]
        having = jnp.maximum(jnp.sum(total > 0), 1).astype(jnp.float32)
        return Counts(
            units=jnp.int32(bitmap.bits.size),
            touched=every["touched"],
            co_touched=summed["co_touched"],
            sharers=summed["sharers"],
            partial_sums=jnp.stack([jnp.max(group) for group in summed["partial_sums"]]),
            push=devices * jnp.max(every["push"]),
            pull=devices * jnp.max(summed["pull"]),
            contiguous_push=jnp.max(every["segments"][:, partitions(n).index(n)]),
            contiguous_pull=jnp.max(summed["contiguous_pull"]),
            skewness=jnp.sum(segments / jnp.maximum(total, 1)[:, None], axis=0) / having,
            overflowed=jnp.max(every["overflowed"]),
        )

    return [counts_of(*each) for each in zip(bitmaps, of_units, unpack(rows, mine), strict=True)]


def pack(tree: Any) -> Array:
    """Packs 32-bit arrays into one int32 [K], for one collective or transfer; floats >= 0 keep their order."""
    arrays = [lax.bitcast_convert_type(each, jnp.int32).reshape(-1) for each in jax.tree.leaves(tree)]
    return jnp.concatenate(arrays) if arrays else jnp.zeros(0, jnp.int32)


def unpack(packed: Array | np.ndarray, like: Any) -> Any:
    """Restores the tree that `pack` made into int32 [..., K], with the leading axes that were added since."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size for leaf in leaves]).tolist()
    parts = [
        packed[..., end - leaf.size : end].view(leaf.dtype).reshape((*packed.shape[:-1], *leaf.shape))
        for leaf, end in zip(leaves, ends, strict=True)
    ]
    return structure.unflatten(parts)


def _partial_sums(received: Array) -> list[Array]:
    """Bitmaps [n, W] of workers, then of their sums after each stage of `zen_jax.schemes.sparcml`, down to [1, W]."""
    n = received.shape[0]
    power = 1 << (n.bit_length() - 1)
    stages = [received]
    if n > power:
        stages.append(received[:power] | jnp.pad(received[power:], ((0, 2 * power - n), (0, 0))))
    while stages[-1].shape[0] > 1:
        stages.append(stages[-1][0::2] | stages[-1][1::2])
    return stages


def _popcount(words: Array) -> Array:
    """Number of set bits along the last axis."""
    return jnp.sum(lax.population_count(words), axis=-1, dtype=jnp.int32)


def _in_segments(bitmaps: Sequence[Array], units: Sequence[int], parts: Sequence[int]) -> Array:
    """Set bits in each of p equal segments (the last may be short) of bitmaps of so many bits, for each p.

    int32 [len(bitmaps), len(parts), max(parts)], 0 beyond p. All share one running sum, which compiles faster than one
    for each bitmap; it may wrap round, but its differences do not.
    """
    starts = np.cumsum([0, *(words.size for words in bitmaps)])[:-1, None, None]
    sizes, parts = np.asarray(units)[:, None, None], np.asarray(parts)[:, None]
    ends = np.minimum(np.arange(parts.max() + 1) * -(-sizes // parts), sizes)
    word, bit = starts + ends // BITS_PER_WORD, ends % BITS_PER_WORD
    words = jnp.concatenate(bitmaps)
    whole = jnp.pad(jnp.cumsum(lax.population_count(words), dtype=jnp.int32), (1, 0))
    below = jnp.pad(words, (0, 1))[word] & ((np.uint32(1) << bit.astype(np.uint32)) - np.uint32(1))
    before = whole[word] + lax.population_count(below).astype(jnp.int32)
    return jnp.diff(before, axis=-1)


@jax.jit(static_argnames=("widths", "seed", "devices"))
def count_stacked(stacked: Array, *, widths: tuple[int, ...], seed: int, devices: int) -> dict[int, Counts]:
    """Counts of all units of stacked gradients [n, ...], by width: one worker per slice, emulated on this device."""

    def worker(x: Array) -> dict[int, Counts]:
        found = touched(x, dict.fromkeys(widths))
        return dict(zip(found, count(list(found.values()), "workers", seed=seed, devices=devices), strict=True))

    return jax.tree.map(lambda of_workers: of_workers[0], jax.vmap(worker, axis_name="workers")(stacked))
