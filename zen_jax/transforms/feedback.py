"""What the sparsifiers have in common: residuals, leaf by leaf, and the share of elements to send."""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from zen_jax import _axis, errors
from zen_jax._sums import accumulator_dtype
from zen_jax._typing import Array, AxisName, PyTree
from zen_jax.buckets import DENSE_BELOW
from zen_jax.kernels import list_largest, send_largest
from zen_jax.kernels.send_largest import dense_to_coo
from zen_jax.kernels.send_largest import reference as send_reference
from zen_jax.selection import top_k_mask
from zen_jax.sparse import SparseGradient
from zen_jax.trees import is_sparse_leaf, named_leaves


def zeros(params: PyTree) -> PyTree:
    """A residual of zeros for every leaf: in its dtype, or in float32 for 16-bit floats.

    In 16 bits, small gradients added to a large residual would be rounded away, and so would their sum.
    """
    for name, leaf in named_leaves(params):
        errors.check_float(name, leaf.dtype)
    return jax.tree.map(lambda leaf: jnp.zeros_like(leaf, accumulator_dtype(jnp.result_type(leaf))), params)


def memory_alone(
    kind: type, leaf: Callable[[str, Array, Array], tuple[Array | SparseGradient, Array]]
) -> optax.GradientTransformationExtraArgs:
    """The sparsifier whose state is a residual alone: leaf(name, update, residual) -> what is sent, new residual."""

    def update(updates: PyTree, state: Any, params: PyTree = None, **_) -> tuple[PyTree, Any]:
        del params
        check_state(state, kind)
        sent, residual = map_leaves(leaf, updates, state.residual)
        return sent, kind(residual)

    return optax.GradientTransformationExtraArgs(lambda params: kind(zeros(params)), update)


def check_state(state: Any, kind: type) -> None:
    """Raises a ValueError for a state that is not of the transformation's kind, or of several workers."""
    errors.check_instance("state", state, kind, "Call init of this very transformation.")
    if "count" in kind._fields:
        errors.check_shape("state.count", jnp.shape(state.count), ())


def dense_leaves(updates: PyTree) -> list[tuple[str, Array]]:
    """All leaves with their names; a ValueError for one that is sparse or not a float."""
    leaves = named_leaves(updates)
    for name, leaf in leaves:
        if is_sparse_leaf(leaf):
            raise ValueError(
                f"{name} is a {type(leaf).__name__}, which is already sparse. Leave it out with optax.masked."
            )
        errors.check_float(name, leaf.dtype)
    return [(name, jnp.asarray(leaf)) for name, leaf in leaves]


def map_leaves(fun: Callable[..., tuple], updates: PyTree, *states: PyTree) -> tuple[PyTree, ...]:
    """Maps fun(name, update, *state) -> results over all leaves; returns a tree like the updates for each result.

    Empty leaves and their states are passed through.

    Refuses what `synchronize` would: what is sent varies over the axes of the state, and is whole, whatever the update.
    """
    treedef, leaves, results = jax.tree.structure(updates), dense_leaves(updates), []
    try:
        held_by_leaf = [treedef.flatten_up_to(state) for state in states]
    except ValueError as error:
        raise ValueError(
            "the state was made for a tree of another structure. Call init with the parameters that the updates "
            "belong to."
        ) from error
    for (name, leaf), *state in zip(leaves, *held_by_leaf, strict=True):
        _axis.check_not_sharded(name, leaf)
        for held in state:
            if reduced_over := tuple(_axis.varying(held) - _axis.varying(leaf)):
                _axis.check_not_reduced(name, leaf, reduced_over)
            if jnp.shape(held) != leaf.shape:
                raise ValueError(
                    f"{name} has shape {leaf.shape}, but the state was made for {jnp.shape(held)}. "
                    "Call init with the parameters that the updates belong to."
                )
            if held.dtype != accumulator_dtype(leaf.dtype):
                raise ValueError(
                    f"{name} has dtype {leaf.dtype}, but the state was made for parameters of another: {held.dtype}. "
                    "Call init with parameters of the updates' dtype."
                )
        results.append(fun(name, leaf, *state) if leaf.size else (leaf, *state))
    return tuple(map(treedef.unflatten, zip(*results, strict=True))) if results else (updates, *states)


def send(
    update: Array,
    residual: Array,
    least: Array | int,
    most: Array | int,
    *,
    compact: bool,
    model_axis: AxisName | None = None,
    **how: Any,
) -> tuple[Array | SparseGradient, Array, Array | None]:
    """As `send_largest`; if `compact`, a leaf of at least `DENSE_BELOW` bytes is sent as a list with room for `most`.

    With a model axis, `least` and `most` are for all its shards, which are of equal size, and pure JAX does the work.
    """
    compact = compact and update.nbytes >= DENSE_BELOW
    if model_axis is not None:
        over_shards = partial(top_k_mask, model_axis=model_axis)
        sent, residual, velocity = send_reference(update, residual, least, most, **how, top_k_mask=over_shards)
        sent = dense_to_coo(sent, min(most, update.size)) if compact else sent
    elif compact:
        sent, residual, velocity = list_largest(update, residual, least, most, min(most, update.size), **how)
    else:
        sent, residual, velocity = send_largest(update, residual, least, most, **how)
    return SparseGradient(*sent, update.shape) if compact else sent, residual, velocity


def num_to_send(density: float, size: int) -> int:
    """ceil(density * size), with the density taken exactly as it is written.

    >>> num_to_send(0.07, 100), num_to_send(0.001, 5), num_to_send(0.01, 0)
    (7, 1, 0)
    """
    return math.ceil(Fraction(str(density)) * size)


def check_density(density: Any) -> float:
    """The density as a float; a ValueError if it is invalid."""
    if not errors.is_number(density) or not 0 < density <= 1:
        raise ValueError(
            f"density={density!r} must be a number above 0 and at most 1: the share of elements to send."
            f"{errors.static_hint(density)}"
        )
    # NumPy's floats, too, are taken as they are written: in float64, float32's 0.1 is more than a tenth.
    return float(str(density) if isinstance(density, np.floating) else density)
