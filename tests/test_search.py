"""Binary search."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zen_jax._search import count_below

any_integers = st.lists(st.integers(-5, 40), max_size=40)


@given(any_integers, any_integers)
def test_counts_as_numpy_does(elements, values):
    ascending, values = np.sort(np.array(elements, np.int32)), np.array(values, np.int32)
    np.testing.assert_array_equal(count_below(jnp.asarray(ascending), values), np.searchsorted(ascending, values))


@pytest.mark.parametrize("size", [1, 255, 256, 257, 100_000])
def test_every_gap(size):
    ascending = 2 * np.arange(size, dtype=np.int32)
    values = np.arange(-1, 2 * size + 1, dtype=np.int32).reshape(2, -1)
    np.testing.assert_array_equal(jax.jit(count_below)(ascending, values), np.searchsorted(ascending, values))
