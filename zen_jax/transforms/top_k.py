"""`top_k`: sends the largest elements of every gradient."""

from typing import NamedTuple

import optax

from zen_jax._typing import Array, PyTree
from zen_jax.sparse import SparseGradient
from zen_jax.transforms import feedback


class TopKState(NamedTuple):
    """State of `top_k`: what this worker has not sent yet, of the gradients' shapes."""

    residual: PyTree


def top_k(density: float, *, compact: bool = False) -> optax.GradientTransformationExtraArgs:
    """Sends the k largest magnitudes of every leaf and keeps the rest for later steps (error feedback).

    k is exactly ceil(density * size); of equal magnitudes those of lowest index go first. Elements that are not finite
    are sent beyond k, so that the residual stays finite. Put it before `synchronize(..., unit="element")`: its default
    unit would send whole blocks of columns for an element of theirs.

    Args:
      density: share of every leaf's elements to send, above 0 and at most 1.
      compact: whether to hand leaves of at least 1 MiB on as a `SparseGradient`, which saves a pass over them on CPUs
        and gives the same result, to the bit. It travels by elements, whatever the unit, and nothing but `synchronize`
        may follow. Its list has room for k: of more elements that are not finite the first k are sent, so that whoever
        guards the training sees them, and the others are dropped.

    Returns:
      An `optax.GradientTransformationExtraArgs` with `TopKState`: sent + residual is update + last residual, to the
      bit. Residuals of 16-bit floats are float32 and keep what rounding cuts off, too. State differs between workers.

    Raises:
      ValueError: for a density outside (0, 1]; at init or update for leaves that are no floats.

    >>> import jax.numpy as jnp, optax
    >>> sparsifier = top_k(density=0.25)
    >>> state = sparsifier.init(jnp.zeros(4))
    >>> sent, state = sparsifier.update(jnp.array([1.0, -3.0, 2.0, 0.0]), state)
    >>> sent.tolist(), state.residual.tolist()
    ([0.0, -3.0, 0.0, 0.0], [1.0, 0.0, 2.0, 0.0])

    Source: Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory" (NeurIPS 2018), section 2.
    """
    density = feedback.check_density(density)

    def init(params: PyTree) -> TopKState:
        return TopKState(feedback.zeros(params))

    def leaf(_: str, update: Array, residual: Array) -> tuple[Array | SparseGradient, Array]:
        if not update.size:
            return update, residual
        k = feedback.kept(density, update.size)
        return feedback.send(update, residual, k, k, compact=compact)[:2]

    def update(updates: PyTree, state: TopKState, params: PyTree = None, **_) -> tuple[PyTree, TopKState]:
        del params
        sent, residual = feedback.map_leaves(leaf, updates, state.residual)
        return sent, TopKState(residual)

    return optax.GradientTransformationExtraArgs(init, update)
