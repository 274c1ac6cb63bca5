"""The schemes by name, all with one signature, and for how many exchanges each takes a capacity."""

from collections.abc import Callable, Sized
from typing import NamedTuple

from zen_jax import errors
from zen_jax._typing import AxisName
from zen_jax.schemes import agsparse, auto, dense, sparcml, sparse_ps, zen
from zen_jax.schemes.hierarchy import hierarchical
from zen_jax.schemes.omnireduce import by_blocks
from zen_jax.schemes.options import Scheme


class _Entry(NamedTuple):
    run: Scheme
    num_exchanges: Callable[[int], int | None]  # of n workers; None for a scheme that ignores capacities
    takes_sparse: bool = False  # whether the units may be a `SparseGradient`
    in_blocks: bool = False  # whether blocks are its units


_SCHEMES: dict[str, _Entry] = {
    "dense": _Entry(dense.dense, lambda n: None),
    "dense_ordered": _Entry(dense.dense_ordered, lambda n: None),
    "zen": _Entry(zen.zen, lambda n: 2, takes_sparse=True),
    "auto": _Entry(auto.auto, lambda n: 2, takes_sparse=True),
    "agsparse": _Entry(agsparse.agsparse, lambda n: 1, takes_sparse=True),
    "sparcml": _Entry(sparcml.sparcml, lambda n: len(sparcml.stages(n))),
    "omnireduce": _Entry(sparse_ps.sparse_ps, lambda n: 2, in_blocks=True),
    "sparse_ps": _Entry(sparse_ps.sparse_ps, lambda n: 2),
}

DENSE = ("dense_ordered", "dense")
"""The schemes that send every element, whatever the unit."""


def names() -> tuple[str, ...]:
    """The names that `scheme=` takes.

    >>> names()
    ('dense', 'dense_ordered', 'zen', 'auto', 'agsparse', 'sparcml', 'omnireduce', 'sparse_ps')
    """
    return tuple(_SCHEMES)


def get(name: str, intra_axis: AxisName | None = None) -> Scheme:
    """The scheme called `name`, across machines if an axis of their devices is given.

    Raises a ValueError that lists the names if there is none.
    """
    entry = _entry(name)
    run = entry.run if intra_axis is None else hierarchical(entry.run, intra_axis)
    # Outermost: devices share whole blocks of the tensor.
    return by_blocks(run) if entry.in_blocks else run


def takes_sparse(name: str) -> bool:
    """Whether a scheme moves a `SparseGradient` without densifying it."""
    return _entry(name).takes_sparse


def check_exchanges(capacity: Sized, name: str, n: int) -> None:
    """Raises a ValueError for more capacities than a scheme has exchanges among n workers.

    zen, auto, omnireduce and sparse_ps push and pull; agsparse gathers; sparcml has one exchange for each stage.
    """
    most = _entry(name).num_exchanges(n)
    if n > 1 and most is not None and len(capacity) > most:
        raise ValueError(
            f"capacity={capacity!r} has {len(capacity)} entries, but scheme={name!r} has {most} exchanges among {n} "
            "workers. Give at most one entry for each."
        )


def _entry(name: str) -> _Entry:
    errors.check_choice("scheme", name, names())
    return _SCHEMES[name]
