"""Kernels one after another in one program, which a GPU runs as a CUDA graph: once, and replayed with fresh inputs."""

import re
import runpy
import secrets
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from cases import FLOATS, assert_same_bits, assert_same_values, sparse
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

import zen_jax as zen
from zen_jax import _native
from zen_jax.kernels.send_largest import reference as largest_reference

SEED = 5
GRAPHS = {"xla_gpu_enable_command_buffer": "FUSION,CUSTOM_CALL", "xla_gpu_graph_min_graph_size": 1}
DTYPES = {name: FLOATS[name] for name in ("float32", "bfloat16")}


def exchange(n, capacity, fused=True):
    """A whole synchronisation on one device: stack [n, U(, D)] to its sum; kernels that run n times are batched."""

    @partial(jax.jit, compiler_options=GRAPHS)
    def run(stack):
        size = stack.shape[1]
        message = jax.vmap(lambda x: zen.kernels.partition(x, n, capacity, seed=SEED))(stack)
        inbox = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), message)
        tiles = oracle.tiles(size, n)
        together = lambda *inbox: zen.kernels.aggregate_encode(*inbox, tiles, capacity)
        in_a_row = lambda *inbox: zen.kernels.hash_bitmap_encode(zen.kernels.aggregate(*inbox, tiles), capacity)
        words, values, _ = jax.vmap(together if fused else in_a_row)(*inbox)
        return zen.kernels.hash_bitmap_decode(words, values, size, seed=SEED)

    return run


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=FLOATS)
@pytest.mark.parametrize("shape", [(65_537,), (3_001, 17), (513, 256)])
def test_batched_exchange_is_a_sum(shape, dtype):
    n = 8
    stack = sparse(np.random.default_rng(n), n, shape, 0.05, dtype)
    out = exchange(n, capacity=shape[0])(stack)
    assert_same_bits(out, stack.astype(np.float64).sum(0).astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("shape", [(200_003,), (2_003, 96)])
def test_a_hundred_replays_with_fresh_and_moved_buffers(shape, fused, dtype):
    n = 4
    run, kept = exchange(n, capacity=shape[0], fused=fused), []
    for step in range(100):
        stack = sparse(np.random.default_rng(step), n, shape, step % 10 / 10, dtype)
        out = run(stack)
        assert_same_bits(out, stack.astype(np.float32).sum(0).astype(dtype), f"replay {step}")
        kept = [*kept[-step % 7 :], out]  # a varying number of live buffers: the next ones lie elsewhere


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_a_hundred_replays_of_selection_in_place(dtype):
    """Residuals and velocities are donated, so that selection works in place; its list goes on to both partitions."""
    n, size, room, r1 = 3, 20_011, 3_000, 500
    how = {"momentum": 0.75, "scale": np.float32(0.5)}

    @partial(jax.jit, donate_argnums=(1, 2), compiler_options=GRAPHS)
    def run(update, to_send, to_list, count):
        sent, *to_send = zen.kernels.send_largest(update, to_send[0], count, count, velocity=to_send[1], **how)
        listed, *to_list = zen.kernels.list_largest(update, to_list[0], count, count, room, velocity=to_list[1], **how)
        buckets = zen.kernels.partition_coo(*listed, n, room, seed=SEED)
        indices = jnp.where(jnp.arange(room, dtype=jnp.int32) < listed[2], listed[0], -1)
        slots, _, lost = zen.kernels.hierarchical_hash(indices, n, r1, room, seed=SEED)
        return sent, to_send, to_list, buckets, slots, lost

    @jax.jit
    def expected(update, state, count):
        sent, *state = largest_reference(update, state[0], count, count, velocity=state[1], **how)
        return sent, state

    state = [np.zeros(size, np.float32) for _ in range(2)]
    to_send, to_list, kept = jax.tree.map(jnp.asarray, (state, state, []))
    for step in range(100):
        update = np.random.default_rng(step).normal(size=size).astype(dtype)
        count = np.int32(1 + step * 25)
        with jax.default_device(jax.devices("cpu")[0]):
            wanted, state = jax.tree.map(np.asarray, expected(update, state, count))
        if step % 3 == 0:
            to_send, to_list = jax.tree.map(jnp.copy, (to_send, to_list))
        sent, to_send, to_list, buckets, slots, lost = run(update, to_send, to_list, count)
        kept = [*kept[-step % 7 :], sent]
        assert_same_values(sent, wanted, f"replay {step}")
        for actual, kind in zip((*to_send, *to_list), 2 * ("residual", "velocity"), strict=True):
            assert_same_values(actual, state[kind == "velocity"], f"{kind} of replay {step}")
        positions, values, counts = map(np.asarray, buckets)
        for server, (where, what) in enumerate(oracle.partition(wanted, n, SEED)):
            assert counts[server] == where.size
            np.testing.assert_array_equal(positions[server][: where.size], where)
            assert_same_values(values[server][: where.size], what)
        assert int(lost) == 0
        indices = np.flatnonzero(wanted)
        hashed = oracle.reduce_to_range(oracle.murmur3(indices, SEED), n)
        for server, row in enumerate(np.asarray(slots)):
            np.testing.assert_array_equal(np.sort(row[row != oracle.EMPTY_SLOT]), indices[hashed == server])


def gpu():
    """The GPU here, or one whose compiler alone is here."""
    if jax.default_backend() == "gpu":
        return jax.devices()[0]
    if _native.library("cuda") is None:
        pytest.skip("the CUDA kernels are not built")
    described = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "compile_ahead.py"))["TOPOLOGIES"]["gpu"]
    try:
        return topologies.get_topology_desc(**described).devices[0]
    except NotImplementedError:
        pytest.skip("no compiler for GPUs: install jax-cuda13-plugin and jax-cuda13-pjrt")


def test_xla_captures_every_kernel(tmp_path):
    """XLA writes down what it will launch: command buffers, which it runs as CUDA graphs, and inside them the kernels.

    Compiling is enough, so this test needs no GPU. That replays of these graphs are right is for the tests above.
    """
    n, size, room = 4, 10_007, 3_000
    seed = secrets.randbits(32)  # what is compiled already is not written down

    def every_kernel(update, residual):
        listed, *_ = zen.kernels.list_largest(update, residual, 9, 9, room)
        sent, *_ = zen.kernels.send_largest(update, residual, 9, 9)
        buckets = zen.kernels.partition(sent, n, room, seed=seed)
        tiles = oracle.tiles(size, n)
        words, units, _ = zen.kernels.hash_bitmap_encode(zen.kernels.aggregate(*buckets, tiles), room)
        return (
            zen.kernels.partition_coo(*listed, n, room, seed=seed),
            zen.kernels.hierarchical_hash(listed[0], n, room, room, seed=seed),
            zen.kernels.aggregate_encode(*buckets, tiles, room),
            zen.kernels.hash_bitmap_decode(words[None], units[None], tiles, seed=seed),
        )

    gradient = jax.ShapeDtypeStruct((size,), np.float32, sharding=SingleDeviceSharding(gpu()))
    lowered = jax.jit(every_kernel).lower(gradient, gradient)
    program = lowered.compile(compiler_options=GRAPHS | {"xla_dump_to": str(tmp_path)})
    called = re.findall(r'custom_call_target="(zen_\w+)"', program.as_text())
    assert sorted(called) == sorted(_native.library("cuda").registrations())
    written = [path.read_text() for path in tmp_path.glob("*every_kernel.thunk_sequence_after_thunk_passes.txt")]
    assert written
    for launches in written:
        outermost = set(re.findall(r"^\d+: (\w+)", launches, re.MULTILINE))
        captured = re.findall(r"^ +\d+: kCustomCall", launches, re.MULTILINE)
        assert "kCommandBuffer" in outermost and "kCustomCall" not in outermost and len(captured) == len(called)
