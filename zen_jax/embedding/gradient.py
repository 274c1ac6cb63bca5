"""`value_and_grad` with row-sparse gradients of tables."""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any

import jax

from zen_jax._typing import Array, PyTree
from zen_jax.embedding.lookup import TakenRows, take_rows
from zen_jax.trees import named_leaves


def value_and_grad(
    fun: Callable[..., Any],
    lookups: Callable[..., Mapping[str, PyTree]],
    has_aux: bool = False,
    *,
    padding_id: int | Mapping[str, int] | None = None,
) -> Callable[..., Any]:
    """`jax.value_and_grad` that gives each table a `RowSparseGradient` in place of a dense one.

    Args:
      fun: a loss fun(params, *args, **kwargs) that reads its tables only through `lookup` and `bag`: it gets a
        `TakenRows` in place of each. It returns a scalar, or (scalar, aux) with `has_aux`.
      lookups: a function of the same args, without kwargs, that returns the ids that fun looks up, by the table's name
        in params ("encoder/table", or "(array)" if params are the table): an integer array or a tree of them. A table
        that is read twice has one entry with all ids.
      has_aux: whether `fun` returns auxiliary data.
      padding_id: the id that names no row: one for all tables, or a mapping by name.

    Returns:
      A function of (params, *args, **kwargs) that returns (value, gradients), or ((value, aux), gradients) with
      `has_aux`. The gradients are a tree like params, with a RowSparseGradient of K entries for a table in which K ids
      are looked up.

    Raises:
      ValueError: for lookups that are no function or return no mapping, a name that params or lookups lack, and as in
        `take_rows`.

    >>> import jax.numpy as jnp
    >>> from zen_jax.embedding import lookup
    >>> params = {"table": jnp.ones((1000, 2)), "w": jnp.array([1.0, 2.0])}
    >>> loss = lambda params, ids: jnp.sum(lookup(params["table"], ids) @ params["w"])
    >>> value, gradients = value_and_grad(loss, lambda ids: {"table": ids})(params, jnp.array([3, 500, 3]))
    >>> float(value), gradients["w"].tolist()
    (9.0, [3.0, 3.0])
    >>> gradients["table"].ids.tolist(), gradients["table"].rows.tolist()
    ([3, 500, 1000], [[2.0, 4.0], [1.0, 2.0], [0.0, 0.0]])
    """

    if not callable(lookups):
        raise ValueError(
            f"lookups is a {type(lookups).__name__}, but must be a function of the batch that returns the ids by the "
            'table\'s name in params. Use lambda ids: {"table": ids}.'
        )

    @wraps(fun, updated=())
    def wrapped(params: PyTree, *args: Any, **kwargs: Any) -> tuple[Any, PyTree]:
        named = named_leaves(params)
        treedef = jax.tree.structure(params)
        taken = _take(dict(named), lookups(*args), padding_id)

        def of_rows(leaves: list[Array]) -> Any:
            whole = [
                TakenRows(taken[name].ids, leaf, taken[name].num_rows) if name in taken else leaf
                for (name, _), leaf in zip(named, leaves, strict=True)
            ]
            return fun(jax.tree.unflatten(treedef, whole), *args, **kwargs)

        leaves = [taken[name].rows if name in taken else leaf for name, leaf in named]
        value, gradients = jax.value_and_grad(of_rows, has_aux=has_aux)(leaves)
        gradients = [
            taken[name].gradient(gradient) if name in taken else gradient
            for (name, _), gradient in zip(named, gradients, strict=True)
        ]
        return value, jax.tree.unflatten(treedef, gradients)

    return wrapped


def _take(
    tables: Mapping[str, Array], ids: Mapping[str, PyTree], padding_id: int | Mapping[str, int] | None
) -> dict[str, TakenRows]:
    if not isinstance(ids, Mapping):
        raise ValueError(
            f"lookups returned a {type(ids).__name__}, but must return the ids by the table's name in params. Use "
            '{"table": ids}.'
        )
    padding = padding_id if isinstance(padding_id, Mapping) else dict.fromkeys(ids, padding_id)
    for argument, names, known, owner in (("lookups", ids, tables, "params"), ("padding_id", padding, ids, "lookups")):
        unknown = sorted(set(names) - set(known))
        if unknown:
            raise ValueError(
                f"{argument} names {_quoted(unknown)}, but {owner} have {_quoted(known)}. Use names from {owner}."
            )
    return {name: take_rows(tables[name], of_table, padding_id=padding.get(name)) for name, of_table in ids.items()}


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
