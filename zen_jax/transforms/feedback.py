"""What the sparsifiers share: residuals, leaf by leaf, and the share to send."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp

from zen_jax import errors
from zen_jax._typing import Array, PyTree
from zen_jax.kernels import list_largest, send_largest
from zen_jax.kernels.error_feedback import residual_dtype
from zen_jax.planning.buckets import DENSE_BELOW
from zen_jax.sparse import SparseGradient
from zen_jax.trees import is_sparse_leaf, named_leaves


def zeros(params: PyTree) -> PyTree:
    """An empty residual for every leaf: in its dtype, or in float32 for 16-bit floats.

    In 16 bits small gradients would vanish beside a residual that has grown, and with them what they add up to.
    """
    for name, leaf in named_leaves(params):
        errors.check_float(name, leaf.dtype)
    return jax.tree.map(lambda leaf: jnp.zeros_like(leaf, residual_dtype(jnp.result_type(leaf))), params)


def map_leaves(fun: Callable[..., tuple], updates: PyTree, *states: PyTree) -> tuple[PyTree, ...]:
    """fun(name, update, *state) -> results for every leaf; returns a tree of each result, of the updates' structure."""
    for name, leaf in named_leaves(updates):
        if is_sparse_leaf(leaf):
            raise ValueError(f"{name} is a {type(leaf).__name__}, sparse already. Leave it out with optax.masked.")
    updates = jax.tree.map(jnp.asarray, updates)
    treedef = jax.tree.structure(updates)
    columns = [treedef.flatten_up_to(tree) for tree in (updates, *states)]
    names = [name for name, _ in named_leaves(updates)]
    for name, leaf, state in zip(names, *columns[:2], strict=True):
        errors.check_float(name, leaf.dtype)
        if leaf.shape != state.shape:
            raise ValueError(
                f"{name} has shape {leaf.shape}, but the state was made for {state.shape}. "
                "Call init with the parameters that the updates belong to."
            )
    rows = [fun(name, *row) for name, row in zip(names, zip(*columns, strict=True), strict=True)]
    return tuple(treedef.unflatten(column) for column in zip(*rows, strict=True)) if rows else (updates, *states)


def send(
    update: Array, residual: Array, least: Array | int, most: Array | int, *, compact: bool, **how: Any
) -> tuple[Array | SparseGradient, Array, Array | None]:
    """As `send_largest`; compact, a leaf that `synchronize` does not fuse is sent as a list with room for `most`."""
    if not compact or update.nbytes < DENSE_BELOW:
        return send_largest(update, residual, least, most, **how)
    listed, residual, velocity = list_largest(update, residual, least, most, min(most, update.size), **how)
    return SparseGradient(*listed, update.shape), residual, velocity


def kept(density: float, size: int) -> int:
    """ceil(density * size), with the density taken as it is written.

    >>> kept(0.07, 100), kept(0.001, 5), kept(0.01, 0)
    (7, 1, 0)
    """
    return math.ceil(Fraction(str(density)) * size)


def check_density(density: Any) -> float:
    """The density as a float, or a ValueError."""
    if not errors.is_number(density) or not 0 < density <= 1:
        raise ValueError(f"density={density!r} must be a number above 0 and at most 1: the share of elements to send.")
    return float(density)
