"""The default: the scheme that moves the least, unless a plan says otherwise."""

from zen_jax import _axis
from zen_jax._typing import Array, AxisName
from zen_jax.errors import MAX_UNITS
from zen_jax.info import Info
from zen_jax.schemes.agsparse import agsparse
from zen_jax.schemes.options import ReduceOptions
from zen_jax.schemes.zen import zen
from zen_jax.sparse import SparseGradient

GATHERING_WORKERS = 3  # the most among which one gather is faster; docs/benchmarks.md has measurements

def auto(x: Array | SparseGradient, axis_name: AxisName, options: ReduceOptions) -> tuple[Array, Info]:
    """All-reduces units [U, m] by Balanced Parallelism, and dense where that could move more bytes.

    Among two or three workers, unless capacities were planned, it runs agsparse: one gather of what the others have moves
    about as much as push and pull together, in one exchange and with bitwise the same result.

    Source: ZEN (OSDI 2025), sections 2.3 and 3.
    """
    capacities_known = any(capacity is not None for capacity in options.capacity)
    if _axis.axis_size(axis_name) <= GATHERING_WORKERS and not capacities_known and x.shape[0] <= MAX_UNITS:
        return agsparse(x, axis_name, options)
    return zen(x, axis_name, options, dense_fallback=True)
