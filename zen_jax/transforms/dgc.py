"""`dgc`: Deep Gradient Compression, which sends few elements of a gradient without losing accuracy."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from zen_jax import _axis, errors
from zen_jax._sums import accumulator_dtype
from zen_jax._typing import Array, AxisName, PyTree
from zen_jax.collective import OPS
from zen_jax.kernels.error_feedback import split
from zen_jax.selection import check_size
from zen_jax.sparse import SparseGradient
from zen_jax.transforms import feedback

EXCESS = 1.3  # a threshold that sends more than this multiple of its share of elements is adapted


class DgcState(NamedTuple):
    """State of `dgc`."""

    count: Array  # int32 [], steps taken
    velocity: PyTree  # momentum of every leaf, of the gradients' shapes
    residual: PyTree  # velocities not sent yet; of leaves that are sent dense, what 16 bits cannot hold


def dgc(
    density: float | Callable[[Array], Array] = 0.001,
    *,
    momentum: float = 0.9,
    clip_norm: float | None = None,
    axis_name: AxisName | None = None,
    op: str = "mean",
    model_axis: AxisName | None = None,
    compact: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Deep Gradient Compression: sends the largest accumulated velocities and keeps the rest.

    Leaves of two or more dimensions are sparsified; others, such as most biases, go dense, with plain momentum. For
    gradient g:

        velocity = momentum * velocity + g              momentum correction
        total = residual + velocity
        sent = total where |total| reaches a threshold, 0 elsewhere
        residual = total - sent
        velocity = 0 where sent                         momentum factor masking

    Momentum is applied here, so the optimizer after it must have none: `optax.chain(zen.dgc(...), zen.synchronize(axis,
    unit="element", dense_below=1 << 16), optax.sgd(rate))` (`top_k` explains the options). Weight decay also goes after
    `synchronize`.

    The threshold comes from a sample of a hundredth of the elements and is adapted until it sends at least
    k = ceil(density * size) elements and at most 1.3 k; if equal magnitudes would exceed this, the first of them are
    sent. (The original stops after ten adaptations and cuts off the last elements.) Non-finite elements are sent even
    beyond that, and momentum and residual stay finite.

    Args:
      density: share of the elements to send, above 0 and at most 1, or a schedule from the step count to this share:
        see `warmup_density`.
      momentum: 0 to below 1.
      clip_norm: bound on the norm of the whole reduced gradient, if those of the n workers are independent: before
        accumulation, each is scaled down to a norm of at most clip_norm * sqrt(n) for a mean, clip_norm / sqrt(n) for a
        sum.
      axis_name: the axis of the n workers; needed only with clip_norm.
      op: "mean" or "sum", as in `synchronize`; matters only with clip_norm.
      model_axis: the axis of tensor parallelism. A leaf's shards share one threshold, from samples gathered over the
        axis, and k counts the whole leaf. In the clipped norm, a leaf that is replicated over the axis counts once per
        device.
      compact: as in `top_k`, with room for 1.3 k. The density must be a number: warm up without `compact`; the state is
        the same.

    Returns:
      An `optax.GradientTransformationExtraArgs` with `DgcState`: sent + residual equals last residual + velocity
      bitwise. State of 16-bit floats is float32 and also keeps what rounding cuts off, as in `top_k`. State differs
      between workers.

    Raises:
      ValueError: for a density, momentum or clip_norm out of range, an unknown op, clip_norm without axis_name, or a
        schedule with `compact`; at init or update for leaves that are not floats; at update for an axis that is not
        bound, or for leaves of 2**31 elements or more over all shards.

    >>> import jax.numpy as jnp
    >>> sparsifier = dgc(density=0.25, momentum=0.5)
    >>> state = sparsifier.init(jnp.zeros((2, 2)))
    >>> sent, state = sparsifier.update(jnp.array([[1.0, 4.0], [2.0, 0.0]]), state)
    >>> sent, state = sparsifier.update(jnp.array([[1.0, 2.0], [0.5, 0.0]]), state)
    >>> sent.tolist(), state.residual.tolist()
    ([[0.0, 0.0], [3.5, 0.0]], [[2.5, 2.0], [0.0, 0.0]])

    Source: Lin et al., "Deep Gradient Compression" (ICLR 2018), section 3; tensor parallelism: ZEN (OSDI 2025),
    section 4.
    """
    if not callable(density):
        density = feedback.check_density(density)
    elif compact:
        raise ValueError(
            "compact=True sets aside room for a density that is a number, but density is a schedule. Warm up with "
            "compact=False, then continue with the last density and the same state."
        )
    _check(momentum, clip_norm, axis_name)
    errors.check_choice("op", op, OPS)

    def init(params: PyTree) -> DgcState:
        return DgcState(jnp.zeros((), jnp.int32), feedback.zeros(params), feedback.zeros(params))

    def update(updates: PyTree, state: DgcState, params: PyTree = None, **_) -> tuple[PyTree, DgcState]:
        del params
        feedback.check_state(state, DgcState)
        share = density(state.count) if callable(density) else density
        shards = 1 if model_axis is None else _axis.axis_size(model_axis, "model_axis")
        if model_axis is not None:
            _axis.check_not_cached(model_axis)
        factor = None if clip_norm is None else _clip_factor(updates, clip_norm, axis_name, op, model_axis)

        def leaf(
            _: str, update: Array, velocity: Array, residual: Array
        ) -> tuple[Array | SparseGradient, Array, Array]:
            scale = None if factor is None else factor.astype(velocity.dtype)
            if update.ndim < 2:
                gradient = update.astype(velocity.dtype)
                gradient = gradient if scale is None else gradient * scale
                velocity = velocity.dtype.type(momentum) * velocity + gradient
                sent, residual = split(residual + velocity, jnp.ones_like(velocity, bool), update.dtype)
                return sent, jnp.where(jnp.isfinite(velocity), velocity, jnp.zeros_like(velocity)), residual
            sent, residual, velocity = feedback.send(
                update,
                residual,
                *_bounds(share, shards * update.size),
                velocity=velocity,
                momentum=momentum,
                scale=scale,
                model_axis=model_axis,
                compact=compact,
            )
            return sent, velocity, residual

        sent, velocity, residual = feedback.map_leaves(leaf, updates, state.velocity, state.residual)
        return sent, DgcState(optax.safe_increment(state.count), velocity, residual)

    return optax.GradientTransformationExtraArgs(init, update)


def warmup_density(density: float, steps: int, stages: int = 5) -> Callable[[Array], Array]:
    """A schedule for `dgc` that lowers the density exponentially, to send more of early, fast-changing gradients.

    Args:
      density: the density from step `steps` on, above 0 and at most 1.
      steps: how many steps the warm-up takes; DGC uses four or five epochs.
      stages: number of stages of equal length; in stage i (from 0) the density is density ** ((i + 1) / (stages + 1)).

    Returns:
      A function from the step count (int32 []) to the density (float32 []).

    Raises:
      ValueError: for a density outside (0, 1], steps or stages below 1, or 2**31 steps or more.

    >>> schedule = warmup_density(0.001, steps=50)
    >>> [round(float(schedule(step)), 4) for step in (0, 10, 20, 30, 40, 50, 1000)]
    [0.3162, 0.1, 0.0316, 0.01, 0.0032, 0.001, 0.001]

    Source: Lin et al., "Deep Gradient Compression" (ICLR 2018), section 3.3.
    """
    density = feedback.check_density(density)
    errors.check_at_least("steps", steps, 1)
    if steps >= 2**31:
        raise ValueError(f"steps={steps} must be below 2**31: steps are counted in int32.")
    errors.check_at_least("stages", stages, 1)
    values = [density ** (stage / (stages + 1)) for stage in range(1, stages + 2)]
    ends = [-(-steps * stage // stages) for stage in range(1, stages + 1)]

    def schedule(count: Array) -> Array:
        stage = jnp.sum(count >= jnp.asarray(ends, jnp.int32))
        return jnp.asarray(values, jnp.float32)[stage]

    return schedule


def _check(momentum: float, clip_norm: float | None, axis_name: AxisName | None) -> None:
    if not errors.is_number(momentum) or not 0 <= momentum < 1:
        raise ValueError(
            f"momentum={momentum!r} must be a number of at least 0 and below 1.{errors.static_hint(momentum)}"
        )
    if clip_norm is None:
        return
    errors.check_positive("clip_norm", clip_norm)
    if axis_name is None:
        raise ValueError(f"clip_norm={clip_norm!r} is shared among n workers: pass axis_name, the axis they lie on.")


def _bounds(share: float | Array, size: int) -> tuple[Array | int, Array | int]:
    """The fewest and most elements to send of a leaf, over all its shards."""
    check_size(size)
    if isinstance(share, float | int):
        share = feedback.check_density(share)  # a schedule may return anything
        least = feedback.num_to_send(share, size)
        return least, min(int(EXCESS * least), size)
    share, rest = jnp.clip(jnp.asarray(share, jnp.float32), 0, 1), size % 4096
    errors.check_shape("density", share.shape, ())
    # float32 holds every multiple of 4096 below 2**31, but not every size above 2**24.
    coarse = share * jnp.float32(size - rest)
    whole = jnp.floor(coarse)
    least = whole.astype(jnp.int32) + jnp.ceil(coarse - whole + share * jnp.float32(rest)).astype(jnp.int32)
    least = jnp.maximum(least, 1)
    return least, jnp.minimum((jnp.float32(EXCESS) * least.astype(jnp.float32)).astype(jnp.int32), size)


def _clip_factor(updates: PyTree, clip_norm: float, axis_name: AxisName, op: str, model_axis: AxisName | None) -> Array:
    """What to multiply a worker's gradients by: the same on all its shards, and 1 if an element is not finite."""
    leaves = [leaf for _, leaf in feedback.dense_leaves(updates)]
    dtype = functools.reduce(np.promote_types, (accumulator_dtype(leaf.dtype) for leaf in leaves), np.dtype("float32"))
    leaves, least = [leaf.astype(dtype) for leaf in leaves], jnp.finfo(dtype).tiny
    # Squares would overflow; squares relative to the largest do not. The smallest normal float stands in for zero. Both
    # are scaled, because XLA may multiply by a reciprocal, and that of the largest floats is subnormal.
    largest = [least, *(jnp.max(jnp.abs(leaf), initial=0) for leaf in leaves)]
    largest = functools.reduce(jnp.maximum, largest)
    if model_axis is not None:
        largest = lax.pmax(largest, model_axis)
    scale = dtype.type(1 / 8)
    one = jnp.maximum(largest * scale, least)
    squared = sum((jnp.sum(jnp.square(leaf * scale / one)) for leaf in leaves), dtype.type(0))
    if model_axis is not None:
        squared = lax.psum(squared, model_axis)
    # The norm of n independent vectors' sum is sqrt(n) times theirs; that of their mean is the n-th part of this.
    longer = math.sqrt(_axis.axis_size(axis_name))
    limit = dtype.type(clip_norm * longer if op == "mean" else clip_norm / longer)
    # A subnormal factor would count as zero, and the gradient would be lost.
    factor = jnp.clip(limit / largest / jnp.sqrt(squared), least, dtype.type(1))
    # The maximum may miss a non-finite element, but the sum does not.
    return jnp.where(jnp.isfinite(squared), factor, dtype.type(1))
