"""What `Info` reports for every scheme, against NumPy's counts from the gradient and the capacity ladder."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from cases import sparse, structured
from harness import info_of
from hypothesis import given, settings
from hypothesis import strategies as st

import zen_jax as zen
from zen_jax.info import make_info
from zen_jax.schemes.agsparse import sparse_limit
from zen_jax.schemes.ladder import ladder, rounds

UNITS, WIDTH = 900, 4
UNIT_BYTES = 4 * WIDTH
BLOCK_BYTES = 4 * 256
SEEDS = {"seed": st.integers(0, 2**32 - 1), "density": st.floats(0, 1), "skew": st.floats(0, 1)}


def gradient(n, seed, density, skew):
    """[n, UNITS, WIDTH] without cancellation; the higher the skew, the more non-zeros lie at low indices."""
    rng = np.random.default_rng(seed)
    keep = rng.random((n, UNITS)) < density * np.exp(-20 * skew * np.arange(UNITS) / UNITS)
    return (keep[:, :, None] * rng.uniform(1, 2, (n, UNITS, WIDTH))).astype(np.float32)


def room(count, top, planned, unit_bytes, ratio=1.25):
    return next(rung for rung in ladder(top, planned, unit_bytes, ratio) if rung >= count)


def coo(capacity, unit_bytes):
    return 4 + capacity * (4 + unit_bytes)


def bitmap(bits):
    return 4 * -(-bits // 32)


def by_server(nonzero, owner, n):
    """nonzero bool [U] -> the number of non-zero units of each server."""
    return np.bincount(owner[nonzero], minlength=n)


def check_servers(info, nonzero, owner, size, planned, unit_bytes, push_bytes, pull_bytes, in_pull=None):
    """nonzero bool [n, U]; push_bytes and pull_bytes give the size of one message with room for so many units.

    in_pull bool [M, U] are the units in messages of M kinds to pull, if not one of all that are non-zero.
    """
    n = len(nonzero)
    pushed = np.stack([by_server(row, owner, n) for row in nonzero])
    pulled = by_server(nonzero.any(axis=0), owner, n)
    in_pull = pulled if in_pull is None else np.stack([by_server(row, owner, n) for row in in_pull])
    fullest = room(pushed.max(), size, planned[0], unit_bytes), room(in_pull.max(), size, planned[1], unit_bytes)
    # Beside the messages, the 8 bytes in which each worker tells each other one its count before the push.
    np.testing.assert_allclose(info.bytes_pushed, (n - 1) * (push_bytes(fullest[0]) + 8), 1e-6)
    np.testing.assert_allclose(info.bytes_pulled, (n - 1) * pull_bytes(fullest[1]), 1e-6)
    each = np.maximum(pushed.sum(axis=1), 1)
    np.testing.assert_allclose(info.imbalance_push, (n * pushed.max(axis=1) / each).max(), 1e-5)
    np.testing.assert_allclose(info.imbalance_pull, n * pulled.max() / max(pulled.sum(), 1), 1e-5)
    np.testing.assert_allclose(info.density, nonzero.mean(), 1e-5)
    np.testing.assert_allclose(info.density_reduced, nonzero.any(axis=0).mean(), 1e-5)
    assert info.dense_taken == 0


FORMATS = [("coo", "hash_bitmap"), ("coo", "others"), ("bitmap", "coo"), ("auto", "bitmap"), ("coo", "dense")]


@pytest.mark.parametrize("planned", [(None, None), (30, 60)])
@pytest.mark.parametrize("push_format,pull_format", FORMATS)
@settings(max_examples=10)
@given(**SEEDS)
def test_zen_in_every_format(push_format, pull_format, planned, seed, density, skew):
    n = 5
    stack = gradient(n, seed, density, skew)
    size = oracle.tiles(UNITS, n)
    push_bytes = {"coo": lambda c: coo(c, UNIT_BYTES), "bitmap": lambda c: bitmap(size) + c * UNIT_BYTES}
    push_bytes["auto"] = lambda c: min(push_bytes["coo"](c), push_bytes["bitmap"](c))
    # Every pull comes with one count; `coo` includes it.
    pull_bytes = {
        "hash_bitmap": lambda c: 4 + bitmap(size) + c * UNIT_BYTES,
        "others": lambda c: 8 + bitmap(size) + c * UNIT_BYTES,
        "bitmap": lambda c: 4 + bitmap(UNITS) + c * UNIT_BYTES,
        "coo": lambda c: coo(c, UNIT_BYTES),
        "dense": lambda c: 4 + size * UNIT_BYTES,
    }
    info = info_of(stack, scheme="zen", unit="row", capacity=planned, push_format=push_format, pull_format=pull_format)
    owner = oracle.server_of(np.arange(UNITS), n)
    nonzero = stack.any(axis=2)
    messages = push_bytes[push_format], pull_bytes[pull_format]
    of_others = np.stack([np.delete(nonzero, worker, axis=0).any(axis=0) for worker in range(n)])
    in_pull = of_others if pull_format == "others" else None
    check_servers(info, nonzero, owner, size, planned, UNIT_BYTES, *messages, in_pull)
    np.testing.assert_allclose(info.bytes_dense, 2 * (n - 1) * stack[0].nbytes / n, 1e-6)


@pytest.mark.parametrize("hash", ["tile", "murmur"])
@pytest.mark.parametrize("planned", [(None, None), (30, 60)])
@settings(max_examples=10)
@given(**SEEDS)
def test_auto_moves_no_more_than_dense(planned, hash, seed, density, skew):
    """Except for the 8 bytes that each worker tells each other before going dense; units are counted even then."""
    check_no_more_than_dense(gradient(5, seed, density, skew), capacity=planned, hash=hash)


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("push_format,pull_format", FORMATS)
@settings(max_examples=5)
@given(**SEEDS)
def test_auto_moves_no_more_than_dense_in_any_format(push_format, pull_format, n, seed, density, skew):
    """Of units with an odd number of bytes to pad, too: three of 16 bits."""
    stack = gradient(n, seed, density, skew)[:, :, :3].astype(np.float16)
    check_no_more_than_dense(stack, push_format=push_format, pull_format=pull_format)


def check_no_more_than_dense(stack, **options):
    n = len(stack)
    info = info_of(stack, scheme="auto", unit="row", **options)
    assert info.bytes_pushed + info.bytes_pulled <= info.bytes_dense + (n - 1) * 8
    np.testing.assert_allclose(info.density, stack.any(axis=2).mean(), 1e-5)


@pytest.mark.parametrize("planned", [(None, None), (30, 60)])
@settings(max_examples=10)
@given(**SEEDS)
def test_sparse_ps(planned, seed, density, skew):
    n = 5
    stack = gradient(n, seed, density, skew)
    size = oracle.tiles(UNITS, n)
    info = info_of(stack, scheme="sparse_ps", unit="row", capacity=planned)
    messages = [lambda c: coo(c, UNIT_BYTES)] * 2
    check_servers(info, stack.any(axis=2), np.arange(UNITS) // size, size, planned, UNIT_BYTES, *messages)


@pytest.mark.parametrize("planned", [(None, None), (1, 2)])
@settings(max_examples=10)
@given(**SEEDS)
def test_omnireduce(planned, seed, density, skew):
    """It counts blocks of 256 elements, whatever the unit."""
    n = 5
    stack = gradient(n, seed, density, skew)
    flat = np.pad(stack.reshape(n, -1), ((0, 0), (0, -UNITS * WIDTH % 256)))
    nonzero = flat.reshape(n, -1, 256).any(axis=2)
    blocks = nonzero.shape[1]
    size = oracle.tiles(blocks, n)
    info = info_of(stack, scheme="omnireduce", unit="row", capacity=planned)
    messages = [lambda c: coo(c, BLOCK_BYTES)] * 2
    check_servers(info, nonzero, np.arange(blocks) // size, size, planned, BLOCK_BYTES, *messages)
    np.testing.assert_allclose(info.bytes_dense, 2 * (n - 1) / n * stack[0].nbytes, 1e-6)


@pytest.mark.parametrize("planned", [1, 3, 7, 30, 2**31 - 1])
def test_rounds(planned):
    fullest = np.array([0, 1, 29, 30, 31, 90, 91, 2**31 - 1], np.int32)
    expected = np.maximum(-(-fullest.astype(np.int64) // planned), 1).astype(np.float32)
    np.testing.assert_array_equal(jax.jit(lambda count: rounds(count, planned))(fullest), expected)


def test_total_averages_the_densities_that_were_counted():
    """Fused leaves count nothing, whatever their weight; a sparse scheme that went dense has counted."""
    fused = make_info(dense_taken=1.0, bytes_dense=900.0)
    infos = {
        "empty": make_info(bytes_dense=100.0),
        "sparse": make_info(bytes_dense=100.0, density=0.25, density_reduced=0.5),
        "went dense": make_info(bytes_dense=100.0, density=0.5, density_reduced=1.0, dense_taken=1.0),
        "(fused)": fused,
    }
    whole = zen.total(infos)
    np.testing.assert_allclose((whole.density, whole.density_reduced), (0.25, 0.5))
    np.testing.assert_allclose((whole.dense_taken, whole.bytes_dense), (1000 / 1200, 1200))
    for others in (infos.values(), iter(infos.values())):
        np.testing.assert_array_equal(zen.total(others), whole)
    assert (zen.total([fused, fused]).density, zen.total({}).density) == (0, 0)
    assert zen.total(fused) is fused


def test_total_keeps_workers_and_steps_apart():
    one, two = make_info(bytes_pushed=jnp.array([1.0, 2.0]), rounds=jnp.array([3.0, 1.0])), make_info()
    whole = zen.total([jax.tree.map(lambda field: jnp.broadcast_to(field, (2,)), info) for info in (one, two)])
    assert (whole.bytes_pushed.tolist(), whole.rounds.tolist()) == ([1, 2], [3, 1])


@pytest.mark.parametrize("planned", [None, 30])
@settings(max_examples=10)
@given(**SEEDS)
def test_agsparse(planned, seed, density, skew):
    n = 5
    stack = gradient(n, seed, density, skew)
    nonzero = stack.any(axis=2)
    info = info_of(stack, scheme="agsparse", unit="row", capacity=planned)
    fullest, top = int(nonzero.sum(axis=1).max()), sparse_limit(UNITS, WIDTH, jnp.float32, n)
    assert (n - 1) * coo(top, UNIT_BYTES) <= info.bytes_dense < (n - 1) * coo(top + 1, UNIT_BYTES)
    if fullest > top:
        assert info.dense_taken == 1
        np.testing.assert_allclose(info.bytes_pushed + info.bytes_pulled, info.bytes_dense + (n - 1) * 4, 1e-6)
    else:
        sent = coo(room(fullest, top, planned, UNIT_BYTES), UNIT_BYTES)
        np.testing.assert_allclose(info.bytes_pushed, (n - 1) * (sent + 4), 1e-6)
        assert info.bytes_pulled == info.dense_taken == 0
    assert info.imbalance_push == info.imbalance_pull == 0
    assert info.rounds == (max(1, -(-fullest // planned)) if planned else 1)
    np.testing.assert_allclose(info.density, nonzero.mean(), 1e-5)
    np.testing.assert_allclose(info.density_reduced, nonzero.any(axis=0).mean(), 1e-5)


def sparcml_stages(nonzero, planned):
    """Of each stage the bytes that a worker sends, whether it goes dense, and `rounds`: SparCML replayed in NumPy."""
    n, unit_bytes = len(nonzero), UNIT_BYTES
    power = 1 << (n.bit_length() - 1)
    held, dense, sent = list(nonzero), False, []

    def stage(pairs):
        nonlocal dense
        counts = [int(units.sum()) for units in held]
        fits = max(counts) * (4 + unit_bytes) < UNITS * unit_bytes
        top = -(-UNITS * unit_bytes // (4 + unit_bytes)) - 1
        capacity = planned[len(sent)] if planned else None
        rounds = -(-max(counts) // capacity) if planned and not dense else 1
        dense |= not fits
        goes = dense
        message = UNITS * unit_bytes if goes else coo(room(max(counts), top, capacity, unit_bytes, 2.0), unit_bytes)
        sent.append((message + 4 * (n - 1), goes, max(1, rounds)))
        together = max(counts[a] + counts[b] for a, b in pairs)
        dense |= together * (4 + unit_bytes) >= UNITS * unit_bytes

    if n > power:
        stage([(i, i + power) for i in range(n - power)])
        held = [held[i] | held[i + power] if i + power < n else held[i] for i in range(power)]
    step = 1
    while step < power:
        stage([(i, i ^ step) for i in range(power)])
        held = [held[i] | held[i ^ step] for i in range(power)]
        step *= 2
    if n > power:
        stage([(0, 0)])
    return sent


@pytest.mark.parametrize("n,planned", [(4, None), (4, (30, 60)), (6, None), (6, (30, 40, 60, 80))])
@settings(max_examples=10)
@given(**SEEDS)
def test_sparcml(n, planned, seed, density, skew):
    stack = gradient(n, seed, density, skew)
    nonzero = stack.any(axis=2)
    info = info_of(stack, scheme="sparcml", unit="row", capacity=planned)
    sent = sparcml_stages(nonzero, planned)
    pulled = sent.pop() if n == 6 else (0, False, 1)
    np.testing.assert_allclose(info.bytes_pushed, sum(moved for moved, *_ in sent), 1e-6)
    np.testing.assert_allclose(info.bytes_pulled, pulled[0], 1e-6)
    assert info.dense_taken == any(dense for _, dense, _ in (*sent, pulled))
    assert info.rounds == max(rounds for *_, rounds in (*sent, pulled))
    assert info.imbalance_push == info.imbalance_pull == 0
    np.testing.assert_allclose(info.density, nonzero.mean(), 1e-5)
    np.testing.assert_allclose(info.density_reduced, nonzero.any(axis=0).mean(), 1e-5)


def test_contiguous_servers_are_imbalanced_and_hashed_ones_are_not():
    """All non-zeros in one server's range: it gets everything."""
    n = 4
    stack = np.zeros((n, 4096, 1), np.float32)
    stack[:, 1024:2048] = sparse(np.random.default_rng(0), n, (1024, 1), 0.9)
    for scheme in ("sparse_ps", "omnireduce"):
        info = info_of(stack, scheme=scheme, unit="row")
        assert info.imbalance_push == info.imbalance_pull == n
    info = info_of(stack, scheme="zen", unit="row")
    assert info.imbalance_push < 1.3
    assert info.imbalance_pull < 1.1


def test_rounds_count_outgrown_capacity():
    n = 4
    stack = structured(n, (509,))["all dense"]
    assert info_of(stack, scheme="zen", capacity=128).rounds == 1
    assert info_of(stack, scheme="zen", capacity=32).rounds == 4
    disjoint = jnp.eye(n).repeat(100, axis=1)  # each worker pushes 25 units to every server, which sums 100
    assert info_of(disjoint, scheme="zen", capacity=(32, 128)).rounds == 1
    assert info_of(disjoint, scheme="zen", capacity=(32, 32)).rounds == 4
    assert info_of(disjoint, scheme="zen", capacity=(32, 32), pull_format="dense").rounds == 1
