"""OmniReduce: even contiguous ranges, whose non-zero blocks of 256 elements are sent; inherently imbalanced."""

import numpy as np

from zen_jax._typing import Array, AxisName
from zen_jax.formats.tensor_block import from_blocks, to_blocks
from zen_jax.info import Info
from zen_jax.schemes.options import ReduceOptions, Scheme


def by_blocks(run: Scheme) -> Scheme:
    """The scheme that runs `run` on blocks, whatever the unit: `Info` and capacities count blocks.

    A non-zero block with its index is COO whose unit is the block, so `by_blocks(sparse_ps)` is OmniReduce.

    Source: OmniReduce (SIGCOMM 2021); ZEN (OSDI 2025), sections 2.3 and 2.4.
    """

    def reduce(x: Array, axis_name: AxisName, options: ReduceOptions) -> tuple[Array, Info]:
        units = to_blocks(x)
        blocks, info = run(units, axis_name, options)
        # The padding of the last block is not part of the dense tensor.
        dense = info.bytes_dense * np.float32(x.size / units.size)
        return from_blocks(blocks, x.shape), info._replace(bytes_dense=dense)

    return reduce
