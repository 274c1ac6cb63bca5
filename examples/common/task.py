"""What an example provides: its data, its model and its optimizer."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import optax

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Task:
    """A training problem, split into the pieces that the training loop puts together."""

    lines: tuple[str, ...]
    """What to print about data and model before training."""

    items: str
    """What a step reads, in the plural, such as "words"."""

    items_per_step: int
    """How many of them all workers together read in a step."""

    params: PyTree
    """The parameters to start from."""

    batch: Callable[[int, Sequence[int]], PyTree]
    """batch(step, workers) -> NumPy arrays [len(workers), ...], what each of these workers reads in that step."""

    loss: Callable[[PyTree, PyTree, PyTree, jax.Array], tuple[jax.Array, PyTree]]
    """loss(params, carry, batch, key) -> (a worker's loss, its next carry)."""

    optimizer: optax.GradientTransformation
    """Turns synchronised gradients into updates."""

    metric: str
    """The name of what `validate` returns, such as "perplexity"."""

    validate: Callable[[PyTree], float | None]
    """validate(params) -> a figure on held-out data, None if there is too little of it."""

    lookups: Callable[[PyTree, PyTree, jax.Array], Mapping[str, PyTree]] | None = None
    """lookups(carry, batch, key) -> the ids that `loss` looks up in each table, keyed by the table's name in `params`;
    None if a step reads whole tables."""

    carry: PyTree = ()
    """The initial value of what a worker carries from step to step."""

    sparsifier: optax.GradientTransformation = dataclasses.field(default_factory=optax.identity)
    """What each worker does to its own gradients before they are synchronised."""

    synchronize: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further options of `zen.synchronize`."""
