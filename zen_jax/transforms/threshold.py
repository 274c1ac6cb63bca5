"""`threshold`: sends the elements of every gradient that reach a magnitude."""

from typing import NamedTuple

import optax

from zen_jax import errors
from zen_jax._typing import PyTree
from zen_jax.kernels import send_reaching
from zen_jax.transforms import feedback


class ThresholdState(NamedTuple):
    """State of `threshold`: what this worker has not sent yet, of the gradients' shapes."""

    residual: PyTree


def threshold(value: float) -> optax.GradientTransformationExtraArgs:
    """Sends every element that has grown to a magnitude of `value` and keeps the rest for later steps.

    The cheapest sparsifier: one pass over the data, and no density to maintain. Non-finite elements are sent too.
    Put it before `synchronize(..., unit="element", dense_below=1 << 16)`, as `top_k`.

    Args:
      value: the smallest magnitude to send, finite and above 0.

    Returns:
      An `optax.GradientTransformationExtraArgs` with `ThresholdState`; residuals are as in `top_k`.

    Raises:
      ValueError: for a value that is not finite or not above 0; at init or update for leaves that are not floats; at
        update for leaves whose dtype holds nothing as large, or as small, as the value, or of 2**31 elements or more.

    >>> import jax.numpy as jnp
    >>> sparsifier = threshold(1.0)
    >>> state = sparsifier.init(jnp.zeros(3))
    >>> sent, state = sparsifier.update(jnp.array([0.5, -1.0, 0.25]), state)
    >>> sparsifier.update(jnp.array([0.5, 0.5, 0.25]), state)[0].tolist()
    [1.0, 0.0, 0.0]

    Source: Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing" (Interspeech 2015), without
    its quantisation.
    """
    errors.check_positive("value", value)
    return feedback.memory_alone(ThresholdState, lambda _, update, residual: send_reaching(update, residual, value))
