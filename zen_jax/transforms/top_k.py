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

    k is exactly ceil(density * size); of equal magnitudes, those of lowest index go first. Non-finite elements are sent
    even beyond k, so that the residual stays finite. Put it before `synchronize(..., unit="element",
    dense_below=1 << 16)`: by default a whole block of columns would travel for a single element, and leaves of less
    than 1 MiB with all their zeros. What is kept is gradients, so an optimizer that follows applies the learning rate
    of the step in which an element is sent. The source keeps updates: for that, put `optax.sgd(schedule)` first.

    Args:
      density: share of every leaf's elements to send, above 0 and at most 1.
      compact: whether to pass on leaves of at least 1 MiB as a `SparseGradient`, which saves a pass over them on CPUs
        and gives the same result, bit for bit. Only `synchronize` may follow; it sends the list by elements, unless a
        `unit`, plan or `intra_axis` makes it a dense array again. The list has room for k: of more than k non-finite
        elements, the first k are sent, so that a check for them sees them, and the others are dropped.

    Returns:
      An `optax.GradientTransformationExtraArgs` with `TopKState`: sent + residual equals update + last residual
      bitwise. Residuals of 16-bit floats are float32 and also keep what rounding cuts off: all of a float16 element
      below 6.1e-5, which is subnormal, so scale the loss. State differs between workers.

    Raises:
      ValueError: for a density outside (0, 1]; at init or update for leaves that are not floats; at update for leaves
        of 2**31 elements or more.

    >>> import jax.numpy as jnp, optax
    >>> sparsifier = top_k(density=0.25)
    >>> state = sparsifier.init(jnp.zeros(4))
    >>> sent, state = sparsifier.update(jnp.array([1.0, -3.0, 2.0, 0.0]), state)
    >>> sent.tolist(), state.residual.tolist()
    ([0.0, -3.0, 0.0, 0.0], [1.0, 0.0, 2.0, 0.0])

    Source: Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory" (NeurIPS 2018), section 2.
    """
    density = feedback.check_density(density)

    def leaf(_: str, update: Array, residual: Array) -> tuple[Array | SparseGradient, Array]:
        k = feedback.num_to_send(density, update.size)
        return feedback.send(update, residual, k, k, compact=compact)[:2]

    return feedback.memory_alone(TopKState, leaf)
