"""Dense all-reduce: every element travels."""

import jax.numpy as jnp
from jax import lax

from zen_jax import _axis
from zen_jax._sums import accumulator_dtype, sum_in_order
from zen_jax._typing import Array, AxisName
from zen_jax.info import Info, make_info
from zen_jax.schemes.options import ReduceOptions


def dense_bytes(elements: int, dtype: jnp.dtype, n: int) -> int:
    """Bytes that one worker pushes in a dense all-reduce, and also pulls: the n-ths (rounded up) of all others."""
    return (n - 1) * -(-elements // n) * jnp.dtype(dtype).itemsize


def dense(x: Array, axis_name: AxisName, options: ReduceOptions) -> tuple[Array, Info]:
    """`psum` or `pmean`. 16-bit floats take `dense_ordered`, which sums them in float32 at 16-bit traffic."""
    if accumulator_dtype(x.dtype) != x.dtype:
        return dense_ordered(x, axis_name, options)
    total = lax.psum(x, axis_name) if options.op == "sum" else lax.pmean(x, axis_name)
    return total, _info(x.size, x.dtype, _axis.axis_size(axis_name))


def dense_ordered(x: Array, axis_name: AxisName, options: ReduceOptions) -> tuple[Array, Info]:
    """Dense all-reduce that sums in worker order: bitwise the result of `zen`, at the traffic of `psum`."""
    n = _axis.axis_size(axis_name)
    chunks = jnp.pad(x.reshape(-1), (0, -x.size % n)).reshape(n, -1)
    total = sum_in_order(_axis.all_to_all(chunks, axis_name), options.divisor(n))
    return _axis.all_gather(total, axis_name).reshape(-1)[: x.size].reshape(x.shape), _info(x.size, x.dtype, n)


def _info(elements: int, dtype: jnp.dtype, n: int) -> Info:
    moved = dense_bytes(elements, dtype, n)
    return make_info(bytes_pushed=moved, bytes_pulled=moved, bytes_dense=2 * moved, dense_taken=1.0)
