"""SparCML: Hierarchical Centralization by recursive doubling, with incremental aggregation and a switch to dense."""

from functools import cache, partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from zen_jax import _axis, errors, kernels
from zen_jax._sums import accumulator_dtype, divide
from zen_jax._typing import Array, AxisName
from zen_jax.formats import coo
from zen_jax.formats.words import WORD_BYTES
from zen_jax.info import Info, density, make_info
from zen_jax.schemes.dense import dense_bytes
from zen_jax.schemes.ladder import ladder, rounds, rung_for
from zen_jax.schemes.options import ReduceOptions

# Each of log2 n stages compiles its own ladder: with rungs as close as in schemes with one exchange, compiling would
# take log2 n times as long.
UNPLANNED_RATIO = 2.0


class _Stage(NamedTuple):
    """Who sends to whom, as (source, target). Only the first `alive` workers hold sums that matter."""

    kind: str  # "fold", "double" or "return"
    pairs: tuple[tuple[int, int], ...]
    alive: int


@cache
def stages(n: int) -> tuple[_Stage, ...]:
    """Workers beyond a power of two first fold their sums into another worker's, and get the result back at the end.

    >>> [(stage.kind, stage.pairs) for stage in stages(3)]
    [('fold', ((2, 0),)), ('double', ((0, 1), (1, 0))), ('return', ((0, 2),))]
    """
    power = 1 << (n.bit_length() - 1)
    extra = tuple((worker, worker - power) for worker in range(power, n))
    doubling = tuple(
        _Stage("double", tuple((worker, worker ^ 1 << bit) for worker in range(power)), power)
        for bit in range(power.bit_length() - 1)
    )
    if not extra:
        return doubling
    back = tuple((target, source) for source, target in extra)
    return _Stage("fold", extra, n), *doubling, _Stage("return", back, power)


def dense_threshold(units: int, unit_bytes: int) -> int:
    """The fewest non-zero units of `unit_bytes` whose message is no smaller than the dense tensor of `units`."""
    return -(-units * unit_bytes // (WORD_BYTES + unit_bytes))


def sparcml(x: Array, axis_name: AxisName, options: ReduceOptions) -> tuple[Array, Info]:
    """All-reduces units [U, m]. Every worker adds the same partial sums in the same order, that of its tree.

    Partial sums travel in the dtype that they accumulate in, so 16-bit floats move as float32 and round once. If two
    workers' units together could fill as many bytes as the dense tensor, all workers' partial sums go dense, because
    all must run one collective. Returning the result to the workers beyond a power of two counts as pull, all else as
    push: for each stage, the bytes that one of its workers sends.

    Source: SparCML (SC 2019), SSAR recursive doubling; ZEN (OSDI 2025), sections 2.3 and 2.4.
    """
    n = _axis.axis_size(axis_name)
    units = x.shape[0]
    errors.check_units(units, "scheme='sparcml'", "scheme='auto'")
    total = x.astype(accumulator_dtype(x.dtype))
    fills, done = jnp.zeros((), bool), []
    for number, stage in enumerate(stages(n)):
        total, sent = _run_stage(stage, total, fills, options, number, axis_name)
        fills = sent.dense | sent.fills
        done.append((stage.kind == "return", sent))
    reduced = _axis.replicated(divide(total, options.divisor(n), x.dtype), axis_name)
    return reduced, make_info(
        density=density(done[0][1].counts, units),
        density_reduced=density(kernels.nonzero_units(reduced), units),
        bytes_pushed=sum(sent.bytes for pull, sent in done if not pull),
        bytes_pulled=sum(sent.bytes for pull, sent in done if pull),
        bytes_dense=2 * dense_bytes(x.size, x.dtype, n),
        rounds=jnp.max(jnp.stack([sent.rounds for _, sent in done])),
        dense_taken=jnp.any(jnp.stack([sent.dense for _, sent in done])),
    )


class _Sent(NamedTuple):
    """What a stage did: scalars, except for the counts."""

    counts: Array  # int32 [n], each worker's non-zero units before the stage
    bytes: Array  # that one worker sent
    rounds: Array
    dense: Array  # whether sums travelled dense
    fills: Array  # whether two workers' units together could fill as many bytes as the dense tensor


class _Role(NamedTuple):
    """What this worker does in a stage: bools."""

    alive: Array  # whether its sum matters
    receives: Array
    replaces: Array  # whether what it receives takes the place of its sum
    mine_first: Array  # the lower worker's sum goes first on both sides: bits are equal even where NaNs meet


def _role(stage: _Stage, n: int, axis_name: AxisName) -> _Role:
    sources = np.arange(n, dtype=np.int32)
    for source, target in stage.pairs:
        sources[target] = source
    me = lax.axis_index(axis_name)
    source = jnp.asarray(sources)[me]
    receives = source != me
    return _Role(me < stage.alive, receives, receives & (stage.kind == "return"), me < source)


def _run_stage(
    stage: _Stage, total: Array, go_dense: Array, options: ReduceOptions, number: int, axis_name: AxisName
) -> tuple[Array, _Sent]:
    """The total after a stage, sent dense where `go_dense` says so or no sparse message could hold it."""
    n = _axis.axis_size(axis_name)
    units, width = total.shape
    planned = options.planned_capacity(number)
    unit_bytes = width * total.dtype.itemsize
    top = max(1, dense_threshold(units, unit_bytes) - 1)
    rungs = ladder(top, planned, unit_bytes, UNPLANNED_RATIO)

    role = _role(stage, n, axis_name)
    positions, values, count = kernels.partition(total, 1, top)
    counts = _axis.all_gather(jnp.where(role.alive, count[0], 0), axis_name)
    # A permute involves every device of the program, including those along other axes.
    most = _axis.pmax_over_other_axes(
        options.pmax_over_machine(counts), _axis.combined_axes(axis_name, options.intra_axis)
    )

    def sparse(capacity: int, total: Array, positions: Array, values: Array, count: Array) -> Array:
        message = coo.pack(positions, values, count, capacity)
        theirs = coo.unpack(_axis.permute(message, axis_name, stage.pairs), capacity, width, total.dtype)
        mine = positions[:, :capacity], values[:, :capacity], jnp.where(role.replaces, 0, count)
        theirs = *theirs[:2], jnp.where(role.receives, theirs[2], 0)
        pair = (
            jnp.where(role.mine_first, jnp.concatenate([a, b]), jnp.concatenate([b, a]))
            for a, b in zip(mine, theirs, strict=True)
        )
        return kernels.aggregate(*pair, units)

    def dense(total: Array, *_: Array) -> Array:
        theirs = _axis.permute(total, axis_name, stage.pairs)
        summed = jnp.where(role.mine_first, total, theirs) + jnp.where(role.mine_first, theirs, total)
        return jnp.where(role.replaces, theirs, jnp.where(role.receives, summed, total))

    rung = jnp.where(go_dense, len(rungs), rung_for(jnp.max(most), rungs))
    total = lax.switch(rung, [*(partial(sparse, c) for c in rungs), dense], total, positions, values, count)
    message_bytes = [coo.message_bytes(c, width, total.dtype) for c in rungs] + [units * unit_bytes]
    first, second = np.array(stage.pairs).T
    return total, _Sent(
        counts,
        bytes=jnp.array(message_bytes, jnp.float32)[rung] + (n - 1) * WORD_BYTES,
        rounds=rounds(jnp.where(go_dense, 0, jnp.max(most)), planned),
        dense=rung == len(rungs),
        fills=jnp.any(most[first] >= dense_threshold(units, unit_bytes) - most[second]),  # their sum may exceed int32
    )
