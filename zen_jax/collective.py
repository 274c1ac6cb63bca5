"""`all_reduce`: one gradient, reduced over a named axis."""

from jax import lax

from zen_jax import _axis, errors
from zen_jax._typing import Array, AxisName, Capacity, Unit
from zen_jax.info import Info, make_info
from zen_jax.schemes import registry
from zen_jax.schemes.partitioning import HASHES
from zen_jax.units import unit_width

OPS = ("mean", "sum")


def all_reduce(
    x: Array,
    axis_name: AxisName,
    *,
    op: str = "mean",
    scheme: str = "auto",
    unit: Unit = "auto",
    capacity: Capacity = None,
    hash: str = "tile",
    seed: int = 0,
    return_info: bool = False,
) -> Array | tuple[Array, Info]:
    """Sums or averages a sparse gradient over the workers of a named axis: a drop-in for `psum` and `pmean`.

    Equal to `jax.lax.psum` or `pmean` up to summation order, which is worker order; bitwise equal on all workers and
    on a rerun. NaN and infinities travel, -0.0 counts as zero, 16-bit floats are summed and divided in float32 and
    rounded once.

    Args:
      x: this worker's gradient, float of any shape.
      axis_name: the axis of shard_map, pmap or vmap(axis_name=...) that the workers lie on.
      op: "mean" or "sum".
      scheme: "zen" (Balanced Parallelism), "dense" (psum), "dense_ordered" (dense, summed in worker order), or "auto":
        zen, and dense_ordered for any step in which sparse messages could move more bytes.
      unit: what one index names: "element", "row", an integer number of columns, or "auto" (blocks of a row).
        Choose "element" for gradients that a sparsifier made.
      capacity: units expected in the fullest message: None for a ladder over all densities, an integer for push,
        or (push, pull). A message that outgrows it takes a larger size; nothing is lost.
      hash: "tile" (the tile rotation) or "murmur" (the paper's hash with tables, for comparison).
      seed: seed of the hash, the same on every worker.
      return_info: whether to return an `Info` too.

    Returns:
      The reduced gradient, of x's shape and dtype; with `return_info` a pair of it and an `Info`.

    Raises:
      ValueError: for an axis that is not bound, an unknown op, scheme, unit or hash, a capacity below 1, columns that
        do not divide a row, a seed that is no uint32, a dtype that is no float, or a gradient that is already reduced.

    >>> import jax, jax.numpy as jnp
    >>> gradients = jnp.zeros((4, 100, 8)).at[:, 3].set(1.0)  # four workers, each touched row 3
    >>> mean = jax.vmap(lambda g: all_reduce(g, "data"), axis_name="data")(gradients)
    >>> mean.shape, float(mean[0, 3, 0]), float(mean.sum())
    ((4, 100, 8), 1.0, 32.0)

    Source: ZEN (OSDI 2025), section 3.
    """
    errors.check_choice("op", op, OPS)
    errors.check_choice("hash", hash, HASHES)
    run = registry.get(scheme)
    errors.check_seed(seed)
    errors.check_float("x", x.dtype)
    capacities = _capacities(capacity)
    n = _axis.axis_size(axis_name)
    _axis.check_not_reduced("x", x, axis_name)
    width = unit_width(x.shape, unit, n)
    if n == 1 or x.size == 0:
        # psum of nothing, or over one worker, only marks the result as reduced.
        reduced, info = lax.psum(x, axis_name), make_info()
    else:
        reduced, info = run(x.reshape(-1, width), axis_name, registry.Request(op, capacities, hash, seed))
    reduced = reduced.reshape(x.shape)
    return (reduced, info) if return_info else reduced


def _capacities(capacity: Capacity) -> tuple[int | None, int | None]:
    push, pull = capacity if isinstance(capacity, tuple) and len(capacity) == 2 else (capacity, None)
    for value in (push, pull):
        if value is not None:
            errors.check_at_least("capacity", value, 1)
    return push, pull
