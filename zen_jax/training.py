"""`value_and_grad` for loops under jit: splits the batch over a mesh axis and synchronises the gradients."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from zen_jax import _axis, errors
from zen_jax._sums import accumulator_dtype
from zen_jax._typing import Array, AxisName, PyTree, Unit
from zen_jax.buckets import BUCKET_BYTES, DENSE_BELOW
from zen_jax.embedding.gradient import value_and_grad as with_rows
from zen_jax.planning.plan import Plan
from zen_jax.planning.profiler import Profiler
from zen_jax.transforms.synchronize import synchronize


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    mesh: Mesh,
    axis_name: AxisName = "data",
    intra_axis: AxisName | None = None,
    op: str = "mean",
    scheme: str = "auto",
    unit: Unit = "auto",
    plan: Plan | Profiler | None = None,
    bucket_bytes: int = BUCKET_BYTES,
    dense_below: int = DENSE_BELOW,
    seed: int = 0,
    lookups: Callable[..., Mapping[str, PyTree]] | None = None,
    padding_id: int | Mapping[str, int] | None = None,
    return_info: bool = False,
) -> Callable[..., Any]:
    """`jax.value_and_grad` over a batch that is split across workers, with gradients reduced by `synchronize`.

    The returned function takes the arguments of `fun`. Call it under `jax.jit`: outside, every call compiles anew.
    Arguments in `argnums` and all keyword arguments are the same for every worker; the other positional arguments are
    batches, whose arrays are split along their first axis (scalars are not split). What is not an array reaches `fun`
    unchanged. Sparsifiers, such as `dgc`, cannot follow: they go before `synchronize`, in a shard_map of your own.

    Args:
      fun: the loss of one worker's share of the batch; a scalar, or (scalar, aux) with `has_aux`.
      argnums: which positional arguments to differentiate.
      has_aux: whether `fun` returns auxiliary data.
      mesh: the devices; n is their number along `axis_name`, and `intra_axis` if given. Devices along other axes do
        the same work, each on whole parameters: tensor parallelism needs a shard_map of your own.
      axis_name: the mesh axis that workers lie on, or several as a tuple.
      intra_axis: the mesh axis of one machine's devices, as in `synchronize`; the batch is split over both axes.
      op: "mean" or "sum", for the loss and the gradients alike.
      scheme, unit, plan, bucket_bytes, dense_below, seed: as in `synchronize`.
      lookups, padding_id: as in `zen_jax.embedding.value_and_grad`, for argument 0 of `fun`: the tables whose gradients
        are to be row-sparse, and the ids that one worker's share of the batch looks up in them. None for none.
      return_info: whether to return the `Info` of each leaf too, as `SynchronizeState.info`.

    Returns:
      A function that returns (value, gradients), ((value, aux), gradients) with `has_aux`, or (..., gradients, info)
      with `return_info`; aux gains a leading axis of n, one slice per worker.

    Raises:
      ValueError: for an axis that the mesh lacks or that is given twice, `argnums` that are not argument positions, a
        batch that n does not divide, `lookups` with `argnums` other than 0, or `padding_id` without `lookups`.

    >>> import jax, jax.numpy as jnp
    >>> mesh = jax.make_mesh((1,), ("data",))
    >>> loss = lambda w, x: jnp.mean((x @ w) ** 2)
    >>> value, gradient = value_and_grad(loss, mesh=mesh)(jnp.ones(2), jnp.ones((4, 2)))
    >>> float(value), gradient.tolist()
    (4.0, [4.0, 4.0])
    """
    n = _axis.mesh_size(mesh, axis_name)
    if intra_axis is not None:
        n *= _axis.mesh_size(mesh, intra_axis, "intra_axis")
    _check_lookups(lookups, argnums, padding_id)
    axes = _axis.combined_axes(axis_name, intra_axis)
    transform = synchronize(
        axis_name,
        op=op,
        scheme=scheme,
        unit=unit,
        plan=plan,
        bucket_bytes=bucket_bytes,
        dense_below=dense_below,
        seed=seed,
        intra_axis=intra_axis,
    )
    differentiated = _positions(argnums)
    whole, shares = PartitionSpec(), PartitionSpec(axes)
    if lookups is None:
        local = jax.value_and_grad(fun, argnums, has_aux)
    else:
        local = with_rows(fun, lookups, has_aux, padding_id=padding_id)

    @wraps(fun, updated=())
    def wrapped(*args: PyTree, **kwargs: PyTree) -> tuple:
        if any(map(_axis.is_manual, _axis.axis_names(axes))):
            raise ValueError(
                f"value_and_grad was called inside a shard_map over {axes!r}, but makes its own. Call it outside, or "
                "use jax.value_and_grad and zen_jax.synchronize."
            )
        if not all(-len(args) <= position < len(args) for position in differentiated):
            raise ValueError(
                f"argnums={argnums!r} must be positions of the {len(args)} positional arguments that {fun} got. "
                "Pass the arguments to differentiate by position."
            )
        leaves, treedef = jax.tree.flatten((args, kwargs))
        arrays = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array | np.ndarray | np.generic)}
        batches = _batches(args, differentiated, arrays, n, fun)
        specs = {i: shares if i in batches else whole for i in arrays}

        def worker(arrays: dict[int, Array]) -> tuple:
            own, same = treedef.unflatten([arrays.get(i, leaf) for i, leaf in enumerate(leaves)])
            value, gradients = local(*own, **same)
            value, aux = value if has_aux else (value, ())
            value = jnp.asarray(value)
            wide = value.astype(accumulator_dtype(value.dtype))
            value = (lax.pmean(wide, axes) if op == "mean" else lax.psum(wide, axes)).astype(value.dtype)
            gradients, state = transform.update(gradients, None)
            return value, jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], aux), gradients, state.info

        # check_vma would make jax.grad reduce the gradients of the replicated arguments before zen sees them.
        value, aux, gradients, info = jax.shard_map(
            worker, mesh=mesh, in_specs=(specs,), out_specs=(whole, shares, whole, whole), check_vma=False
        )(_placed(arrays, batches, mesh, axes))
        results = ((value, aux) if has_aux else value, gradients)
        return (*results, info) if return_info else results

    return wrapped


def _check_lookups(lookups: Any, argnums: Any, padding_id: Any) -> None:
    if lookups is not None and argnums != 0:
        raise ValueError(
            f"argnums={argnums!r}, but lookups are for argument 0. Put everything to differentiate in one tree, "
            "argument 0."
        )
    if lookups is None and padding_id is not None:
        raise ValueError(
            f"padding_id={padding_id!r} applies to lookups, but there are none. Pass lookups too, or neither."
        )


def _batches(
    args: tuple[PyTree, ...], differentiated: tuple[int, ...], arrays: Mapping[int, Array], n: int, fun: Any
) -> set[int]:
    """Which leaves of the arguments are split over n workers; `arrays` has those that are arrays, by number."""
    positions = [position for position, arg in enumerate(args) for _ in jax.tree.leaves(arg)]  # of keywords: none
    batches = set()
    for i, position in enumerate(positions):
        if i not in arrays or not arrays[i].shape or {position, position - len(args)} & set(differentiated):
            continue
        shape = arrays[i].shape
        if shape[0] % n:
            raise ValueError(
                f"argument {position} of {fun} has a batch of {shape[0]} (shape {shape}), which does not split evenly "
                f"over {n} workers. Pad or trim it to a multiple of {n}, or pass it by keyword if it is not a batch."
            )
        batches.add(i)
    return batches


def _placed(arrays: dict[int, Array], batches: set[int], mesh: Mesh, axes: AxisName) -> dict[int, Array]:
    """The arrays as a shard_map takes them, where a mesh has axes of which XLA must be told."""
    explicit = {axis for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Explicit}
    if not explicit:
        return arrays
    along = PartitionSpec(tuple(axis for axis in _axis.axis_names(axes) if axis in explicit))
    specs = {i: along if i in batches else PartitionSpec() for i in arrays}
    return {i: jax.reshard(array, NamedSharding(mesh, specs[i])) for i, array in arrays.items()}


def _positions(argnums: Any) -> tuple[int, ...]:
    positions = tuple(argnums) if isinstance(argnums, Sequence) and not isinstance(argnums, str) else (argnums,)
    if not positions or not all(map(errors.is_integer, positions)):
        raise ValueError(
            f"argnums={argnums!r} must be an integer or a sequence of integers: positional arguments to differentiate."
        )
    return positions
