"""MurmurHash3 and the tile rotation: known vectors, the bijection, and Theorem 2's balance."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

import zen_jax as zen

# The published test vectors of MurmurHash3_x86_32 that hash exactly four bytes.
VECTORS = [
    (0x00000000, 0x00000000, 0x2362F9DE),
    (0xFFFFFFFF, 0x00000000, 0x76293B50),
    (0x87654321, 0x00000000, 0xF55B516B),
    (0x87654321, 0x5082EDEE, 0x2362F9DE),
    (0x74736574, 0x00000000, 0xBA6BD213),  # "test"
    (0x74736574, 0x9747B28C, 0x704B81DC),
    (0x61616161, 0x9747B28C, 0x5A97808A),  # "aaaa"
    (0x64636261, 0x9747B28C, 0xF0478627),  # "abcd"
]
WORKERS = [1, 2, 3, 4, 5, 7, 8, 128, 1000]

server_of = jax.jit(zen.hashing.server_of, static_argnums=(1, 2))


@pytest.mark.parametrize("key,seed,expected", VECTORS)
def test_murmur3_known_vectors(key, seed, expected):
    assert oracle.murmur3(key, seed) == expected
    assert int(zen.hashing.murmur3(jnp.uint32(key), seed)) == expected


@pytest.mark.parametrize("seed", [np.uint32(0xFFFFFFFF), np.int32(2**31 - 1)])
def test_seeds_of_numpy_are_those_of_python(seed):
    for i in range(3):
        mine, expected = (zen.hashing.hash_family(np.arange(9), i, 8, s) for s in (seed, int(seed)))
        np.testing.assert_array_equal(mine, expected)


@pytest.mark.parametrize("size", [1, 65535, 65536, 10**6, 2**31 - 1])
def test_ranges_of_any_size(size):
    words = np.append(np.random.default_rng(size).integers(0, 2**32, 1000), [0, 2**32 - 1]).astype(np.uint32)
    expected = (words.astype(np.uint64) * np.uint64(size)) >> np.uint64(32)
    np.testing.assert_array_equal(zen.hashing.reduce_to_range(jnp.asarray(words), size), expected)


@pytest.mark.parametrize("n", WORKERS)
@pytest.mark.parametrize("seed", [0, 7, 0xFFFFFFFF])
def test_tile_rotation_equals_the_oracle_and_inverts(n, seed):
    index = np.arange(5 * n + 3, dtype=np.int32)
    server = np.asarray(zen.hashing.server_of(jnp.asarray(index), n, seed))
    position = np.asarray(zen.hashing.position_of(jnp.asarray(index), n))
    np.testing.assert_array_equal(server, oracle.server_of(index, n, seed))
    np.testing.assert_array_equal(position, index // n)
    back = zen.hashing.index_of(jnp.asarray(server), jnp.asarray(position), n, seed)
    np.testing.assert_array_equal(np.asarray(back), index)


@pytest.mark.parametrize("n", WORKERS)
def test_every_tile_gives_each_server_one_unit(n):
    index = np.arange(50 * n, dtype=np.int32)
    server = np.asarray(server_of(index, n, 0)).reshape(50, n)
    np.testing.assert_array_equal(np.sort(server, axis=1), np.tile(np.arange(n), (50, 1)))


def test_large_indices():
    """Indices near 2^31 neither overflow nor lose bits."""
    index = np.array([2**31 - 1, 2**31 - 2, 2**30, 2**31 - 1000], np.int32)
    for n in (2, 3, 7, 128):
        server = np.asarray(zen.hashing.server_of(jnp.asarray(index), n, 3))
        np.testing.assert_array_equal(server, oracle.server_of(index.astype(np.int64), n, 3))
        position = np.asarray(zen.hashing.position_of(jnp.asarray(index), n))
        np.testing.assert_array_equal(position, index // n)
        back = zen.hashing.index_of(jnp.asarray(server), jnp.asarray(position), n, 3)
        np.testing.assert_array_equal(np.asarray(back), index)


def test_hashing_traces():
    """The same under jit as outside it."""
    index = np.arange(100, dtype=np.int32)
    np.testing.assert_array_equal(server_of(index, 7, 5), oracle.server_of(index, 7, 5))


@pytest.mark.parametrize("n", [0, 2.0, 2**16])
def test_servers_that_cannot_be(n):
    refuses(lambda: zen.hashing.server_of(np.arange(4), n), f"n={n}")
    refuses(lambda: zen.hashing.position_of(np.arange(4), n), f"n={n}")
    refuses(lambda: zen.hashing.index_of(0, np.arange(4), n), f"n={n}")


@pytest.mark.parametrize("seed", [-1, 2**32, 0.5])
def test_seeds_that_cannot_be(seed):
    refuses(lambda: zen.hashing.server_of(np.arange(4), 2, seed), f"seed={seed}")
    refuses(lambda: zen.hashing.index_of(0, np.arange(4), 2, seed), f"seed={seed}")


# Theorem 2: the fullest server holds at most mu + 6 sqrt(mu) of m indices, mu = m / n, except with a probability
# of about exp(-18 / (1 + 2 / sqrt(mu))). It holds for every index set chosen without knowing the seed.
INDEX_SETS = {
    "random": lambda n, rng: rng.choice(200_000, 20_000, replace=False),
    "every n-th": lambda n, rng: np.arange(20_000) * n,
    "every (n + 1)-th": lambda n, rng: np.arange(20_000) * (n + 1),
    "powers of two apart": lambda n, rng: np.arange(20_000) * 64,
    "one run": lambda n, rng: np.arange(20_000) + 12_345,
    "clusters": lambda n, rng: (rng.choice(5_000, 500, replace=False)[:, None] * 40 + np.arange(40)).ravel(),
    "Zipf": lambda n, rng: np.unique(np.minimum(rng.zipf(1.2, 60_000), 2_000_000)),
}


@pytest.mark.parametrize("n", [2, 3, 8, 16, 128])
@pytest.mark.parametrize("name", INDEX_SETS)
def test_theorem_2_balance(name, n):
    index = INDEX_SETS[name](n, np.random.default_rng(n)).astype(np.int32)
    counts = np.bincount(np.asarray(server_of(index, n, 0)), minlength=n)
    mean = len(index) / n
    assert counts.sum() == len(index)
    assert counts.max() <= mean + 6 * np.sqrt(mean), f"fullest {counts.max()}, mean {mean}"


# Non-zero elements of large gradients: what one worker pushes, and, as the last, what all pull.
LARGE_SETS = {
    "random": lambda rng: np.unique(rng.integers(0, 50_000_000, 1_000_000)),
    "rows of 64": lambda rng: (rng.choice(781_250, 15_625, replace=False)[:, None] * 64 + np.arange(64)).ravel(),
    "every third": lambda rng: np.arange(1_000_000) * 3,
    "one in each tile": lambda rng: np.arange(1_000_000) * 128,
    "the union of random rows": lambda rng: (
        np.unique(rng.integers(0, 200_000, (8, 1_000)))[:, None] * 250 + np.arange(250)
    ).ravel(),
}
HASHES = {
    "tile": zen.hashing.server_of,
    "murmur": lambda index, n: zen.hashing.hash_family(index, 0, n, seed=0),
}


@pytest.mark.parametrize("hash", HASHES)
@pytest.mark.parametrize("name", LARGE_SETS)
def test_imbalance_of_a_million_elements_on_128_servers(name, hash):
    index = LARGE_SETS[name](np.random.default_rng(0))
    assert len(index) > 980_000
    counts = np.bincount(HASHES[hash](index, 128))
    assert counts.max() < 1.1 * len(index) / 128


@given(seed=st.integers(0, 2**32 - 1), index=st.integers(0, 2**31 - 1), n=st.integers(1, 65535))
def test_oracle_is_a_bijection(seed, index, n):
    """The oracle's own inverse is exact, so the tests above compare with something correct."""
    server = oracle.server_of(np.array([index]), n, seed)
    assert 0 <= server[0] < n
    assert oracle.index_of(server, np.array([index // n]), n, seed)[0] == index
