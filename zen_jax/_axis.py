"""Collectives under a named axis, alike in shard_map (check_vma on or off), pmap and vmap."""

import jax
from jax import lax

from zen_jax._typing import Array, AxisName


def axis_names(axis_name: AxisName) -> tuple:
    return axis_name if isinstance(axis_name, tuple) else (axis_name,)


def axis_size(axis_name: AxisName) -> int:
    """Number of workers n, or a ValueError where the axis is not bound."""
    try:
        return lax.axis_size(axis_name)
    except NameError as error:
        raise ValueError(
            f"axis_name={axis_name!r} is not a named axis here. Call inside shard_map, pmap or vmap(axis_name=...) "
            "with that axis, or use zen_jax.value_and_grad under jit."
        ) from error


def _varying(x: Array) -> frozenset:
    return jax.typeof(x).manual_axis_type.varying


def check_not_reduced(name: str, x: Array, axis_name: AxisName) -> None:
    """Refuses a gradient that shard_map(check_vma=True) knows to be the same on every worker."""
    tracked = _varying(lax.axis_index(axis_name))
    reduced = [axis for axis in axis_names(axis_name) if axis in tracked and axis not in _varying(x)]
    if reduced:
        raise ValueError(
            f"{name} does not vary over axis {reduced[0]!r}: it is already reduced, and averaging it again would give "
            "the sum. Under shard_map(check_vma=True) jax.grad sums the gradients of replicated parameters by itself: "
            f"make the parameters vary first (jax.lax.pcast(params, {axis_name!r}, to='varying')), set "
            "check_vma=False, or use zen_jax.value_and_grad."
        )


def all_gather(x: Array, axis_name: AxisName) -> Array:
    """[...] to [n, ...], the same on every worker and typed so where shard_map tracks it."""
    invarying = any(axis in _varying(x) for axis in axis_names(axis_name))
    return lax.all_gather(x, axis_name, to="invarying" if invarying else "varying")


def all_to_all(x: Array, axis_name: AxisName) -> Array:
    """Row i of x [n, ...] goes to worker i; row i of the result came from worker i."""
    return lax.all_to_all(x, axis_name, split_axis=0, concat_axis=0)
