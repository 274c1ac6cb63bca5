"""`synchronize`: the all-reduce of a gradient tree as an optax transformation."""

from collections.abc import Collection
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from zen_jax import _axis, errors
from zen_jax._typing import AxisName, PyTree, Unit
from zen_jax.buckets import BUCKET_BYTES, DENSE_BELOW
from zen_jax.collective import OPS, all_reduce
from zen_jax.info import Info, make_info
from zen_jax.planning.plan import Plan
from zen_jax.planning.profiler import Profiler
from zen_jax.row_sparse import is_row_sparse
from zen_jax.schemes import registry
from zen_jax.schemes.options import ReduceOptions
from zen_jax.schemes.row_sparse import reduce_rows
from zen_jax.transforms import reports
from zen_jax.transforms.messages import (
    Message,
    planned_messages,
    reduce_as_one,
    row_sparse_messages,
    unplanned_messages,
)
from zen_jax.trees import Leaf, is_sparse_leaf, named_leaves, values_of
from zen_jax.units import check_unit


class SynchronizeState(NamedTuple):
    """State of `synchronize`: what the last step did. `optax.tree.get(state, "info")` finds it in a chain.

    `info` maps a leaf's name ("embed/embedding") to its `Info`; leaves under `dense_below`, which are fused unless a
    plan says otherwise, share the name "(fused)". Leaves that are sent as one have the Info of all, with a share of
    the bytes. `zen_jax.total(info)` adds them up. To `optax.tree_map_params`, all of `info` is a single leaf.
    """

    info: dict[str, Info]


def synchronize(
    axis_name: AxisName,
    *,
    op: str = "mean",
    scheme: str = "auto",
    unit: Unit = "auto",
    plan: Plan | Profiler | None = None,
    bucket_bytes: int = BUCKET_BYTES,
    dense_below: int = DENSE_BELOW,
    seed: int = 0,
    intra_axis: AxisName | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Reduces every worker's gradients over a named axis: put it first in an `optax.chain`, in place of `pmean`.

    Every leaf of at least `dense_below` bytes gets its own `all_reduce`, except that several `SparseGradient` get one;
    they come out as arrays. Smaller leaves are fused by dtype and sent dense, except that "auto" sends tables (2-D or
    more) with equally long rows as one table, if that is large enough. A `RowSparseGradient` is sent as it is, whatever
    the scheme, unit and plan, together with all of its dtype and row shape; afterwards it holds the rows that any
    worker touched. None leaves and `optax.MaskedNode` are left alone.

    Args:
      axis_name: the workers' axis of shard_map, pmap or vmap(axis_name=...).
      op: "mean" or "sum".
      scheme: as in `all_reduce`. Under "dense", fused buckets use `psum`; otherwise they are summed in worker order.
      unit: as in `all_reduce`; a number of columns is for leaves of two or more dimensions.
      plan: a `Plan`, which sets scheme, unit, formats, capacities and buckets by leaf in place of `scheme`, `unit`,
        `bucket_bytes` and `dense_below`, and the seed that its capacities were measured with in place of `seed`; or a
        `Profiler`, which watches gradients that are synchronised without a plan. The state fits any plan.
      bucket_bytes: most bytes of leaves that are sent as one; of a `RowSparseGradient`, its rows count.
      dense_below: leaves of fewer bytes than this are fused, and sent with all their zeros unless they make up a table
        of at least as many under "auto".
      seed: seed of the hash, the same on every worker.
      intra_axis: as in `all_reduce`: the axis of a machine's devices, if `axis_name` is the axis of machines. A plan is
        then one for machines. For a `RowSparseGradient`, every device is a worker.

    Returns:
      An `optax.GradientTransformationExtraArgs` with `SynchronizeState`.

    Raises:
      ValueError: at construction for unknown names or an axis given twice; at init or update for leaves that are not
        floats, a plan for other shapes, an axis that is not bound, gradients that are already reduced, or several
        processes on CPUs with JAX's compilation cache.

    >>> import jax, jax.numpy as jnp, optax
    >>> optimizer = optax.chain(synchronize("data"), optax.sgd(1.0))
    >>> params = {"w": jnp.zeros(3)}
    >>> state = optimizer.init(params)
    >>> gradients = {"w": jnp.array([[0.0, 2.0, 1.0], [4.0, 0.0, 1.0]])}  # two workers
    >>> step = jax.vmap(lambda g: optimizer.update(g, state, params), axis_name="data", out_axes=None)
    >>> updates, state = step(gradients)
    >>> updates["w"].tolist(), float(optax.tree.get(state, "info")["(fused)"].dense_taken)
    ([-2.0, -1.0, -1.0], 1.0)

    Source: ZEN (OSDI 2025), section 4.
    """
    errors.check_choice("op", op, OPS)
    errors.check_choice("scheme", scheme, registry.names())
    errors.check_at_least("bucket_bytes", bucket_bytes, 1)
    errors.check_at_least("dense_below", dense_below, 0)
    errors.check_seed(seed)
    check_unit(unit)
    if plan is not None and not isinstance(plan, Plan | Profiler):
        raise ValueError(f"plan is a {type(plan).__name__}, but must be a zen_jax.Plan, a Profiler or None.")
    seed = plan.seed if isinstance(plan, Plan) else seed
    axes = _axis.combined_axes(axis_name, intra_axis)
    reduce = partial(all_reduce, axis_name=axis_name, op=op, seed=seed, intra_axis=intra_axis, return_info=True)
    reduce_tables = partial(reduce_rows, axis_name=axes, options=ReduceOptions(op, seed=seed))

    def check(named: list[tuple[str, Leaf]], n: int | None, devices: int = 1) -> None:
        for name, leaf in named:
            errors.check_float(name, leaf.dtype)
        if isinstance(plan, Plan):
            plan.check(named, n, devices)

    def check_gradients(named: list[tuple[str, Leaf]]) -> None:
        n = _axis.axis_size(axis_name)
        check(named, n, 1 if intra_axis is None else _axis.axis_size(intra_axis, "intra_axis"))
        _axis.check_not_cached(axes)
        for name, leaf in named:
            _axis.check_not_reduced(name, values_of(leaf), axes)
            _axis.check_not_sharded(name, values_of(leaf))

    def messages(arrays: dict[str, Leaf]) -> list[Message]:
        if isinstance(plan, Plan):
            return planned_messages(plan, arrays)
        return unplanned_messages(arrays, scheme=scheme, unit=unit, bucket_bytes=bucket_bytes, dense_below=dense_below)

    def init(params: PyTree) -> SynchronizeState:
        named = named_leaves(params)
        check(named, n=None)
        if not named and _is_placeholder(params):
            return SynchronizeState(jnp.zeros(()))  # one leaf, as a prefix of all of `info`
        return SynchronizeState({name: make_info() for name in reports.names_of(dict(named), dense_below)})

    def update(updates: PyTree, state: SynchronizeState | None, params: PyTree = None, **_: Any):
        del params
        named = named_leaves(updates)
        if state is not None and not hasattr(state, "info"):
            raise ValueError(
                f"state is a {type(state).__name__}, not that of synchronize. Call init of this very transformation."
            )
        if not named and state is not None:
            return updates, state
        check_gradients(named)
        leaves = dict(named)
        names = reports.names_of(leaves, dense_below) if state is None else list(state.info)
        reports.check_names(names, leaves, dense_below)
        tables = {name: leaf for name, leaf in named if is_row_sparse(leaf)}
        arrays = {name: leaf for name, leaf in named if name not in tables}
        reduced, infos = {}, []
        with jax.named_scope("zen"):
            if isinstance(plan, Profiler):
                plan.observe(named, axis_name, seed, intra_axis, dense_below)
            sent = [(message.leaves, partial(reduce_as_one, reduce, **message.options)) for message in messages(arrays)]
            sent += [(group, reduce_tables) for group in row_sparse_messages(tables, axes, bucket_bytes)]
            for group, run in sent:
                found, info = run([leaves[name] for name in group])
                reduced |= dict(zip(group, found, strict=True))
                infos += reports.shares_by_name(info, {name: leaves[name].nbytes for name in group}, names)
            info = _pmax_over_other_axes(reports.total_by_name(infos, names), axes)
        treedef = jax.tree.structure(updates, is_leaf=is_sparse_leaf)
        return jax.tree.unflatten(treedef, [reduced[name] for name, _ in named]), SynchronizeState(info)

    return optax.GradientTransformationExtraArgs(init, update)


def _is_placeholder(params: PyTree) -> bool:
    """Whether params without leaves are what `optax.tree_map_params` passes in their place: a childless custom node."""
    single = jax.tree.structure(params).num_nodes == 1
    return single and params is not None and not isinstance(params, Collection)


def _pmax_over_other_axes(info: dict[str, Info], axes: AxisName) -> dict[str, Info]:
    """The largest over the other axes of an enclosing shard_map, whose tensor-parallel shards differ."""
    leaves, treedef = jax.tree.flatten(info)
    if not leaves or not _axis.other_manual_axes(axes):
        return info
    return treedef.unflatten(list(_axis.pmax_over_other_axes(jnp.stack(leaves), axes)))
