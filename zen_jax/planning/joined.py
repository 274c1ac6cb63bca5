"""The profile of several leaves that are sent as one, from their own profiles."""

import math
from collections.abc import Iterable, Sequence

from zen_jax.planning.sparsity import LeafProfile, UnitProfile


def joined_vector(leaves: Sequence[LeafProfile]) -> LeafProfile:
    """Leaves of one dtype as a vector of all their elements, of which nothing is known: it can only be sent dense."""
    return LeafProfile((sum(leaf.elements for leaf in leaves),), leaves[0].dtype)


def joined_table(leaves: Sequence[LeafProfile]) -> LeafProfile:
    """Leaves of one dtype and row length as a table of all their rows.

    It has the unit widths that divide a row and were measured for every leaf. What the leaves' profiles leave open is
    the worst that it could be, except for the fullest hashed messages: where a leaf exceeds its mean, others do not.
    """
    columns = math.prod(leaves[0].shape[1:])
    widths = set.intersection(*(set(leaf.by_width) for leaf in leaves))
    shape = (sum(leaf.shape[0] for leaf in leaves), columns)
    units = {width: [leaf.by_width[width] for leaf in leaves] for width in widths if columns % width == 0}
    return LeafProfile(shape, leaves[0].dtype, {width: _joined(parts) for width, parts in units.items()})


def _joined(parts: Sequence[UnitProfile]) -> UnitProfile:
    units, n = sum(part.units for part in parts), len(parts[0].unions)
    unions = tuple(map(sum, zip(*(part.unions for part in parts), strict=True)))
    partial_sums = tuple(map(sum, zip(*(part.partial_sums for part in parts), strict=True)))
    of_one, of_all, range_size = partial_sums[0], partial_sums[-1], -(-units // n)
    shared = sum(part.overlap * part.nonzero for part in parts)
    return UnitProfile(
        width=parts[0].width,
        units=units,
        unions=unions,
        overlap=shared / unions[0] if unions[0] else 0.0,
        partition_skewness={count: float(count) for count in parts[0].partition_skewness},
        partial_sums=partial_sums,
        push=min(range_size, _fullest((part.push, part.partial_sums[0] / n) for part in parts)),
        pull=min(range_size, _fullest((part.pull, part.partial_sums[-1] / n) for part in parts)),
        contiguous_push=min(range_size, of_one),
        contiguous_pull=min(range_size, of_all),
    )


def _fullest(parts: Iterable[tuple[int, float]]) -> int:
    """The fullest message, given that and the mean one of every leaf: leaves are hashed independently of each other."""
    fullest, means = map(list, zip(*parts, strict=True))
    beyond = math.hypot(*(most - mean for most, mean in zip(fullest, means, strict=True)))
    return math.ceil(sum(means) + beyond)
