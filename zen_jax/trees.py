"""Leaves of a gradient tree by name."""

import jax

from zen_jax._typing import Array, PyTree
from zen_jax.row_sparse import RowSparseGradient, is_row_sparse


def named_leaves(tree: PyTree) -> list[tuple[str, Array | RowSparseGradient]]:
    """(name, leaf) for every array and row-sparse gradient of a tree, in order.

    None and `optax.MaskedNode` have no leaves.

    >>> import jax.numpy as jnp
    >>> [name for name, _ in named_leaves({"embed": {"table": jnp.zeros(2)}, "bias": None})]
    ['embed/table']
    """
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_row_sparse)[0]
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in leaves]
