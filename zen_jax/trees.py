"""Leaves of a gradient tree (arrays, sparse or row-sparse gradients) and their names."""

from collections import Counter
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from zen_jax import errors
from zen_jax._typing import Array, PyTree
from zen_jax.row_sparse import RowSparseGradient
from zen_jax.sparse import SparseGradient

Leaf: TypeAlias = Array | SparseGradient | RowSparseGradient


def is_sparse_leaf(node: Any) -> bool:
    """Whether a node is a leaf although `jax.tree` would descend into it."""
    return isinstance(node, SparseGradient | RowSparseGradient)


def values_of(leaf: Leaf) -> Array:
    """The floats that a leaf holds."""
    if isinstance(leaf, SparseGradient):
        return leaf.values
    return leaf.rows if isinstance(leaf, RowSparseGradient) else leaf


def densified(leaf: Leaf) -> Array:
    """The gradient as an array, zeros included."""
    return leaf.to_dense() if is_sparse_leaf(leaf) else leaf


def named_leaves(tree: PyTree) -> list[tuple[str, Leaf]]:
    """(name, leaf) for every leaf of a tree, in order.

    None and `optax.MaskedNode` have no leaves; a single array is the leaf "(array)". The value of a Flax variable is
    named like the variable, because optimizers see either. Python numbers become arrays. Raises a ValueError for
    repeated names or non-gradient leaves.

    >>> import jax.numpy as jnp
    >>> [name for name, _ in named_leaves({"embed": {"table": jnp.zeros(2)}, "bias": None})]
    ['embed/table']
    """
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_sparse_leaf)[0]
    names = [jax.tree_util.keystr(_of_variable(path), simple=True, separator="/") or "(array)" for path, _ in leaves]
    named = [(name, _typed(name, leaf)) for name, (_, leaf) in zip(names, leaves, strict=True)]
    twice = [name for name, count in Counter(name for name, _ in named).items() if count > 1]
    if twice:
        raise ValueError(f"two leaves of the tree are called {twice[0]!r}. Rename one: leaves are told apart by name.")
    return named


def _typed(name: str, leaf: Any) -> Leaf:
    if hasattr(leaf, "dtype"):
        return leaf
    if not errors.is_number(leaf):
        raise ValueError(
            f"{name} is a {type(leaf).__name__}, but leaves must be arrays. Leave it out with optax.masked."
        )
    return jnp.asarray(leaf)


def _of_variable(path: tuple) -> tuple:
    return path[:-1] if path and path[-1] == jax.tree_util.GetAttrKey("value") else path
