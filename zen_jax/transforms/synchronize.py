"""`synchronize`: the all-reduce of a gradient tree as an optax transformation."""

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from zen_jax import _axis, errors
from zen_jax._typing import Array, AxisName, PyTree, Unit
from zen_jax.collective import OPS, all_reduce
from zen_jax.info import Info, make_info, total
from zen_jax.planning.buckets import BUCKET_BYTES, DENSE_BELOW, buckets
from zen_jax.planning.live import Profiler
from zen_jax.planning.plan import Plan
from zen_jax.row_sparse import is_row_sparse
from zen_jax.schemes import registry
from zen_jax.schemes.row_sparse import reduce_rows
from zen_jax.sparse import densified
from zen_jax.trees import Leaf, is_sparse_leaf, named_leaves, values_of
from zen_jax.units import check_unit

FUSED = "(fused)"


class SynchronizeState(NamedTuple):
    """State of `synchronize`: what the last step did. `optax.tree.get(state, "info")` finds it in a chain.

    `info` maps a leaf's name ("embed/embedding") to its `Info`; the small leaves, fused into dense buckets, share the
    name "(fused)". `zen_jax.total(info)` adds them up.
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

    Every leaf of at least `dense_below` bytes is an `all_reduce` of its own; the smaller ones are fused by dtype into
    buckets and travel dense. A `SparseGradient` comes out as an array. A `RowSparseGradient` travels as it is, whatever
    the scheme, unit and plan, and holds the rows that any worker touched afterwards. None leaves and `optax.MaskedNode`
    are left alone.

    Args:
      axis_name: the axis of shard_map, pmap or vmap(axis_name=...) that the workers lie on.
      op: "mean" or "sum".
      scheme: as in `all_reduce`. Under "dense" fused buckets take `psum`, else they too are summed in worker order.
      unit: as in `all_reduce`.
      plan: a `Plan`, which says scheme, unit, formats, capacities and buckets by leaf and replaces `scheme`, `unit`,
        `bucket_bytes` and `dense_below`; or a `Profiler`, which watches gradients that are synchronised without one.
      bucket_bytes: largest bucket of fused leaves.
      dense_below: leaves of fewer bytes than this are fused.
      seed: seed of the hash, the same on every worker.
      intra_axis: as in `all_reduce`: the axis of one machine's devices, where `axis_name` is that of machines. A plan
        is then one for machines. A `RowSparseGradient` takes every device for a worker.

    Returns:
      An `optax.GradientTransformationExtraArgs` with `SynchronizeState`.

    Raises:
      ValueError: here for unknown names or an axis given twice; at init or update for leaves that are no floats, a plan
        for other shapes, an axis that is not bound, or gradients that are already reduced.

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
        raise ValueError(f"plan is a {type(plan).__name__}, but must be what zen_jax.plan makes, a Profiler or None.")
    axes = _axis.joined(axis_name, intra_axis)
    planned = plan.leaves if isinstance(plan, Plan) else None
    fused_scheme = "dense" if scheme == "dense" else "dense_ordered"
    reduce = partial(all_reduce, axis_name=axis_name, op=op, seed=seed, intra_axis=intra_axis)

    def fused_names(named: list[tuple[str, Leaf]], state: SynchronizeState | None = None) -> set[str]:
        if planned is not None:
            return {name for name, leaf in planned.items() if leaf.bucket is not None}
        if state is None:
            return {name for name, leaf in named if leaf.nbytes < dense_below}
        # As `init` saw it: gradients may be narrower than their parameters, and the state keeps its structure.
        return {name for name, _ in named if name not in state.info}

    def info_names(named: list[tuple[str, Leaf]], fused: set[str]) -> list[str]:
        return [FUSED if name in fused else name for name, _ in named]

    def check(named: list[tuple[str, Leaf]], n: int | None) -> None:
        for name, leaf in named:
            errors.check_float(name, leaf.dtype)
        if isinstance(plan, Plan):
            plan.check(named, n, seed)

    def init(params: PyTree) -> SynchronizeState:
        named = named_leaves(params)
        check(named, n=None)
        return SynchronizeState({name: make_info() for name in info_names(named, fused_names(named))})

    def reduce_leaf(name: str, leaf: Leaf) -> tuple[Leaf, Info]:
        if is_row_sparse(leaf):
            return reduce_rows(leaf, axes, registry.Request(op=op, seed=seed))
        how = {"scheme": scheme, "unit": unit} if planned is None else planned[name].options
        return reduce(leaf, return_info=True, **how)

    def fuse(leaves: list[tuple[str, Leaf]]) -> list[list[int]]:
        if planned is None:
            return buckets([(leaf.dtype, leaf.nbytes) for _, leaf in leaves], bucket_bytes)
        numbers = [planned[name].bucket for name, _ in leaves]
        return [[i for i, number in enumerate(numbers) if number == wanted] for wanted in sorted(set(numbers))]

    def reduce_fused(leaves: list[tuple[str, Leaf]]) -> tuple[list[Array], Info]:
        reduced, infos = [None] * len(leaves), []
        for bucket in fuse(leaves):
            arrays = [densified(leaves[i][1]) for i in bucket]
            how = fused_scheme if planned is None else planned[leaves[bucket[0]][0]].scheme
            flat = jnp.concatenate([array.reshape(-1) for array in arrays])
            flat, info = reduce(flat, scheme=how, return_info=True)
            infos.append(info)
            for i, array in zip(bucket, arrays, strict=True):
                reduced[i], flat = flat[: array.size].reshape(array.shape), flat[array.size :]
        return reduced, _sum_dense(infos)

    def update(updates: PyTree, state: SynchronizeState, params: PyTree = None, **_: Any):
        del params
        named = named_leaves(updates)
        check(named, _axis.axis_size(axis_name))
        if intra_axis is not None:
            _axis.axis_size(intra_axis, "intra_axis")
        for name, leaf in named:
            _axis.check_not_reduced(name, values_of(leaf), axes)
        reduced, info = {}, {}
        with jax.named_scope("zen"):
            if isinstance(plan, Profiler):
                plan.observe(named, axis_name, seed, intra_axis, dense_below)
            fused = fused_names(named, state)
            together = [(name, leaf) for name, leaf in named if name in fused and not is_row_sparse(leaf)]
            if together:
                arrays, info[FUSED] = reduce_fused(together)
                reduced.update(zip([name for name, _ in together], arrays, strict=True))
            for name, leaf in named:
                if name not in reduced:
                    reduced[name], info[name] = reduce_leaf(name, leaf)
            names = info_names(named, fused) if state is None else state.info
            info = _largest_beside(_by_name(info, names, together), axes)
        treedef = jax.tree.structure(updates, is_leaf=is_sparse_leaf)
        return jax.tree.unflatten(treedef, [reduced[name] for name, _ in named]), SynchronizeState(info)

    return optax.GradientTransformationExtraArgs(init, update)


def _by_name(info: dict[str, Info], names: Iterable[str], together: list[tuple[str, Leaf]]) -> dict[str, Info]:
    """Under the names that the state has, whatever a plan or a row-sparse gradient has fused since `init`."""
    found: dict[str, list[Info]] = {name: [] for name in names}
    for name, of_name in info.items():
        # Of leaves that had names of their own, the first stands for their buckets.
        known = name if name in found else together[0][0] if name == FUSED else FUSED
        if known not in found:
            raise ValueError(
                f"state is of {', '.join(found)}, but gradients have {known}. Call init with the parameters that they "
                "are of."
            )
        found[known].append(of_name)
    return {name: total(infos) for name, infos in found.items()}


def _largest_beside(info: dict[str, Info], axes: AxisName) -> dict[str, Info]:
    """The largest over other axes of an enclosing shard_map, whose shards of tensor parallelism differ."""
    leaves, treedef = jax.tree.flatten(info)
    if not leaves or not _axis.beside(axes):
        return info
    return treedef.unflatten(list(_axis.largest_beside(jnp.stack(leaves), axes)))


def _sum_dense(infos: list[Info]) -> Info:
    fields = ("bytes_pushed", "bytes_pulled", "bytes_dense")
    return make_info(dense_taken=1.0, **{field: sum(getattr(info, field) for info in infos) for field in fields})
