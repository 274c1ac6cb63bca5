"""OmniReduce: even contiguous ranges, whose non-zero blocks of 256 elements are sent; inherently imbalanced."""

import jax.numpy as jnp

from zen_jax import _axis
from zen_jax._typing import Array, AxisName
from zen_jax.formats.tensor_block import from_blocks, to_blocks
from zen_jax.info import Info
from zen_jax.schemes.dense import dense_bytes
from zen_jax.schemes.options import ReduceOptions
from zen_jax.schemes.sparse_ps import sparse_ps


def omnireduce(x: Array, axis_name: AxisName, options: ReduceOptions) -> tuple[Array, Info]:
    """All-reduces units [U, m] by blocks, whatever the unit: `Info` and capacities count blocks.

    Source: OmniReduce (SIGCOMM 2021); ZEN (OSDI 2025), sections 2.3 and 2.4.
    """
    # A non-zero block with its index is COO whose unit is the block.
    blocks, info = sparse_ps(to_blocks(x), axis_name, options)
    # The padding of the last block is not part of the dense tensor.
    dense = 2 * dense_bytes(x.size, x.dtype, _axis.axis_size(axis_name))
    return from_blocks(blocks, x.shape), info._replace(bytes_dense=jnp.float32(dense))
