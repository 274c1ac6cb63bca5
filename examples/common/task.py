"""What an example brings along: its data, its model and its optimizer."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import optax

from examples.common.errors import BadInput

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Task:
    """A training problem, cut into the pieces that the loop puts together."""

    lines: tuple[str, ...]
    """What to print about data and model before training."""

    items: str
    """What a step reads, in the plural: "words"."""

    items_per_step: int
    """How many of them all workers read together."""

    params: PyTree
    """The parameters to start from."""

    batch: Callable[[int, Sequence[int]], PyTree]
    """batch(step, workers) -> NumPy arrays [len(workers), ...], what each of these workers reads in a step."""

    loss: Callable[[PyTree, PyTree, PyTree, jax.Array], tuple[jax.Array, PyTree]]
    """loss(params, carry, batch, key) -> (a worker's loss, its next carry)."""

    optimizer: optax.GradientTransformation
    """Turns synchronised gradients into updates."""

    metric: str
    """What `validate` returns: "perplexity"."""

    validate: Callable[[PyTree], float | None]
    """validate(params) -> a figure on data held out, None where there is too little of it."""

    lookups: Callable[[PyTree, PyTree, jax.Array], Mapping[str, PyTree]] | None = None
    """lookups(carry, batch, key) -> the ids that `loss` looks up in each table, by the table's name in `params`; None
    where a step reads whole tables."""

    carry: PyTree = ()
    """What one worker hands from step to step, at the start."""

    sparsifier: optax.GradientTransformation = dataclasses.field(default_factory=optax.identity)
    """What each worker does to its own gradients before they are synchronised."""

    synchronize: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further options of `zen.synchronize`."""


class DataError(BadInput):
    """The data cannot be used; the message says why in one line."""
