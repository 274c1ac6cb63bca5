"""What each scheme would send and compute for one leaf: Equations 1 and 2, plus what they leave out.

A candidate is a scheme at one unit, with formats and capacities. Its bytes are those that the scheme reports in `Info`:
messages (unused room included), indices, bitmaps and agreed counts, (n-1) of each. Its time adds latency and kernels.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, prod, sqrt
from typing import Any, NamedTuple

import numpy as np

from zen_jax._sums import accumulator_dtype
from zen_jax.formats import coo
from zen_jax.formats.tensor_block import BLOCK
from zen_jax.formats.words import WORD_BYTES
from zen_jax.planning.cluster import Cluster
from zen_jax.planning.sparsity import LeafProfile, UnitProfile
from zen_jax.schemes import agsparse, sparcml
from zen_jax.schemes.dense import dense_bytes
from zen_jax.schemes.partitioning import Contiguous, Partitioning, TileRotation
from zen_jax.schemes.pull import PULL_FORMATS, PullFormat
from zen_jax.schemes.servers import COUNT_BYTES, push_bytes, sparse_limit

HEADROOM = 1.03  # ratio of a planned capacity to the fullest message profiled
FORMATS_TO_TRY = (*itertools.product(("coo", "bitmap"), ("hash_bitmap", "coo", "dense")), ("coo", "others"))


class Exchange(NamedTuple):
    """One collective, and the bytes that each worker sends and receives in it."""

    collective: str
    nbytes: float
    distance: int | None = None  # between the partners of a permute or send, in workers


class Work(NamedTuple):
    """One kernel, and the bytes of the tensor that it reads or writes: dense, and in non-zero units."""

    kernel: str
    dense: float
    nonzero: float


class Route:
    """Has among its attributes how a leaf is sent."""

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of `zen_jax.all_reduce`."""
        names = ("scheme", "unit", "capacity", "push_format", "pull_format")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Candidate(Route):
    """One way to send a leaf, with what it would send and compute."""

    scheme: str
    unit: int
    capacity: tuple[int, ...] | None
    exchanges: tuple[Exchange, ...]
    work: tuple[Work, ...]
    push_format: str = "coo"
    pull_format: str = "hash_bitmap"

    @property
    def nbytes(self) -> float:
        """Bytes that a worker pushes and pulls."""
        return sum(exchange.nbytes for exchange in self.exchanges)

    def seconds(self, cluster: Cluster, n: int) -> float:
        """Time with n workers, running collectives and kernels one after another."""
        sending = sum(cluster.seconds(each.collective, each.nbytes, n, each.distance) for each in self.exchanges)
        return sending + self.seconds_computing(cluster, n)

    def seconds_computing(self, cluster: Cluster, n: int) -> float:
        return sum(cluster.seconds_computing(*work, n) for work in self.work)


def candidates(leaf: LeafProfile, n: int) -> Iterator[Candidate]:
    """Every candidate for a leaf, widest units first; only the dense ones if nothing was measured."""
    yield from _dense(leaf, n)
    columns = prod(leaf.shape[1:])
    if n == 1:
        return
    for width in sorted(leaf.by_width, reverse=True):
        unit = leaf.by_width[width]
        if width == BLOCK:
            yield _contiguous("omnireduce", unit, leaf, n)
        if columns % width:
            continue
        yield from _zen(unit, leaf, n)
        yield _agsparse(unit, leaf, n)
        yield _sparcml(unit, leaf, n)
        yield _contiguous("sparse_ps", unit, leaf, n)


def lower_bound(leaf: LeafProfile, n: int) -> float:
    """Fewest bytes that a worker can receive: each non-zero that another worker has, once and without an index."""
    if n == 1:
        return 0.0
    if not leaf.by_width:
        return float(leaf.nbytes)
    finest = leaf.by_width[min(leaf.by_width)]
    return finest.unions[n - 2] * finest.width * np.dtype(leaf.dtype).itemsize


def planned_capacity(count: int, size: int) -> int:
    """Capacity to plan for a fullest message of `count` units; at most `size`."""
    return min(size, max(1, ceil(count * HEADROOM)))


def _dense(leaf: LeafProfile, n: int) -> Iterator[Candidate]:
    if n == 1:  # nothing is sent, nor summed
        yield from (Candidate(scheme, 1, None, (), ()) for scheme in ("dense_ordered", "dense"))
        return
    half = dense_bytes(leaf.elements, np.dtype(leaf.dtype), n)
    exchanges = (Exchange("all_to_all", half), Exchange("all_gather", half))
    ordered = Candidate("dense_ordered", 1, None, exchanges, (Work("sum", leaf.nbytes, 0),))
    yield ordered
    # 16-bit floats are summed in float32, which psum does not do.
    exact = accumulator_dtype(np.dtype(leaf.dtype)) == np.dtype(leaf.dtype)
    by_psum = Candidate("dense", 1, None, (Exchange("psum", 2 * half),), ())
    yield by_psum if exact else replace(ordered, scheme="dense")


def _zen(unit: UnitProfile, leaf: LeafProfile, n: int) -> Iterator[Candidate]:
    """Equation 1, with the measured union in place of gamma^n d and every message as full as the fullest."""
    hashed, ordered = TileRotation(unit.units, n, seed=0), next(_dense(leaf, n))
    for push_format, pull_format in FORMATS_TO_TRY:
        fullest = unit.push, _fullest_for_others(unit, n) if pull_format == "others" else unit.pull
        pull = _pull(pull_format, hashed, unit, leaf)
        on_servers = partial(_on_servers, "zen", unit, leaf, fullest, pull, push_format, pull_format)
        zen, limit = on_servers(), sparse_limit(push_format, pull)
        yield zen
        if limit > 0 and unit.push <= limit:
            yield replace(on_servers(limit), scheme="auto")
            continue
        exchanges, work = ordered.exchanges, ordered.work
        if limit > 0:  # it partitions and agrees on the sizes before it goes dense
            exchanges, work = (zen.exchanges[0], *exchanges), (zen.work[0], *work)
        yield replace(zen, scheme="auto", exchanges=exchanges, work=work)


def _contiguous(scheme: str, unit: UnitProfile, leaf: LeafProfile, n: int) -> Candidate:
    """Equation 1 with the skewness ratio included (appendix B.1)."""
    pull, fullest = _pull("coo", Contiguous(unit.units, n), unit, leaf), (unit.contiguous_push, unit.contiguous_pull)
    candidate = _on_servers(scheme, unit, leaf, fullest, pull, "coo", "coo")
    # OmniReduce cuts its own blocks, whatever the unit.
    return replace(candidate, unit=1) if scheme == "omnireduce" else candidate


def _on_servers(
    scheme: str,
    unit: UnitProfile,
    leaf: LeafProfile,
    fullest: tuple[int, int],
    pull: PullFormat,
    push_format: str,
    pull_format: str,
    most: int | None = None,
) -> Candidate:
    """A scheme with servers, whose fullest messages of push and pull hold `fullest` units, and no push over `most`."""
    others = pull_format == "others"
    n, size = pull.partitioning.n, pull.partitioning.size
    most = size if most is None else most
    rooms = (most, min(size, n * most))
    capacity = tuple(planned_capacity(count, room) for count, room in zip(fullest, rooms, strict=True))
    pushed = push_bytes(push_format, pull, capacity[0]) - COUNT_BYTES
    body = pull.body_bytes(capacity[1])
    gathered = [pull.header_bytes + body] if pull.joins_header else [pull.header_bytes, body]
    exchanges = (
        Exchange("all_gather", (n - 1) * COUNT_BYTES),
        Exchange("all_to_all", (n - 1) * pushed),
        *(Exchange("all_to_all" if others else "all_gather", (n - 1) * nbytes) for nbytes in gathered),
    )
    whole, unit_bytes = leaf.nbytes, unit.width * pull.dtype.itemsize
    sent, union, lacking = (units * unit_bytes for units in (unit.nonzero, unit.unions[-1], unit.unions[-2]))
    summing = {
        "coo": (Work("aggregate", whole / n, sent),),
        "bitmap": (Work("decode", whole, sent), Work("sum", whole, 0)),
    }
    encoding = {
        "hash_bitmap": (Work("encode", whole / n, union / n),),
        "coo": (Work("partition", whole / n, union / n),),
        "dense": (),
    }
    summing_and_encoding = {
        ("coo", "hash_bitmap"): (Work("aggregate_encode", whole / n, sent),),
        ("coo", "others"): (Work("for_others", whole / n, lacking),),
    }
    decoding = {
        "hash_bitmap": (Work("decode", whole, union),),
        "others": (Work("decode", whole, lacking), Work("copy", 2 * sent, 0)),
        "coo": (Work("aggregate", whole, union),),
        "dense": (Work("decode", whole, whole),),
    }
    served = summing_and_encoding.get((push_format, pull_format)) or summing[push_format] + encoding[pull_format]
    # Everyone packs and unpacks n messages, but only one if all get the same, and none of whole shards.
    pulled = 2 * n if others else n + 1 if pull.joins_header else 0
    copied = Work("copy", 2 * n * pushed + pulled * body, 0)
    work = (Work("partition", whole, sent), *served, *decoding[pull_format], copied)
    return Candidate(scheme, unit.width, capacity, exchanges, work, push_format, pull_format)


def _fullest_for_others(unit: UnitProfile, n: int) -> int:
    """Units in the fullest message of a pull by `others`: the fullest shard, less what its receiver touched alone.

    Of that only a mean is known. Workers that touch few units have the less alone, by as much as others touch more; and
    a server may own fewer of them, by twice the square root.
    """
    alone, uneven = (unit.unions[-1] - unit.unions[-2]) / n, unit.partial_sums[0] / max(1.0, unit.nonzero)
    return min(unit.pull, ceil(unit.pull - alone * max(0.0, 2 - uneven) + 2 * sqrt(alone)))


def _pull(pull_format: str, partitioning: Partitioning, unit: UnitProfile, leaf: LeafProfile) -> PullFormat:
    return PULL_FORMATS[pull_format](partitioning, unit.width, np.dtype(leaf.dtype))


def _agsparse(unit: UnitProfile, leaf: LeafProfile, n: int) -> Candidate:
    dtype = np.dtype(leaf.dtype)
    top = agsparse.sparse_limit(unit.units, unit.width, dtype, n)
    goes_dense = unit.partial_sums[0] > top
    capacity = planned_capacity(unit.partial_sums[0], unit.units if goes_dense else max(1, top))
    agreeing = Exchange("all_gather", (n - 1) * WORD_BYTES)
    listing = Work("partition", leaf.nbytes, unit.nonzero * unit.width * dtype.itemsize)
    counting = Work("partition", leaf.nbytes, 0)  # counts the non-zero units of the sum, for Info
    if goes_dense:
        ordered = next(_dense(leaf, n))
        exchanges, work = ordered.exchanges, ordered.work
        if top > 0:  # it lists units and agrees on the sizes before it goes dense
            exchanges, work = (agreeing, *exchanges), (listing, *work, counting)
        return Candidate("agsparse", unit.width, (capacity,), exchanges, work)
    message = coo.message_bytes(capacity, unit.width, dtype)
    exchanges = (agreeing, Exchange("all_gather", (n - 1) * message))
    summing, copied = Work("aggregate", leaf.nbytes, n * listing.nonzero), Work("copy", (n + 1) * message, 0)
    work = (listing, summing, copied, counting)
    return Candidate("agsparse", unit.width, (capacity,), exchanges, work)


def _sparcml(unit: UnitProfile, leaf: LeafProfile, n: int) -> Candidate:
    """Equation 2, with partial sums in their accumulation dtype; dense once two of them could fill the dense tensor.

    Every sum counts as full as the fullest of its stage: workers that differ much may go on sparse, and send less.
    """
    dtype = np.dtype(accumulator_dtype(np.dtype(leaf.dtype)))
    unit_bytes = unit.width * dtype.itemsize
    whole = unit.units * unit_bytes
    dense_threshold = sparcml.dense_threshold(unit.units, unit_bytes)
    capacities, exchanges, work, dense = [], [], [], False
    for count, stage in zip(unit.partial_sums, sparcml.stages(n), strict=False):
        dense = dense or count >= dense_threshold
        capacity = planned_capacity(count, unit.units if dense else max(1, dense_threshold - 1))
        message = whole if dense else coo.message_bytes(capacity, unit.width, dtype)
        capacities.append(capacity)
        source, target = stage.pairs[0]
        between = Exchange("permute" if stage.kind == "double" else "send", message, abs(source - target))
        exchanges += [Exchange("all_gather", (n - 1) * WORD_BYTES), between]
        held = count * unit_bytes
        work.append(Work("partition", whole, held))
        if dense:
            work.append(Work("sum", 2 * whole, 0))
        else:
            work += [Work("aggregate", whole, 2 * held), Work("copy", 4 * message, 0)]
        dense = dense or 2 * count >= dense_threshold
    work.append(Work("partition", leaf.nbytes, 0))  # counts the non-zero units of the sum, for Info
    return Candidate("sparcml", unit.width, tuple(capacities), tuple(exchanges), tuple(work))
