"""Error feedback: what a sparsifier does not send stays in a residual, and nothing is lost between the two."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from zen_jax import errors
from zen_jax._typing import Array, PyTree
from zen_jax.trees import named_leaves


def zeros(params: PyTree) -> PyTree:
    """An empty residual for every leaf: in its dtype, or in float32 for 16-bit floats.

    In 16 bits small gradients would vanish beside a residual that has grown, and with them what they add up to.
    """
    for name, leaf in named_leaves(params):
        errors.check_float(name, leaf.dtype)
    return jax.tree.map(lambda leaf: jnp.zeros_like(leaf, _residual_dtype(leaf.dtype)), params)


def _residual_dtype(dtype: Any) -> Any:
    return jnp.promote_types(dtype, jnp.float32)


def add(update: Array, residual: Array) -> Array:
    """What is to be sent in total, in the residual's dtype."""
    return update.astype(residual.dtype) + residual


def split(total: Array, chosen: Array, dtype: Any) -> tuple[Array, Array]:
    """Splits `total` into what is sent, in `dtype`, and what stays: sent + residual == total, to the bit.

    Sent are the chosen elements and those that are not finite: NaN and infinities reach whoever guards the training,
    and the residual is always finite. What rounding to a 16-bit `dtype` cuts off stays too.

    >>> import jax.numpy as jnp
    >>> sent, residual = split(jnp.array([1.0, jnp.inf, 3.0]), jnp.array([False, False, True]), jnp.float32)
    >>> sent.tolist(), residual.tolist()
    ([0.0, inf, 3.0], [1.0, 0.0, 0.0])
    """
    finite = jnp.isfinite(total)
    sent = jnp.where(chosen | ~finite, total, jnp.zeros_like(total))
    if dtype == total.dtype:
        return sent, jnp.where(chosen | ~finite, jnp.zeros_like(total), total)
    info = jnp.finfo(dtype)
    limit = total.dtype.type(info.max)
    sent = jnp.where(finite, jnp.clip(sent, -limit, limit), sent)
    # Unlike a pair of casts, XLA never takes reduce_precision for the identity.
    sent = lax.reduce_precision(sent, info.nexp, info.nmant)
    return sent.astype(dtype), jnp.where(finite, total - sent, jnp.zeros_like(total))


def map_leaves(fun: Callable[..., tuple], updates: PyTree, *states: PyTree) -> tuple[PyTree, ...]:
    """fun(name, update, *state) -> results for every leaf; returns a tree of each result, of the updates' structure."""
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


def kept(density: float, size: int) -> int:
    """ceil(density * size), with the density taken as it is written.

    >>> kept(0.07, 100), kept(0.001, 5), kept(0.01, 0)
    (7, 1, 0)
    """
    return math.ceil(Fraction(str(density)) * size)


def check_density(density: Any) -> float:
    """The density as a float, or a ValueError."""
    if isinstance(density, bool) or not isinstance(density, int | float) or not 0 < density <= 1:
        raise ValueError(f"density={density!r} must be a number above 0 and at most 1: the share of elements to send.")
    return float(density)
