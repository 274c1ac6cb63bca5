"""`profile`: the sparsity profile of stacked gradients."""

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType

from zen_jax import errors
from zen_jax._typing import Array, PyTree, Unit
from zen_jax.buckets import DENSE_BELOW
from zen_jax.planning.counts import count_stacked
from zen_jax.planning.leaf_profile import candidate_widths, leaf_profile
from zen_jax.planning.sparsity import SparsityProfile
from zen_jax.trees import is_sparse_leaf, named_leaves
from zen_jax.units import check_unit


def profile(*steps: PyTree, unit: Unit | None = None, seed: int = 0, devices_per_host: int = 1) -> SparsityProfile:
    """Profiles the sparsity of the gradients of one or more steps.

    Args:
      steps: trees of stacked gradients, each leaf float [n, ...]: one slice per worker.
      unit: as in `zen_jax.all_reduce`, to measure only that unit; None for single elements, whole rows, blocks of
        columns down to the width that "auto" takes, and blocks of 256 elements.
      seed: seed of the tile rotation.
      devices_per_host: devices of a host that add up their gradients first and each send a share (`intra_axis`); every
        slice is then the sum of one host.

    Returns:
      A SparsityProfile, exact for these gradients. Of a leaf, steps in which a sample finds NaN or infinities are left
      out unless all are such.

    Raises:
      ValueError: for no steps, steps of different trees, leaves that share no leading axis, are not floats or have
        no values (inside jit), more workers than elements, or `devices_per_host` below 1.

    >>> import jax.numpy as jnp
    >>> gradients = jnp.zeros((4, 1000, 64)).at[:, :20].set(1.0)  # four workers, each touched the first 20 rows
    >>> rows = profile(gradients).leaves["(array)"].at("row", n=4)
    >>> rows.density, rows.densification(4), rows.skewness(4), rows.overlap
    (0.02, 1.0, 4.0, 1.0)

    Source: ZEN (OSDI 2025), section 2.1.
    """
    errors.check_seed(seed)
    errors.check_workers(devices_per_host, "devices_per_host")
    if unit is not None:
        check_unit(unit)
    measured = _checked(steps)
    n = len(measured[0][0][1])
    divided, leaves = any(not _left_out(leaf, unit) for _, leaf in measured[0]), {}
    for of_steps in zip(*measured, strict=True):
        name, stacked = of_steps[0]
        shape, left_out = stacked.shape[1:], _left_out(stacked, unit if divided else None)
        widths = () if left_out else candidate_widths(shape, n * devices_per_host, unit)
        how = {"widths": widths, "seed": seed, "devices": devices_per_host}
        counted = [jax.device_get(count_stacked(_as_counted(leaf), **how)) if widths else {} for _, leaf in of_steps]
        leaves[name] = leaf_profile(shape, stacked.dtype, counted, devices_per_host)
    return SparsityProfile(n, leaves, seed, len(steps), devices_per_host=devices_per_host)


def _checked(steps: Sequence[PyTree]) -> list[list[tuple[str, Array]]]:
    """The named leaves of each step; raises a ValueError if they are not stacked gradients of one tree."""
    if not steps:
        raise ValueError("profile got no gradients. Give the stacked gradients of at least one step.")
    measured = [named_leaves(step) for step in steps]
    for name, leaf in measured[0]:
        if is_sparse_leaf(leaf):
            raise ValueError(
                f"{name} is a {type(leaf).__name__}, but profile counts arrays. Stack the results of to_dense()."
            )
        errors.check_float(name, leaf.dtype)
        if isinstance(leaf, jax.core.Tracer | jax.ShapeDtypeStruct):
            raise ValueError(f"{name} has no values, which profile counts. Inside a step, use zen_jax.Profiler.")
    if not measured[0]:
        raise ValueError("the tree of gradients has no leaves. Give the stacked gradients of at least one parameter.")
    sizes = {leaf.shape[:1] for named in measured for _, leaf in named}
    if len(sizes) != 1 or () in sizes:
        raise ValueError(f"stacked gradients must share one leading axis, one slice per worker; got {sorted(sizes)}.")
    kinds = [{(name, leaf.shape, str(leaf.dtype)) for name, leaf in named} for named in measured]
    if differing := set.union(*kinds) - set.intersection(*kinds):
        name, shape, dtype = min(differing)
        raise ValueError(
            f"steps must be gradients of one tree, but only some have {name} as {dtype}{list(shape)}. Profile others "
            "separately."
        )
    ((n,),) = sizes
    errors.check_workers(n)
    elements = sum(math.prod(leaf.shape[1:]) for _, leaf in measured[0])
    if 0 < elements < n:
        raise ValueError(
            f"stacked gradients have one slice per worker along the leading axis, but {n} workers with {elements} "
            "elements each look like the gradient of a single worker. Give all: jnp.stack([first, second, ...])."
        )
    return measured


def _left_out(stacked: Array, unit: Unit | None) -> bool:
    """Whether to skip measuring a leaf: an empty one, or a small one, to be fused, that the unit does not divide."""
    fused = stacked.nbytes < DENSE_BELOW * stacked.shape[0]
    undivided = errors.is_integer(unit) and math.prod(stacked.shape[2:]) % unit != 0
    return not stacked.size or (fused and undivided)


def _as_counted(stacked: Array) -> Array:
    """A leaf as JAX can count it: without x64, JAX would round float64 to float32, and tiny values to zero."""
    if jax.dtypes.canonicalize_dtype(stacked.dtype) == stacked.dtype:
        # Kernels take no arrays whose type says how they are sharded.
        explicit = isinstance(stacked, jax.Array) and AxisType.Explicit in jax.typeof(stacked).sharding.mesh.axis_types
        return np.asarray(stacked) if explicit else stacked
    stacked = np.asarray(stacked)
    return np.where(np.isfinite(stacked), stacked != 0, np.nan).astype(np.float32)
