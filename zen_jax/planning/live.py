"""Profiling inside a training step: counts are made where the gradients are, and only the counts reach the host."""

import math
from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from zen_jax import _axis
from zen_jax._typing import Array, AxisName
from zen_jax.planning.buckets import DENSE_BELOW
from zen_jax.planning.cluster import Cluster
from zen_jax.planning.profile import LeafProfile, SparsityProfile, candidate_widths, leaf_profile
from zen_jax.planning.statistics import Counts, Touched, count, pack, touched, unpack
from zen_jax.row_sparse import is_row_sparse
from zen_jax.sparse import densified
from zen_jax.trees import Leaf

LIMIT = 1 << 20  # units of a leaf looked at; of a larger one a sample
ELEMENT_LIMIT = 1 << 18  # the same for single elements

Report = Mapping[str, Mapping[int, Counts]]


class Profiler:
    """Watches the gradients that `zen_jax.synchronize(..., plan=profiler)` reduces, and makes a profile of them.

    Trace the step anew, without the profiler, when it has seen enough: then profiling costs nothing more. Leaves under
    `dense_below` bytes (1 MiB) are not looked at, for they travel together; row-sparse gradients need no plan, and are
    left out of the profile. Works wherever `synchronize` does; among several hosts all come to the same profile.

    Args:
      cluster: what the profile is for, if known: a step of another number of workers is refused before it runs.

    >>> import jax, jax.numpy as jnp
    >>> from zen_jax.transforms.synchronize import synchronize
    >>> profiler = Profiler()
    >>> optimizer = synchronize("data", plan=profiler)
    >>> gradients = jnp.zeros((2, 5000, 64)).at[:, :50].set(1.0)  # two workers
    >>> step = jax.jit(jax.vmap(lambda g: optimizer.update(g, None)[0], axis_name="data"))
    >>> reduced = step(gradients)
    >>> profiler.profile().leaves[""].at("row", n=2).density
    0.01
    """

    def __init__(self, cluster: Cluster | None = None) -> None:
        self._cluster = cluster
        self._leaves: dict[str, tuple[tuple[int, ...], str]] = {}
        self._n = self._seed = self._dense_below = 0
        self._reports: dict[int, list[Report]] = {}

    def observe(
        self,
        named: list[tuple[str, Leaf]],
        axis_name: AxisName,
        seed: int,
        intra_axis: AxisName | None = None,
        dense_below: int = DENSE_BELOW,
    ) -> None:
        """Adds to the step that is being traced what counts its gradients; `synchronize` calls it.

        With `intra_axis`, the axis of a machine's devices, it counts the sums of machines. Leaves of fewer than
        `dense_below` bytes are left out.
        """
        n, workers = _axis.axis_size(axis_name), _axis.joined(axis_name, intra_axis)
        if self._cluster is not None:
            self._cluster.check_workers(n, "the axis has")
        device = jnp.int32(0)
        for axis in (*_axis.axis_names(workers), *_axis.beside(workers)):
            device = device * _axis.axis_size(axis) + lax.axis_index(axis)
        named = [(name, densified(leaf)) for name, leaf in named if not is_row_sparse(leaf)]
        self._leaves = {name: (leaf.shape, str(leaf.dtype)) for name, leaf in named}
        self._n, self._seed, self._dense_below = n, seed, dense_below
        with jax.named_scope("profile"):
            found = {
                (name, width): bitmap
                for name, leaf in named
                if leaf.size and leaf.nbytes >= dense_below and n > 1
                for width, bitmap in _touched(leaf if intra_axis is None else lax.psum(leaf, intra_axis), n).items()
            }
            counts = count(list(found.values()), axis_name, seed=seed) if found else []
            # Shards of tensor parallelism differ, and all processes are to make the same plan.
            packed = _axis.largest_beside(pack(counts), workers)
        shapes = jax.tree.map(lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype), counts)
        jax.debug.callback(partial(self._record, tuple(found), shapes), device, packed)

    def _record(self, found: tuple[tuple[str, int], ...], shapes: list[Counts], device: Array, packed: Array) -> None:
        report: dict[str, dict[int, Counts]] = {}
        for (name, width), counted in zip(found, unpack(np.asarray(packed), shapes), strict=True):
            report.setdefault(name, {})[width] = counted
        self._reports.setdefault(int(device), []).append(report)

    @property
    def steps(self) -> int | None:
        """How many steps it has seen run; None before any was traced with it."""
        return len(self._seen()) if self._n else None

    def _seen(self) -> list[Report]:
        """A report for each step: they are the same on every device, and a host may see several devices'."""
        jax.effects_barrier()
        return self._reports[min(self._reports)] if self._reports else []

    def profile(self) -> SparsityProfile:
        """The profile of all steps that have run; a ValueError where none has."""
        steps, leaves = self._seen(), {}
        if not steps:
            raise ValueError("the profiler has seen no step. Hand it to zen_jax.synchronize or value_and_grad as plan.")
        for name, (shape, dtype) in self._leaves.items():
            counted = [step[name] for step in steps if name in step]
            leaves[name] = leaf_profile(shape, dtype, counted) if counted else LeafProfile(shape, dtype)
        return SparsityProfile(self._n, leaves, self._seed, len(steps), self._dense_below)


def _touched(leaf: Array, n: int) -> dict[int, Touched]:
    """As `touched`, of all candidate widths."""
    widths, columns = candidate_widths(leaf.shape, n), math.prod(leaf.shape[1:])
    # Single elements are so many that they are sampled by themselves, or the sample would be of everything else too.
    # Units that fit neither into rows nor rows into them would have it cut into splinters.
    fitting = tuple(width for width in widths if width > 1 and columns % width * (width % columns) == 0)
    groups = [fitting] * bool(fitting) + [(width,) for width in widths if width not in fitting]
    found = [touched(leaf, group, ELEMENT_LIMIT if group == (1,) else LIMIT) for group in groups]
    return {width: bitmap for group in found for width, bitmap in group.items()}
