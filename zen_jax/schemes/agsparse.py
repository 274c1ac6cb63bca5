"""AGsparse: one all-gather of every worker's COO, summed on every worker; traffic and memory grow with the workers."""

from functools import partial

import jax.numpy as jnp
import numpy as np
from jax import lax

from zen_jax import _axis, errors, kernels
from zen_jax._typing import Array, AxisName
from zen_jax.formats import coo
from zen_jax.formats.words import WORD_BYTES
from zen_jax.info import Info, density, make_info
from zen_jax.schemes.dense import dense_bytes, dense_ordered
from zen_jax.schemes.ladder import ladder, rounds, rung_for
from zen_jax.schemes.options import ReduceOptions
from zen_jax.sparse import SparseGradient, to_coo
from zen_jax.trees import densified


def agsparse(x: Array | SparseGradient, axis_name: AxisName, options: ReduceOptions) -> tuple[Array, Info]:
    """All-reduces units [U, m]; sums run in worker order. Without servers all traffic is push.

    Where gathering would take more bytes than a dense all-reduce, and hence much more memory than the gradient,
    `dense_ordered` takes over.

    Source: ZEN (OSDI 2025), sections 2.3 and 2.4.
    """
    n = _axis.axis_size(axis_name)
    units, width = x.shape
    most = x.room if isinstance(x, SparseGradient) else units
    top = min(most, sparse_limit(units, width, x.dtype, n))
    if top == 0:
        return dense_ordered(densified(x), axis_name, options)
    errors.check_units(units, "scheme='agsparse'", "scheme='auto'")
    positions, values, counts = to_coo(x, top)
    rungs = ladder(top, options.planned_capacity(0), width * x.dtype.itemsize)
    counts_by_worker = _axis.all_gather(counts[0], axis_name)
    fullest = options.pmax_over_machine(jnp.max(counts_by_worker))

    def gather(capacity: int, _: Array | SparseGradient, positions: Array, values: Array, counts: Array) -> Array:
        message = coo.pack(positions, values, counts, capacity)
        gathered = _axis.all_gather(message[0], axis_name)
        received = coo.unpack(gathered, capacity, width, x.dtype)
        return kernels.aggregate(*received, units, divisor=options.divisor(n))

    def dense(x: Array | SparseGradient, *_: Array) -> Array:
        return dense_ordered(densified(x), axis_name, options)[0]

    branches = [partial(gather, c) for c in rungs] + ([dense] if top < most else [])
    rung = rung_for(fullest, rungs)
    reduced = lax.switch(rung, branches, x, positions, values, counts)
    dense_taken, moved = rung == len(rungs), np.float32(dense_bytes(x.size, x.dtype, n))  # may exceed int32
    pushed = jnp.array([*((n - 1) * coo.message_bytes(c, width, x.dtype) for c in rungs), moved], jnp.float32)
    return reduced, make_info(
        density=density(counts_by_worker, units),
        density_reduced=density(kernels.nonzero_units(reduced), units),
        bytes_pushed=pushed[rung] + (n - 1) * WORD_BYTES,
        bytes_pulled=jnp.where(dense_taken, moved, 0),
        bytes_dense=2 * moved,
        rounds=rounds(fullest, options.planned_capacity(0)),
        dense_taken=dense_taken,
    )


def sparse_limit(units: int, width: int, dtype: jnp.dtype, n: int) -> int:
    """The most units per worker for which gathering cannot move more bytes than a dense all-reduce.

    >>> [sparse_limit(1000, 16, jnp.float32, n) for n in (2, 4, 16)]
    [941, 470, 117]
    """
    unit_bytes = width * jnp.dtype(dtype).itemsize
    budget = 2 * units * unit_bytes // n - 2 * WORD_BYTES  # less the count, and the padding of 16-bit floats
    return min(units, max(0, budget // (WORD_BYTES + unit_bytes)))
