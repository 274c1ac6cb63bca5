"""A plan: for every leaf of a gradient tree its scheme, unit and capacities."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from zen_jax import kernels
from zen_jax._typing import Array, PyTree, Unit
from zen_jax.errors import check_choice
from zen_jax.formats import coo, hash_bitmap
from zen_jax.schemes import registry
from zen_jax.schemes.dense import dense_bytes
from zen_jax.trees import named_leaves
from zen_jax.units import unit_width

HEADROOM = 1.03  # by how much a planned capacity exceeds the fullest message measured


@dataclass(frozen=True)
class LeafPlan:
    """How one leaf travels. `unit` is elements per unit; `capacity` is units in a (push, pull) message."""

    shape: tuple[int, ...]
    dtype: str
    scheme: str = "auto"
    unit: int = 1
    capacity: tuple[int, int] | None = None


@dataclass(frozen=True)
class Plan:
    """Plans of a tree's leaves by name, for n workers and a hash seed. `str(plan)` is a table."""

    n: int
    leaves: Mapping[str, LeafPlan]
    seed: int = 0

    def check(self, named: list[tuple[str, Array]], n: int | None, seed: int) -> None:
        """Raises a ValueError that says what differs where this is a plan for another tree, n or seed."""
        if n is not None and n != self.n:
            raise ValueError(f"plan is for {self.n} workers, but the axis has {n}. Make a plan for {n} workers.")
        if seed != self.seed:
            raise ValueError(f"plan was made with seed={self.seed}, but seed={seed} was given. Use the plan's.")
        if set(self.leaves) != {name for name, _ in named}:
            differing = sorted(set(self.leaves) ^ {name for name, _ in named})
            raise ValueError(f"plan is for other leaves: {', '.join(differing)} differ. Make a plan for this tree.")
        for name, leaf in named:
            planned = self.leaves[name]
            check_choice(f"plan's scheme of {name}", planned.scheme, registry.names())
            if planned.shape != leaf.shape or planned.dtype != str(leaf.dtype):
                raise ValueError(
                    f"plan is for {name} of {planned.dtype}{list(planned.shape)}, but the gradient is "
                    f"{leaf.dtype}{list(leaf.shape)}. Make a plan for these shapes."
                )

    def __str__(self) -> str:
        rows = [("leaf", "shape", "dtype", "scheme", "unit", "push", "pull")]
        for name, leaf in self.leaves.items():
            push, pull = leaf.capacity or ("any", "any")
            rows.append((name, str(leaf.shape), leaf.dtype, leaf.scheme, str(leaf.unit), str(push), str(pull)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([f"plan for {self.n} workers", *(line.rstrip() for line in lines)])


def measure_plan(*steps: PyTree, unit: Unit = "auto", seed: int = 0) -> Plan:
    """Measures gradients of one or more steps and plans messages that just fit them.

    Args:
      steps: trees of stacked gradients, each leaf [n, ...]: one slice per worker.
      unit: as in `zen_jax.all_reduce`.
      seed: seed of the tile rotation.

    Returns:
      A Plan for `zen_jax.synchronize(..., plan=plan)`: leaves whose messages would move fewer bytes than a dense
      all-reduce take "auto" with capacities 3 % above the fullest messages seen, the others "dense_ordered".

    Raises:
      ValueError: for no steps, or for leaves without a common leading axis.

    >>> import jax.numpy as jnp
    >>> gradients = {"table": jnp.zeros((4, 1000, 64)).at[:, :20].set(1.0), "bias": jnp.ones((4, 64))}
    >>> print(measure_plan(gradients))
    plan for 4 workers
    leaf   shape       dtype    scheme         unit  push  pull
    bias   (64,)       float32  dense_ordered  1     any   any
    table  (1000, 64)  float32  auto           16    21    21
    """
    if not steps:
        raise ValueError("measure_plan needs the stacked gradients of at least one step.")
    measured = [named_leaves(step) for step in steps]
    sizes = {leaf.shape[:1] for named in measured for _, leaf in named}
    if len(sizes) != 1 or () in sizes:
        raise ValueError(f"stacked gradients must share one leading axis, one slice per worker; got {sorted(sizes)}.")
    ((n,),) = sizes
    leaves = {}
    for position, (name, stacked) in enumerate(measured[0]):
        shape, dtype = stacked.shape[1:], stacked.dtype
        width = unit_width(shape, unit, n)
        dense = LeafPlan(shape, str(dtype), "dense_ordered", width)
        if stacked.size == 0:
            leaves[name] = dense
            continue
        fullest = [_fullest_messages(named[position][1], width, seed) for named in measured]
        push, pull = (max(1, math.ceil(max(counts) * HEADROOM)) for counts in zip(*fullest, strict=True))
        units = stacked[0].size // width
        moved = (n - 1) * (
            coo.message_bytes(push, width, dtype) + hash_bitmap.message_bytes(-(-units // n), pull, width, dtype)
        )
        sparse = LeafPlan(shape, str(dtype), "auto", width, (push, pull))
        leaves[name] = sparse if moved < 2 * dense_bytes(stacked[0].size, dtype, n) else dense
    return Plan(n, leaves, seed)


def _fullest_messages(stacked: Array, width: int, seed: int) -> tuple[int, int]:
    """Units in the fullest push and pull message of gradients [n, ...]."""
    n = stacked.shape[0]

    @jax.jit
    def count(stacked: Array) -> tuple[Array, Array]:
        units = stacked.reshape(n, -1, width)
        pushed = jax.lax.map(lambda x: kernels.partition(x, n, 1, seed=seed)[2], units)
        pulled = kernels.partition(jnp.sum(units, axis=0), n, 1, seed=seed)[2]
        return jnp.max(pushed), jnp.max(pulled)

    push, pull = count(stacked)
    return int(push), int(pull)
