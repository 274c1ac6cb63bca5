"""Kernels that make lists of a gradient's elements, or partition them, against those of dense gradients."""

import functools
import importlib

import harness
import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from cases import FLOATS, assert_same_bits, assert_same_values, held, listed, normal, special

import zen_jax as zen
from zen_jax import selection


@functools.cache
def partition_coo(n, capacity):
    """The lowering that this machine uses, and pure JAX."""
    reference = importlib.import_module("zen_jax.kernels.partition_coo").reference
    return [jax.jit(functools.partial(run, n=n, capacity=capacity)) for run in (zen.kernels.partition_coo, reference)]


@functools.cache
def partition(n, capacity):
    return jax.jit(lambda x: zen.kernels.partition(x, n, capacity))


def assert_same_buckets(actual, expected):
    actual, expected = harness.to_numpy((actual, expected))
    assert_same_bits(actual[2], expected[2])
    for mine, theirs in zip(actual[:2], expected[:2], strict=True):
        at = held(expected[2], theirs.shape[1])
        assert_same_bits(mine[at], theirs[at])


@pytest.mark.parametrize("dtype", FLOATS)
def test_partition_of_a_list_is_that_of_the_dense_gradient(dtype):
    """Every dtype, special values, odd sizes, full and overflowing buckets."""
    with jax.enable_x64(dtype == "float64"):
        for x in special(1, (1003,), FLOATS[dtype]).values():
            for n, capacity in ((3, 20), (8, 126), (2000, 1)):
                expected = partition(n, capacity)(x[0])
                for run in partition_coo(n, capacity):
                    assert_same_buckets(run(*listed(x[0], 1003)), expected)


@hypothesis.given(st.integers(0, 2**32 - 1), st.floats(0, 1), st.booleans())
def test_partition_of_any_list(seed, density, clustered):
    rng = np.random.default_rng(seed)
    x = np.where(rng.random(70001) < density ** (3 if clustered else 1), 1 + rng.random(70001), 0).astype(np.float32)
    x[: 65000 * clustered] = 0
    expected = partition(5, 14001)(x)
    for run in partition_coo(5, 14001):
        assert_same_buckets(run(*listed(x, 70001)), expected)


def test_partition_of_nothing():
    for run in partition_coo(3, 4):
        assert run(np.zeros(1, np.int32), np.ones(1, np.float32), np.int32(0))[2].tolist() == [0, 0, 0]


@functools.cache
def both_ways(room, momentum):
    """send_largest and list_largest: (sent, residual, velocity) and ((indices, values, count), ...)."""

    def run(kernel, update, residual, velocity, k):
        options = {"velocity": velocity, "momentum": 0.9} if momentum else {}
        return kernel(update, residual, k, k, **options)

    send = functools.partial(run, zen.kernels.send_largest)
    enlist = functools.partial(run, lambda u, r, a, b, **how: zen.kernels.list_largest(u, r, a, b, room, **how))
    return jax.jit(jax.vmap(send)), jax.jit(jax.vmap(enlist))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [1, 1087, 70001])
def test_list_holds_what_would_be_sent(dtype, size):
    """Counted and sampled, with values of every kind, under vmap; beyond its room a list is cut off."""
    with jax.enable_x64(dtype == "float64"):
        for name, update in special(2, (size,), FLOATS[dtype]).items():
            kept = np.float64 if dtype == "float64" else np.float32
            residual, velocity = normal((2, size), 1, kept), normal((2, size), 2, kept)
            residual[:, ::3] = 0
            for k, momentum in ((1, False), (-(-size // 50), True), (-(-size // 50), False), (size, False)):
                send, enlist = both_ways(-(-size // 5), momentum)
                k = np.full(2, k, np.int32)
                sent, *state = send(update, residual, velocity, k)
                (indices, values, counts), *other = harness.to_numpy(enlist(update, residual, velocity, k))
                for mine, theirs in zip(jax.tree.leaves(other), jax.tree.leaves(state), strict=True):
                    assert_same_bits(mine, theirs, name)
                for worker in range(2):
                    found = np.flatnonzero(np.asarray(sent)[worker])
                    assert counts[worker] == found.size
                    found = found[: indices.shape[1]]
                    np.testing.assert_array_equal(indices[worker, : found.size], found)
                    assert_same_values(values[worker, : found.size], np.asarray(sent)[worker, found], name)


def test_list_where_the_sample_misleads():
    """What was sent too early is taken off the list again."""
    update = np.zeros((2, 70001), np.float32)
    update[:, 35000:35050] = 1 + np.arange(50)
    update[1] = 3
    for k in (1, 20, 700):
        send, enlist = both_ways(70001, False)
        k = np.full(2, k, np.int32)
        sent, residual, _ = send(update, 0 * update, update, k)
        lists, other, _ = harness.to_numpy(enlist(update, 0 * update, update, k))
        assert_same_bits(other, residual)
        for worker in range(2):
            found = np.flatnonzero(np.asarray(sent)[worker])
            assert lists[2][worker] == found.size
            np.testing.assert_array_equal(lists[0][worker, : found.size], found)


@pytest.mark.parametrize("size", [1087, selection.SAMPLED + 77])
def test_pure_jax_lists_the_same(size, monkeypatch):
    update, residual, velocity = (normal(size, seed) for seed in range(3))

    def run():
        listing = lambda u, r, v: zen.kernels.list_largest(u, r, 40, 45, room=30, velocity=v, momentum=0.9)
        return harness.to_numpy(jax.jit(listing)(update, residual, velocity))

    native = run()
    monkeypatch.setattr("zen_jax._native.library", lambda *_: None)
    jax.tree.map(assert_same_bits, run(), native)
