"""`random_k`: sends random elements of every gradient."""

import zlib
from typing import NamedTuple

import jax.numpy as jnp
import optax

from zen_jax import errors
from zen_jax._typing import Array, PyTree
from zen_jax.hashing import murmur3
from zen_jax.kernels import send_drawn
from zen_jax.transforms import feedback


class RandomKState(NamedTuple):
    """State of `random_k`."""

    count: Array  # int32 [], steps taken
    residual: PyTree  # what this worker has not sent yet, of the gradients' shapes


def random_k(density: float, seed: int = 0) -> optax.GradientTransformationExtraArgs:
    """Sends k random elements of every leaf and keeps the rest for later steps (error feedback).

    k is exactly ceil(density * size). The choice depends only on the seed, the step and the leaf's name, so all workers
    send the same elements without having to agree on them: the reduced gradient is no denser than one worker's, whereas
    independent choices could make it up to n times as dense. Non-finite elements are sent even beyond k. `top_k` says
    where to put it.

    Args:
      density: share of every leaf's elements to send, above 0 and at most 1.
      seed: 0 to 2**32 - 1, the same on every worker.

    Returns:
      An `optax.GradientTransformationExtraArgs` with `RandomKState`; residuals are as in `top_k`.

    Raises:
      ValueError: for a density outside (0, 1] or a seed that is not a uint32; at init or update for leaves that are not
        floats; at update for leaves of 2**31 elements or more.

    >>> import jax.numpy as jnp
    >>> sparsifier = random_k(density=0.25)
    >>> sent, state = sparsifier.update(jnp.ones(8), sparsifier.init(jnp.zeros(8)))
    >>> int(sent.sum()), int(state.residual.sum())
    (2, 6)

    Source: Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory" (NeurIPS 2018), section 2.
    """
    density = feedback.check_density(density)
    errors.check_seed(seed)

    def init(params: PyTree) -> RandomKState:
        return RandomKState(jnp.zeros((), jnp.int32), feedback.zeros(params))

    def update(updates: PyTree, state: RandomKState, params: PyTree = None, **_) -> tuple[PyTree, RandomKState]:
        del params
        feedback.check_state(state, RandomKState)

        def leaf(name: str, update: Array, residual: Array) -> tuple[Array, Array]:
            k = feedback.num_to_send(density, update.size)
            return send_drawn(update, residual, k, murmur3(state.count, zlib.crc32(name.encode(), seed)))

        sent, residual = feedback.map_leaves(leaf, updates, state.residual)
        return sent, RandomKState(optax.safe_increment(state.count), residual)

    return optax.GradientTransformationExtraArgs(init, update)
