"""Dense all-reduce: every element travels."""

import jax.numpy as jnp
from jax import lax

from zen_jax import _axis
from zen_jax._typing import Array, AxisName
from zen_jax.info import Info, make_info
from zen_jax.kernels.aggregate import accumulator_dtype

UNROLLED_WORKERS = 32


def dense_bytes(elements: int, dtype: jnp.dtype, n: int) -> float:
    """Bytes that one worker pushes in a dense all-reduce, and pulls again: all but its own n-th."""
    return (n - 1) / n * elements * jnp.dtype(dtype).itemsize


def dense(x: Array, axis_name: AxisName, *, op: str) -> Array:
    """`psum` or `pmean`. 16-bit floats take `dense_ordered`, which sums them in float32 at 16-bit traffic."""
    if accumulator_dtype(x.dtype) != x.dtype:
        return dense_ordered(x, axis_name, op=op)
    return lax.psum(x, axis_name) if op == "sum" else lax.pmean(x, axis_name)


def dense_ordered(x: Array, axis_name: AxisName, *, op: str) -> Array:
    """Dense all-reduce that sums in worker order: the bits that `zen` gives, at the traffic of `psum`."""
    n = _axis.axis_size(axis_name)
    chunks = jnp.pad(x.reshape(-1), (0, -x.size % n)).reshape(n, -1)
    received = _axis.all_to_all(chunks, axis_name).astype(accumulator_dtype(x.dtype))
    # Unrolled, the sums fuse into one pass over what was received.
    unroll = n <= UNROLLED_WORKERS
    total = lax.fori_loop(1, n, lambda worker, acc: acc + received[worker], received[0], unroll=unroll)
    # Zeros do not travel in zen, so no sum there is -0.0. XLA would fold an addition of +0 away.
    total = jnp.where(total == 0, jnp.zeros_like(total), total)
    total = (total * (1 / total.dtype.type(n)) if op == "mean" else total).astype(x.dtype)
    return _axis.all_gather(total, axis_name).reshape(-1)[: x.size].reshape(x.shape)


def dense_info(elements: int, dtype: jnp.dtype, n: int) -> Info:
    moved = dense_bytes(elements, dtype, n)
    return make_info(bytes_pushed=moved, bytes_pulled=moved, bytes_dense=2 * moved, dense_taken=1.0)
