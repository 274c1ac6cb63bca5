"""Lookups in a small table, their gradients by NumPy, and what a row-sparse gradient must look like."""

import jax
import numpy as np
from hypothesis import strategies as st

import zen_jax as zen

N, V, D, K = 4, 23, 3, 12
RNG = np.random.default_rng(0)
TABLE = RNG.integers(-8, 9, (V, D)).astype(np.float32)
ids_in_range = st.lists(st.integers(0, V - 1), min_size=K, max_size=K).map(lambda ids: np.array(ids, np.int32))
any_ids = st.lists(st.integers(-3, V + 3), min_size=K, max_size=K).map(lambda ids: np.array(ids, np.int32))


def integers(*shape):
    return RNG.integers(-8, 9, shape).astype(np.float32)


def dense_sum(ids, rows, num_rows=V):
    """The gradients of lookups, summed by NumPy to [V, D]; ids outside the table are left out."""
    total = np.zeros((num_rows, *rows.shape[1:]), np.float64)
    inside = (ids >= 0) & (ids < num_rows)
    np.add.at(total, ids[inside], rows[inside].astype(np.float64))
    return total


def assert_well_formed(gradient):
    """Ids ascend, each once; unused ids are V and unused rows zero."""
    ids, rows = np.asarray(gradient.ids), np.asarray(gradient.rows)
    used = ids < gradient.num_rows
    assert (np.diff(ids[used]) > 0).all()
    assert (ids[np.count_nonzero(used) :] == gradient.num_rows).all()
    assert (rows[~used] == 0).all()


merged = jax.jit(lambda ids, rows: zen.RowSparseGradient.from_lookups(ids, rows, V))
