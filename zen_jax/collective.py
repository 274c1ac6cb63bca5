"""`all_reduce`: one gradient, reduced over a named axis."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from zen_jax import _axis, errors
from zen_jax._typing import Array, AxisName, Capacity, Unit
from zen_jax.info import make_info
from zen_jax.schemes import registry
from zen_jax.schemes.options import ReduceOptions
from zen_jax.schemes.pull import check_formats
from zen_jax.sparse import SparseGradient
from zen_jax.trees import densified, values_of
from zen_jax.units import unit_width

OPS = ("mean", "sum")


def all_reduce(
    x: Array | SparseGradient,
    axis_name: AxisName,
    *,
    op: str = "mean",
    scheme: str = "auto",
    unit: Unit = "auto",
    capacity: Capacity = None,
    hash: str = "tile",
    push_format: str = "coo",
    pull_format: str = "hash_bitmap",
    seed: int = 0,
    intra_axis: AxisName | None = None,
    return_info: bool = False,
) -> Array | Any:  # Any: type checkers would take no union with the tuple for an Array
    """Sums or averages a sparse gradient over the workers of a named axis: a drop-in for `psum` and `pmean`.

    The result equals `jax.lax.psum` or `pmean` up to summation order, which is worker order except under "dense" and
    "sparcml". It is bitwise equal on all workers and across reruns. NaN and infinities propagate, -0.0 counts as zero,
    and 16-bit floats are summed and divided in float32 and rounded once.

    Args:
      x: this worker's gradient, float of any shape. A `SparseGradient` is sent as the list that it is under "zen",
        "auto" and "agsparse" with unit "auto" or "element", hash "tile" and without `intra_axis`; otherwise it is made
        dense first.
      axis_name: the axis of shard_map, pmap or vmap(axis_name=...) that the workers lie on.
      op: "mean" or "sum".
      scheme: "zen" (Balanced Parallelism), "dense" (psum), "dense_ordered" (dense, summed in worker order), or "auto":
        zen (without a capacity agsparse, among two workers or three), and dense_ordered for any step in which sparse
        messages could move more bytes. For comparison: "agsparse" (one all-gather) and "sparcml" (recursive doubling),
        which also go dense where that moves fewer bytes; "omnireduce" (blocks of 256 elements on contiguous servers)
        and "sparse_ps" (units on contiguous servers), which, like "zen", never do.
      unit: what one index names: "element", "row", an integer number of columns, or "auto" (blocks of a row).
        Choose "element" for gradients produced by a sparsifier.
      capacity: units that the fullest message is expected to hold, as plans set it; None compiles message sizes for
        every density. An integer is for the scheme's first exchange; a tuple has an integer or None for each: (push,
        pull) for zen, auto, omnireduce and sparse_ps, (gather,) for agsparse, one per stage for sparcml. A fuller
        message takes a larger size; nothing is lost. Dense schemes ignore it.
      hash: "tile" (the tile rotation) or "murmur" (the paper's hash with tables, for comparison); for zen, and for
        auto where it runs zen.
      push_format: for the same schemes, "coo", "bitmap" over a server's units, or "auto": the smaller of the two,
        which is the bitmap above density 1/32.
      pull_format: for the same schemes, "hash_bitmap"; "others", which sends no worker what it alone touched, so fewer
        bytes the fewer workers there are, from COO pushes of the tile rotation only; or for comparison "coo", "bitmap"
        (a bit for each unit of the tensor from each server) or "dense".
      seed: seed of the hash, the same on every worker.
      intra_axis: the axis of one machine's devices; `axis_name` is then the axis of machines. Devices reduce-scatter
        and all-gather densely within a machine, and each uses the scheme to reduce its share of the machine's sum with
        other machines. Sums run in device order, then in machine order; a mean is over all devices. 16-bit floats
        cross machines as float32. `capacity` is per machine, and each device takes its part of it; `Info` covers one
        device's messages to other machines.
      return_info: whether to return an `Info` too.

    Returns:
      The reduced gradient, of x's shape and dtype; with `return_info`, a pair of it and an `Info`.

    Raises:
      ValueError: for an axis that is not bound or given twice, an unknown op, scheme, unit, hash or format, a capacity
        below 1 or above 2**31 - 1, more capacities than the scheme has exchanges, columns that do not divide a row, a
        seed that is not a uint32, a dtype that is not a float, more units than a scheme can name, a gradient that is
        already reduced or sharded along an Explicit axis, or several processes on CPUs with JAX's compilation cache.

    >>> import jax, jax.numpy as jnp
    >>> gradients = jnp.zeros((4, 100, 8)).at[:, 3].set(1.0)  # four workers, each touched row 3
    >>> mean = jax.vmap(lambda g: all_reduce(g, "data"), axis_name="data")(gradients)
    >>> mean.shape, float(mean[0, 3, 0]), float(mean.sum())
    ((4, 100, 8), 1.0, 32.0)

    Source: ZEN (OSDI 2025), section 3; section 4 for `intra_axis`.
    """
    errors.check_choice("op", op, OPS)
    check_formats(push_format, pull_format, hash)
    run = registry.get(scheme, intra_axis)
    errors.check_seed(seed)
    x = _checked(x)
    axes = _axis.combined_axes(axis_name, intra_axis)
    n = _axis.axis_size(axis_name)
    _axis.check_not_cached(axes)
    devices = 1 if intra_axis is None else _axis.axis_size(intra_axis, "intra_axis")
    capacities = _capacities(capacity, scheme, n)
    _axis.check_not_reduced("x", values_of(x), axes)
    _axis.check_not_sharded("x", values_of(x))
    width = unit_width(x.shape, "element" if isinstance(x, SparseGradient) and unit == "auto" else unit, n * devices)
    travels_as_list = registry.takes_sparse(scheme) and n > 1 and intra_axis is None and width == 1
    if isinstance(x, SparseGradient) and not (travels_as_list and x.size and x.room):
        x = densified(x)
    if n * devices == 1 or x.size == 0:
        # psum of nothing, or over one worker, only marks the result as reduced.
        reduced, info = lax.psum(x, axes), make_info()
    else:
        options = ReduceOptions(op, capacities, hash, seed, push_format, pull_format)
        reduced, info = run(x.reshape(-1, width), axis_name, options)
    # Fused with a scheme's last operation, an optimizer could round differently from scheme to scheme.
    reduced = lax.optimization_barrier(reduced.reshape(x.shape))
    return (reduced, info) if return_info else reduced


def _checked(x: Array | SparseGradient) -> Array | SparseGradient:
    """x as an array unless it is sparse; raises a ValueError for anything that is not a gradient."""
    if not isinstance(x, SparseGradient):
        if not isinstance(x, (jax.Array, np.ndarray, np.generic)) and not errors.is_number(x):
            raise ValueError(f"x is a {type(x).__name__}, but must be one gradient. Use zen_jax.synchronize for trees.")
        x = jnp.asarray(x)
    errors.check_float("x", x.dtype)
    return x


def _capacities(capacity: Capacity, scheme: str, n: int) -> tuple[int | None, ...]:
    """One capacity for each exchange, as far as given."""
    capacities = tuple(capacity) if isinstance(capacity, tuple | list) else (capacity,)
    for value in capacities:
        if value is not None:
            errors.check_capacity(value)
    registry.check_exchanges(capacities, scheme, n)
    return tuple(value if value is None else int(value) for value in capacities)  # NumPy's would widen counts
