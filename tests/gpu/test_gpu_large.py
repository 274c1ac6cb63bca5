"""Gradients of many elements: of more blocks than a device runs at once, and with offsets that need 64 bits."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from cases import assert_same_bits

import zen_jax as zen

SEED = 5
MEMORY = 30e9  # bytes: the gradient, the shards and the result have 8.6 GB each


@pytest.mark.parametrize(
    ("units", "n", "capacity"),
    [(60_000_007, 16, 600_000), (60_000_007, 128, 75_000), (140_000_007, 16, 500_000), (60_000_007, 16, 100_000)],
    ids=["in one pass", "in one pass, for many servers", "by runs", "by runs, of which some are not listed"],
)
def test_many_elements(units, n, capacity):
    """More chunks than the device runs blocks at once, so that look-back waits for blocks of several waves; or more
    runs of a server than a block scans at once.
    """
    rng = np.random.default_rng(0)
    x = np.zeros(units, np.float32)
    some = units // 24
    x[rng.integers(0, units, some)] = np.arange(1, some + 1)
    positions, values, counts = jax.jit(lambda x: zen.kernels.partition(x, n, capacity, seed=SEED))(x)
    nonzero = np.flatnonzero(x)
    servers = oracle.server_of(nonzero, n, SEED)
    np.testing.assert_array_equal(counts, np.bincount(servers, minlength=n))
    for server, (found, sent) in enumerate(zip(np.asarray(positions), np.asarray(values), strict=True)):
        expected = nonzero[servers == server][:capacity]
        np.testing.assert_array_equal(found[: len(expected)], expected // n)
        np.testing.assert_array_equal(sent[: len(expected)], x[expected])


def skip_without_memory():
    limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit", 0) if jax.default_backend() == "gpu" else 0
    if limit < MEMORY:
        pytest.skip(f"JAX needs {MEMORY / 1e9:.0f} GB on a GPU, but has {limit / 1e9:.0f}")


@pytest.mark.parametrize(("rows", "columns"), [(211, 499), (65_539, 65_537)], ids=["small", "beyond 2**32"])
def test_exchange_of_few_nonzeros_among_many_units(rows, columns):
    """Indices reach 2**32, positions do not. The small gradient shows, wherever it runs, that this test is right."""
    n, units = 16, rows * columns
    if units > 2**31:
        skip_without_memory()
    rng = np.random.default_rng(units)
    borders = np.arange(-3, 3) + np.array([0, 2**31, 2**32, units])[:, None]
    nonzero = np.union1d(borders, rng.integers(0, units, 100_000 if units > 2**31 else 1_000))
    nonzero = nonzero[(nonzero >= 0) & (nonzero < units)]
    sent = rng.choice([-2, -1, 1, 2], nonzero.size).astype(np.float16)
    servers, tiles = oracle.server_of(nonzero, n, SEED), oracle.tiles(units, n)
    counts = np.bincount(servers, minlength=n)
    capacity = int(counts.max()) + 1

    # Indices of rows and columns need but 32 bits.
    where = [at.astype(np.int32) for at in np.divmod(nonzero, columns)]
    fill = lambda at, values: jnp.zeros((rows, columns), values.dtype).at[tuple(at)].set(values).reshape(-1)
    x = jax.jit(fill)(where, sent)
    buckets = jax.jit(lambda x: zen.kernels.partition(x, n, capacity, seed=SEED))(x)
    positions, values, found = map(np.asarray, buckets)
    np.testing.assert_array_equal(found, counts)
    for server, count in enumerate(counts):
        np.testing.assert_array_equal(positions[server, :count], nonzero[servers == server] // n)
        assert_same_bits(values[server, :count], sent[servers == server])

    inbox = [part[:, None] for part in buckets]  # of each server, from a single worker
    together = lambda *inbox: zen.kernels.aggregate_encode(*inbox, tiles, capacity)
    in_a_row = lambda *inbox: zen.kernels.hash_bitmap_encode(zen.kernels.aggregate(*inbox, tiles), capacity)
    decode = jax.jit(lambda words, values: zen.kernels.hash_bitmap_decode(words, values, units, seed=SEED))
    for encode in (together, in_a_row):
        words, kept, held = jax.jit(jax.vmap(encode))(*inbox)
        np.testing.assert_array_equal(held, counts)
        assert jax.jit(jnp.array_equal)(decode(words, kept), x)
