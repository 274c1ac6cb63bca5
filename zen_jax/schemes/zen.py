"""Balanced Parallelism: hashed servers, COO messages to them, hash bitmaps back."""

from functools import partial

from zen_jax._typing import Array, AxisName
from zen_jax.info import Info
from zen_jax.schemes.options import ReduceOptions
from zen_jax.schemes.partitioning import HASHES
from zen_jax.schemes.servers import reduce_on_servers
from zen_jax.sparse import SparseGradient


def zen(
    x: Array | SparseGradient, axis_name: AxisName, options: ReduceOptions, *, dense_fallback: bool = False
) -> tuple[Array, Info]:
    """All-reduces units [U, m] over servers that a hash keeps balanced; see `servers.reduce_on_servers`.

    Source: ZEN (OSDI 2025), section 3.
    """
    hashed = partial(HASHES[options.hash], seed=options.seed)
    return reduce_on_servers(x, axis_name, hashed, options, dense_fallback=dense_fallback)
