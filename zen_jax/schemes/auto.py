"""The default: the scheme that moves the least, unless a plan says otherwise."""

from zen_jax import _axis, errors
from zen_jax._typing import Array, AxisName
from zen_jax.info import Info
from zen_jax.schemes.agsparse import agsparse
from zen_jax.schemes.options import ReduceOptions
from zen_jax.schemes.zen import zen
from zen_jax.sparse import SparseGradient

_GATHERED_BYTES = 16  # the smallest units that three workers gather: indices would outweigh the bitmaps of a pull


def auto(x: Array | SparseGradient, axis_name: AxisName, options: ReduceOptions) -> tuple[Array, Info]:
    """All-reduces units [U, m] by Balanced Parallelism, and dense where that could move more bytes.

    Between two workers, and among three for units of at least 16 bytes, it runs agsparse unless capacities were
    planned: one gather of what the others have moves about as much as push and pull together, in one exchange and with
    bitwise the same result.

    Source: ZEN (OSDI 2025), sections 2.3 and 3.
    """
    n, (units, width) = _axis.axis_size(axis_name), x.shape
    few = n == 2 or (n == 3 and width * x.dtype.itemsize >= _GATHERED_BYTES)
    if few and units <= errors.MAX_UNITS and all(capacity is None for capacity in options.capacity):
        return agsparse(x, axis_name, options)
    return zen(x, axis_name, options, dense_fallback=True)
