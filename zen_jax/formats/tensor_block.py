"""Tensor blocks: runs of 256 elements, of which only those with a non-zero are sent.

Source: OmniReduce (SIGCOMM 2021); ZEN (OSDI 2025), section 3.3.1.
"""

import math

import jax.numpy as jnp

from zen_jax._typing import Array

BLOCK = 256


def to_blocks(x: Array) -> Array:
    """Any shape to [ceil(elements / 256), 256], the last block padded with zeros."""
    return jnp.pad(x.reshape(-1), (0, -x.size % BLOCK)).reshape(-1, BLOCK)


def from_blocks(blocks: Array, shape: tuple[int, ...]) -> Array:
    """The inverse of `to_blocks`."""
    return blocks.reshape(-1)[: math.prod(shape)].reshape(shape)
