"""AGsparse: one all-gather of every worker's COO, which every worker sums; traffic grows with the workers."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax

from zen_jax import _axis, kernels
from zen_jax._typing import Array, AxisName
from zen_jax.formats import coo
from zen_jax.formats.words import WORD_BYTES
from zen_jax.info import Info, make_info
from zen_jax.schemes.dense import dense_bytes
from zen_jax.schemes.ladder import ladder, rounds, rung_for
from zen_jax.schemes.request import Request
from zen_jax.sparse import SparseGradient, listed

EXCHANGES = 1


def agsparse(x: Array | SparseGradient, axis_name: AxisName, request: Request) -> tuple[Array, Info]:
    """All-reduces units [U, m]; sums run in worker order. Without servers all traffic is push.

    Source: ZEN (OSDI 2025), sections 2.3 and 2.4.
    """
    n = _axis.axis_size(axis_name)
    units, width = x.shape
    positions, values, counts = listed(x)
    rungs = ladder(positions.shape[1], request.planned(0), width * x.dtype.itemsize)
    counts_by_worker = _axis.all_gather(counts[0], axis_name)
    fullest = request.agreed(jnp.max(counts_by_worker))

    def gather(capacity: int) -> Callable[[Array, Array, Array], Array]:
        def branch(positions: Array, values: Array, counts: Array) -> Array:
            message = coo.pack(positions[:, :capacity], values[:, :capacity], counts)
            gathered = _axis.all_gather(message[0], axis_name)
            received = coo.unpack(gathered, capacity, width, x.dtype)
            return kernels.aggregate(*received, units, divisor=request.divisor(n))

        return branch

    rung = rung_for(fullest, rungs)
    reduced = lax.switch(rung, [gather(c) for c in rungs], positions, values, counts)
    message_bytes = jnp.array([coo.message_bytes(c, width, x.dtype) + WORD_BYTES for c in rungs], jnp.float32)
    return reduced, make_info(
        density=jnp.mean(counts_by_worker.astype(jnp.float32)) / units,
        density_reduced=kernels.partition(reduced, 1, 1)[2][0] / units,
        bytes_pushed=(n - 1) * message_bytes[rung],
        bytes_dense=2 * dense_bytes(x.size, x.dtype, n),
        rounds=rounds(fullest, request.planned(0)),
    )
