"""Profiling inside a training step: devices count where the gradients are, and only the counts reach the host."""

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType

from zen_jax import _axis
from zen_jax._sums import accumulator_dtype
from zen_jax._typing import Array, AxisName
from zen_jax.buckets import DENSE_BELOW, small_tables, table_kind
from zen_jax.planning.cluster import Cluster
from zen_jax.planning.counts import Counts, Touched, count, pack, touched, unpack
from zen_jax.planning.leaf_profile import candidate_widths, has_overflowed, leaf_profile
from zen_jax.planning.sparsity import LeafProfile, SparsityProfile
from zen_jax.row_sparse import is_row_sparse
from zen_jax.trees import Leaf, densified

LIMIT = 1 << 20  # units of a leaf to examine; larger leaves are sampled
ELEMENT_LIMIT = 1 << 18  # the same for single elements

Report = Mapping[int, Counts]  # of one leaf in one step, by width; empty if it was not examined


class Profiler:
    """Watches the gradients that `zen_jax.synchronize(..., plan=profiler)` reduces, and makes a profile of them.

    When it has seen enough, trace the step again without the profiler, which keeps the counts of every step: profiling
    then costs nothing more. Leaves under `dense_below` bytes (1 MiB) that make up no larger table are not examined,
    because they are sent dense; row-sparse gradients need no plan, and are left out of the profile. Works wherever
    `synchronize` does; on several hosts, all get the same profile.

    Several `synchronize` in one step may share a profiler, each with its own leaves (`optax.partition`): the profile
    covers all their leaves.

    Args:
      cluster: what the profile is for, if known: a step with another number of workers is refused before it runs.

    >>> import jax, jax.numpy as jnp
    >>> from zen_jax.transforms.synchronize import synchronize
    >>> profiler = Profiler()
    >>> optimizer = synchronize("data", plan=profiler)
    >>> gradients = jnp.zeros((2, 5000, 64)).at[:, :50].set(1.0)  # two workers
    >>> step = jax.jit(jax.vmap(lambda g: optimizer.update(g, None)[0], axis_name="data"))
    >>> reduced = step(gradients)
    >>> profiler.profile().leaves["(array)"].at("row", n=2).density
    0.01
    """

    def __init__(self, cluster: Cluster | None = None) -> None:
        self._cluster = cluster
        self._leaves: dict[str, tuple[tuple[int, ...], str]] = {}
        self._options: dict[str, int] = {}
        self._reports: dict[str, dict[int, list[Report]]] = {}  # by leaf and device; without any until a step has run

    def observe(
        self,
        named: list[tuple[str, Leaf]],
        axis_name: AxisName,
        seed: int,
        intra_axis: AxisName | None = None,
        dense_below: int = DENSE_BELOW,
    ) -> None:
        """Adds the counting of gradients to the step that is being traced; `synchronize` calls it.

        With `intra_axis`, the axis of a machine's devices, it counts each machine's sum. Leaves of fewer than
        `dense_below` bytes are left out, unless several make up a table of as many. Raises a ValueError if the number
        of workers, seed, `dense_below`, a shape or a dtype differs from before, or JAX cannot call the host from here.
        """
        _check_host_is_in_reach()
        n, workers = _axis.axis_size(axis_name), _axis.combined_axes(axis_name, intra_axis)
        devices = 1 if intra_axis is None else _axis.axis_size(intra_axis, "intra_axis")
        if self._cluster is not None:
            self._cluster.check_workers(n, devices, "the axis has")
        device = jnp.int32(0)
        for axis in (*_axis.axis_names(workers), *_axis.other_manual_axes(workers)):
            device = device * _axis.axis_size(axis) + lax.axis_index(axis)
        names = tuple(name for name, _ in named)
        named = [(name, densified(leaf)) for name, leaf in named if not is_row_sparse(leaf)]
        self._remember(named, {"n": n, "seed": seed, "dense_below": dense_below, "devices_per_host": devices})
        for name in names:
            self._reports.setdefault(name, {})
        with jax.named_scope("profile"):
            examined = _examined(named, dense_below) if n > 1 else []
            found = {
                (name, width): bitmap
                for name, leaf in named
                if name in examined
                for width, bitmap in _touched(_of_machine(leaf, intra_axis), n * devices).items()
            }
            counts = count(list(found.values()), axis_name, seed=seed, devices=devices) if found else []
            # Tensor-parallel shards differ, but all processes must make the same plan.
            packed = _axis.pmax_over_other_axes(pack(counts), workers)
        shapes = jax.tree.map(lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype), counts)
        jax.debug.callback(partial(self._record, names, tuple(found), shapes), device, packed)

    def _remember(self, named: list[tuple[str, Array]], options: dict[str, int]) -> None:
        if self._options not in ({}, options):
            before, now = (", ".join(f"{name}={value}" for name, value in o.items()) for o in (self._options, options))
            raise ValueError(f"the profiler has watched {before}, but now gets {now}. Use another Profiler for that.")
        leaves = {name: (leaf.shape, str(leaf.dtype)) for name, leaf in named}
        for name, (shape, dtype) in leaves.items():
            before = self._leaves.get(name, (shape, dtype))
            if before != (shape, dtype):
                raise ValueError(
                    f"the profiler has watched {name!r} as {before[1]}{list(before[0])}, but now it is "
                    f"{dtype}{list(shape)}. Use another Profiler for another tree, or give each a name of its own: "
                    "synchronize {'name': tree}."
                )
        self._options = options
        self._leaves |= leaves

    def _record(
        self,
        names: tuple[str, ...],
        found: tuple[tuple[str, int], ...],
        shapes: list[Counts],
        device: Array,
        packed: Array,
    ) -> None:
        reports: dict[str, dict[int, Counts]] = {name: {} for name in names}
        for (name, width), counted in zip(found, unpack(np.asarray(packed), shapes), strict=True):
            reports[name][width] = counted
        for name, report in reports.items():
            held, device = self._reports[name], int(device)
            if not held or device <= min(held):  # reports are the same on every device: those of one are enough
                held.setdefault(device, []).append(report)

    @property
    def steps(self) -> int | None:
        """How many steps have run that synchronised every leaf, and did not overflow it; None before any was traced."""
        finite = (sum(not has_overflowed(report) for report in reports) for reports in self._seen().values())
        return min(finite, default=None)

    @property
    def most_steps(self) -> int:
        """How many steps have run that synchronised whichever leaf was synchronised most often."""
        return max(map(len, self._seen().values()), default=0)

    def _seen(self) -> dict[str, list[Report]]:
        """One report per step."""
        jax.effects_barrier()
        return {name: devices[min(devices)] if devices else [] for name, devices in self._reports.items()}

    def profile(self, *, partial: bool = False) -> SparsityProfile:
        """The profile of all steps that have run.

        Args:
          partial: whether leaves that were never synchronised are profiled as not measured, and so planned dense.

        Raises:
          ValueError: if no step has run or, unless `partial`, some leaf was never synchronised.
        """
        seen = self._seen()
        missing = [name for name, reports in seen.items() if not reports]
        if len(missing) == len(seen):
            raise ValueError(
                "the profiler has seen no step. Pass it to zen_jax.synchronize or value_and_grad as plan, in the very "
                "transformation that the step runs: a flax.nnx.Optimizer keeps the one that it was made with."
            )
        if missing and not partial:
            raise ValueError(f"the profiler has seen no step that synchronises {', '.join(missing)}. Run one first.")
        leaves, devices = {}, self._options["devices_per_host"]
        for name, (shape, dtype) in self._leaves.items():
            counted = [report for report in seen[name] if report]
            leaves[name] = leaf_profile(shape, dtype, counted, devices) if counted else LeafProfile(shape, dtype)
        steps = min(len(reports) for reports in seen.values() if reports)
        return SparsityProfile(leaves=leaves, steps=steps, **self._options)


def _check_host_is_in_reach() -> None:
    mesh = jax.sharding.get_abstract_mesh()
    explicit = [name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Explicit]
    if mesh.manual_axes and explicit:
        raise ValueError(
            "a Profiler calls the host, which JAX cannot do in a shard_map that leaves out Explicit axis "
            f"{explicit[0]!r}. Name it in the axis_names of shard_map, make the mesh with AxisType.Auto, or profile "
            "stacked gradients with zen_jax.profile."
        )


def _examined(named: list[tuple[str, Array]], dense_below: int) -> set[str]:
    """The leaves that may be worth sending sparse: large ones, and small ones that make up a large table."""
    small = {name: leaf for name, leaf in named if leaf.nbytes < dense_below}
    kinds = {name: (table_kind(leaf.shape, leaf.dtype), leaf.nbytes) for name, leaf in small.items()}
    tables = small_tables(kinds, dense_below)
    return {name for name, leaf in named if name not in small and leaf.size}.union(*tables)


def _of_machine(leaf: Array, intra_axis: AxisName | None) -> Array:
    """What a machine sends: its devices' sum, in the dtype in which they add it up."""
    return leaf if intra_axis is None else lax.psum(leaf.astype(accumulator_dtype(leaf.dtype)), intra_axis)


def _touched(leaf: Array, n: int) -> dict[int, Touched]:
    """As `touched`, for all candidate widths."""
    limits = {width: ELEMENT_LIMIT if width == 1 else LIMIT for width in candidate_widths(leaf.shape, n)}
    return touched(leaf, limits)
