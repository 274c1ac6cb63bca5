"""The largest elements, found by counting: exactly k of them, the first of equal ones, with and without a sample."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from cases import FLOATS, normal

from zen_jax import selection

top_k_mask = jax.jit(selection.top_k_mask)


@hypothesis.given(st.lists(st.integers(-4, 4), min_size=150, max_size=150), st.integers(1, 150))
def test_exactly_k_with_the_first_of_equals(values, k):
    x = np.array(values, np.float32)
    marked = np.asarray(top_k_mask(x, k, k))
    np.testing.assert_array_equal(marked & (x != 0), oracle.largest(x, k) & (x != 0))


@pytest.mark.parametrize("kind", FLOATS)
def test_exactly_k_of_every_dtype(kind):
    with jax.enable_x64(kind == "float64"):
        x = normal(1000, dtype=FLOATS[kind])
        for k in (1, 2, 128, 999, 1000):
            marked = top_k_mask(jnp.asarray(x), k, k)
            np.testing.assert_array_equal(marked, oracle.largest(x.astype(np.float64), k))


LARGE = selection.SAMPLED + 77


@pytest.mark.parametrize(
    "spread",
    {
        "normal": lambda x: x,
        "equal": lambda x: np.ones_like(x),
        "few values": lambda x: np.round(x),
        "heavy tail": lambda x: x**9,
        "mostly zero": lambda x: np.where(np.arange(x.size) % 500 == 0, x, 0).astype(np.float32),
        "in one place": lambda x: np.where(np.arange(x.size) // 50 == 700, x, 0).astype(np.float32),
        "sorted": np.sort,
    }.items(),
    ids=lambda spread: spread[0],
)
def test_a_sample_misleads_nobody(spread):
    """Above the size from which a sample is taken, the answer is the same; with slack, it stays within the slack."""
    x = spread[1](normal(LARGE))
    for k in (1, 66, 6561, LARGE):
        marked = np.asarray(top_k_mask(x, k, k))
        np.testing.assert_array_equal(marked & (x != 0), oracle.largest(x, k) & (x != 0))
        most = min(int(1.3 * k), LARGE)
        marked = np.asarray(top_k_mask(x, k, most)) & (x != 0)
        assert min(k, np.count_nonzero(x)) <= marked.sum() <= most
        np.testing.assert_array_equal(marked, oracle.largest(x, marked.sum()) & (x != 0))
