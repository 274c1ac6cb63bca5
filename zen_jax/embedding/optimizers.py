"""How optax updates tables from row-sparse gradients: lazily, only touched rows, or as if the gradient were dense."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax

from zen_jax._typing import PyTree
from zen_jax.info import Info
from zen_jax.row_sparse import is_row_sparse, nan_if_altered
from zen_jax.trees import densified, values_of

_MULTI_STEP = (optax.MultiStepsState, optax.ApplyEvery)


def lazy(inner: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Wraps an optax transformation so that it sees only the touched rows of tables with a `RowSparseGradient`.

    The cost of a step grows with the touched rows, not with the table. For `optax.sgd` and `optax.adagrad` the result
    is that of the dense gradient, because a row without a gradient stays as it is. With momentum, `optax.adam` and
    `optax.adamw` it differs: a dense step also decays the moments of untouched rows, keeps moving those rows, and
    shrinks them by weight decay, which is work on every row of the table (`densify` does this). A lazy step does so
    only for the rows it touches, while adam's bias correction counts all steps. If every step touches every row, lazy
    and dense are the same. Other leaves are updated as usual.

    Args:
      inner: any transformation, with its state, that works element by element or, like `optax.clip_by_global_norm`,
        over the whole tree; not one that looks at a whole table, such as `optax.adafactor` or `optax.lamb`, nor
        `optax.MultiSteps` or `optax.apply_every`, whose last step would leave out the rows of earlier steps, nor
        `zen_jax.synchronize`, `pmean` and the like: every worker has its own rows.

    Returns:
      A transformation with the state of `inner` and row-sparse updates of tables, for gradients after
      `zen_jax.synchronize`. `optax.apply_updates` writes only the touched rows.

    Raises:
      ValueError: at init for `MultiSteps`, `apply_every` or `synchronize`; at update for a gradient whose shape is not
        its table's, or a state that is not.

    >>> import jax.numpy as jnp, optax
    >>> from zen_jax.row_sparse import RowSparseGradient
    >>> optimizer = lazy(optax.sgd(0.5))
    >>> params = {"table": jnp.ones((5, 2))}
    >>> state = optimizer.init(params)
    >>> gradient = RowSparseGradient.from_lookups(jnp.array([3]), jnp.array([[1.0, 2.0]]), num_rows=5)
    >>> updates, state = optimizer.update({"table": gradient}, state, params)
    >>> optax.apply_updates(params, updates)["table"][3].tolist()
    [0.5, 0.0]
    """
    inner = optax.with_extra_args_support(inner)

    def init(params: PyTree) -> PyTree:
        state = inner.init(params)
        parts = jax.tree.leaves(state, is_leaf=_is_refused)
        if any(isinstance(part, _MULTI_STEP) for part in parts):
            raise ValueError(
                "lazy wraps optax.MultiSteps or apply_every, which would lose the rows that its last step does "
                "not touch. Add up the gradients before update, with RowSparseGradient.from_lookups."
            )
        if any(isinstance(part, Info) for part in parts):
            raise ValueError(
                "lazy wraps zen_jax.synchronize, which would add up rows of different ids: every worker has touched "
                "its own. Put it before lazy: optax.chain(synchronize(...), lazy(...))."
            )
        return state

    def update(updates: PyTree, state: PyTree, params: PyTree = None, **extra: Any) -> tuple[PyTree, PyTree]:
        updates = jax.tree.map(_nan_if_altered, updates, is_leaf=is_row_sparse)
        # A tree like the state, with the gradient wherever the state holds something for a table's rows.
        try:
            gradients = optax.tree_utils.tree_map_params(
                inner, lambda held, gradient: gradient if _has_rows(held) else held, state, updates, is_leaf=_is_masked
            )
        except ValueError as error:
            raise ValueError(
                "state is not that of what lazy wraps, for these gradients, or of what looks at whole tables, such as "
                "optax.sm3. Call init of this very transformation with their parameters, or use densify."
            ) from error
        rows = jax.tree.map(values_of, updates, is_leaf=is_row_sparse)
        state_of_rows = jax.tree.map(_take_rows_of_state, state, gradients)
        params_of_rows = None if params is None else jax.tree.map(_take_rows, params, updates)
        rows, state_of_rows = inner.update(rows, state_of_rows, params_of_rows, **extra)
        return (
            jax.tree.map(_with_rows, updates, rows, is_leaf=is_row_sparse),
            jax.tree.map(_put_rows, state, gradients, state_of_rows),
        )

    return optax.GradientTransformationExtraArgs(init, update)


def densify() -> optax.GradientTransformation:
    """Makes row-sparse gradients dense: put it before an optimizer whose dense result you want.

    After `zen_jax.synchronize`, the network still moves only touched rows. The optimizer then works on every row of the
    table, and the step's time and memory grow with the table.

    Returns:
      A transformation without state, which leaves arrays as they are.

    >>> import jax.numpy as jnp, optax
    >>> from zen_jax.row_sparse import RowSparseGradient
    >>> optimizer = optax.chain(densify(), optax.adam(0.1))
    >>> params = jnp.ones((3, 1))
    >>> gradient = RowSparseGradient.from_lookups(jnp.array([1]), jnp.array([[1.0]]), num_rows=3)
    >>> updates, _ = optimizer.update(gradient, optimizer.init(params), params)
    >>> updates.shape, round(float(updates[1, 0]), 4)
    ((3, 1), -0.1)
    """

    return optax.stateless(lambda updates, params: jax.tree.map(densified, updates, is_leaf=is_row_sparse))


def _is_masked(state: Any) -> bool:
    return isinstance(state, optax.MaskedNode)


def _has_rows(held: Any) -> bool:
    """False for what is masked, and for one number for a whole leaf, as in `optax.zero_nans`."""
    return not _is_masked(held) and jnp.ndim(held) > 0


def _is_refused(state: Any) -> bool:
    return isinstance(state, (*_MULTI_STEP, Info))


def _nan_if_altered(leaf: Any) -> Any:
    return nan_if_altered(leaf) if is_row_sparse(leaf) else leaf


def _take_rows(whole: Any, gradient: Any) -> Any:
    return gradient.take(whole) if is_row_sparse(gradient) else whole


def _take_rows_of_state(whole: Any, gradient: Any) -> Any:
    if is_row_sparse(gradient) and jnp.shape(whole)[1:] == gradient.shape[1:] and len(whole) != gradient.num_rows:
        raise ValueError(
            f"state is for a table of {len(whole)} rows, but the gradient is for {gradient.num_rows}. Call init with "
            "the parameters that the gradients belong to."
        )
    if is_row_sparse(gradient) and jnp.shape(whole) != gradient.shape:
        raise ValueError(
            f"lazy wraps a transformation whose state for a table of shape {gradient.shape} has shape "
            f"{jnp.shape(whole)}, so it looks at whole tables, as optax.adafactor does. Use densify in place of lazy."
        )
    return _take_rows(whole, gradient)


def _with_rows(gradient: Any, rows: Any) -> Any:
    return replace(gradient, rows=rows) if is_row_sparse(gradient) else rows


def _put_rows(whole: Any, gradient: Any, rows: Any) -> Any:
    return gradient.put(whole, rows) if is_row_sparse(gradient) else rows
