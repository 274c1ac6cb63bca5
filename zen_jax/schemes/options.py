"""What a scheme needs to know besides the units and the axis."""

from collections.abc import Callable
from typing import NamedTuple

from jax import lax

from zen_jax._typing import Array, AxisName
from zen_jax.info import Info


class ReduceOptions(NamedTuple):
    """The arguments of `all_reduce` that schemes read; each scheme ignores those that it does not need."""

    op: str = "mean"
    capacity: tuple[int | None, ...] = ()
    hash: str = "tile"
    seed: int = 0
    push_format: str = "coo"
    pull_format: str = "hash_bitmap"
    intra_axis: AxisName | None = None  # of a machine's devices, which all take the same branches

    def planned_capacity(self, exchange: int) -> int | None:
        """Units expected in the fullest message of a scheme's exchange, counted from 0; None if not given."""
        return self.capacity[exchange] if exchange < len(self.capacity) else None

    def divisor(self, n: int) -> int:
        """What the sum over n workers is divided by."""
        return n if self.op == "mean" else 1

    def pmax_over_machine(self, counts: Array) -> Array:
        """Counts that all workers know, maximised over a machine's devices; they decide which branch is taken."""
        # Collective-permutes name all devices of the program, and would deadlock if some took another branch.
        return counts if self.intra_axis is None else lax.pmax(counts, self.intra_axis)


Scheme = Callable[[Array, AxisName, ReduceOptions], tuple[Array, Info]]
"""Maps this worker's units [U, m] to the reduced [U, m], bitwise equal on all workers, and its `Info`."""
