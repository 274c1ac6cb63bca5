"""Bad operands of kernels, and sizes that they cannot index: a ValueError before anything is allocated."""

from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refuses

import zen_jax as zen


def coo(room):
    """A list of no elements, and its count."""
    return jnp.zeros(room, jnp.int32), jnp.zeros(room), jnp.int32(0)


def message(n=2, *row):
    """n workers' empty messages with room for three units."""
    return jnp.zeros((n, 3), jnp.int32), jnp.zeros((n, 3, *row)), jnp.zeros(n, jnp.int32)


@pytest.mark.parametrize(
    "call,fragments",
    [
        (lambda: zen.kernels.partition(jnp.ones(4), 0, 1), ("n=0", "at least 1")),
        (lambda: zen.kernels.partition(jnp.ones(4), 65536, 1), ("n=65536", "at most 65535")),
        (lambda: zen.kernels.partition(jnp.ones(4), 2, 0), ("capacity=0", "at least 1")),
        (lambda: zen.kernels.partition(jnp.ones((2, 2, 2)), 2, 1), ("x has shape (2, 2, 2)", "must have rank 1 or 2.")),
        (lambda: zen.kernels.partition(jnp.ones(4, jnp.int32), 2, 1), ("x has dtype int32", "must be float32")),
        (lambda: zen.kernels.hash_bitmap_encode(jnp.ones(4), 0), ("capacity=0", "at least 1")),
        (
            lambda: zen.kernels.hash_bitmap_encode(jnp.ones(4, jnp.int32), 1),
            ("shard has dtype int32", "must be float32"),
        ),
        (
            lambda: zen.kernels.aggregate(jnp.ones((2, 3), jnp.int32), jnp.ones((2, 4)), jnp.ones(2, jnp.int32), 5),
            ("positions has shape (2, 3)", "must have shape (2, 4)"),
        ),
        (
            lambda: zen.kernels.aggregate(jnp.ones((2, 4), jnp.int32), jnp.ones((2, 4)), jnp.ones(3, jnp.int32), 5),
            ("counts has shape (3,)", "must have shape (2"),
        ),
        (
            lambda: zen.kernels.aggregate(jnp.ones((2, 0), jnp.int32), jnp.ones((2, 0)), jnp.ones(2, jnp.int32), 5),
            ("values has shape (2, 0)", "room for 1"),
        ),
        (
            lambda: zen.kernels.aggregate(jnp.ones((0, 2), jnp.int32), jnp.ones((0, 2)), jnp.ones(0, jnp.int32), 5),
            ("values has shape (0, 2)", "1 to 65535 workers"),
        ),
        (
            lambda: zen.kernels.hash_bitmap_decode(jnp.ones((2, 2), jnp.uint32), jnp.ones((2, 4)), 40),
            ("words has shape (2, 2)", "must have shape (2, 1)"),
        ),
        (
            lambda: zen.kernels.hash_bitmap_decode(jnp.ones((2, 1), jnp.uint32), jnp.ones((2, 0)), 4),
            ("values has shape (2, 0)", "room for 1"),
        ),
        (
            lambda: zen.kernels.hash_bitmap_decode(jnp.ones((0, 1), jnp.uint32), jnp.ones((0, 4)), 4),
            ("values has shape (0, 4)", "1 to 65535 workers"),
        ),
        (
            lambda: zen.kernels.hash_bitmap_decode(jnp.ones((2, 1), jnp.int32), jnp.ones((2, 4)), 40),
            ("words has dtype int32", "must be uint32"),
        ),
        (
            lambda: zen.kernels.aggregate(np.ones((1, 2), np.int64), jnp.ones((1, 2)), jnp.ones(1, jnp.int32), 4),
            ("positions has dtype int64", "must be int32"),
        ),
        (
            lambda: zen.kernels.send_largest(jnp.ones(3), jnp.ones(3, jnp.float16), 1, 1),
            ("residual has dtype float16", "must be float32"),
        ),
        (
            lambda: zen.kernels.send_drawn(jnp.ones(3), jnp.ones(3), 4, jnp.uint32(0)),
            ("k=4", "at most the 3 elements"),
        ),
        (lambda: zen.kernels.hierarchical_hash(jnp.ones(4, jnp.int32), 0, 1, 1, 1), ("n=0", "at least 1")),
        (lambda: zen.kernels.hierarchical_hash(jnp.ones(4, jnp.int32), 1, 0, 1, 1), ("r1=0", "at least 1")),
        (lambda: zen.kernels.hierarchical_hash(jnp.ones(4, jnp.int32), 1, 1, -1, 1), ("r2=-1", "at least 0")),
        (lambda: zen.kernels.hierarchical_hash(jnp.ones(4, jnp.int32), 1, 1, 1, 0), ("k=0", "at least 1")),
        (
            lambda: zen.kernels.hierarchical_hash(jnp.ones((4, 1), jnp.int32), 1, 1, 1, 1),
            ("indices has shape (4, 1)", "must have rank 1."),
        ),
        (
            lambda: zen.kernels.hierarchical_hash(jnp.ones(4), 1, 1, 1, 1),
            ("indices have dtype float32", "must be integers"),
        ),
        (lambda: zen.kernels.hierarchical_hash([1, 2], 1, 1, 1, 1), ("indices are a list", "Use jnp.asarray")),
        (lambda: zen.kernels.hierarchical_hash(jnp.ones(4, jnp.int8), 1, 1, 1, 1), ("int8", "must be int32 or uint32")),
        (lambda: zen.kernels.hierarchical_hash(jnp.ones(4, jnp.int32), 1, 1, 1, 1, seed=2**32), (f"seed={2**32}",)),
        (lambda: zen.kernels.partition(jnp.ones(4), 2, 1, seed=-1), ("seed=-1",)),
        (
            lambda: zen.kernels.hash_bitmap_decode(jnp.ones((2, 1), jnp.uint32), jnp.ones((2, 4)), 40, seed=0.5),
            ("seed=0.5",),
        ),
        (lambda: zen.kernels.unique_ids(jnp.ones(3, jnp.int32), 2**31), (f"{2**31} units",)),
        (lambda: zen.kernels.unique_ids(jnp.ones((3, 1), jnp.int32), 9), ("ids has shape (3, 1)", "rank 1")),
        (lambda: zen.kernels.unique_ids(jnp.ones(3), 9), ("ids has dtype float32", "must be int32")),
        (lambda: zen.kernels.partition_coo(*coo(0), 2, 1), ("indices has shape (0,)",)),
        (lambda: zen.kernels.partition_coo(*coo(3)[:2], jnp.ones(1, jnp.int32), 2, 1), ("count has shape (1,)",)),
        (lambda: zen.kernels.partition_coo(*coo(3)[:2], jnp.float32(1), 2, 1), ("count has dtype float32", "int32")),
        (lambda: zen.kernels.partition_coo(coo(3)[0], *coo(3)[::2], 2, 1), ("values has dtype int32", "float32")),
        (lambda: zen.kernels.aggregate_encode(*message(), 5, 0), ("capacity=0", "at least 1")),
        (lambda: zen.kernels.aggregate(*message(), -1), ("size=-1", "at least 0")),
        (lambda: zen.kernels.aggregate(*message(), 2**31), (f"{2**31} units", "int32 positions")),
        (lambda: zen.kernels.aggregate_for_others(*message(), 0, 1), ("size=0", "at least 1")),
        (lambda: zen.kernels.aggregate_for_others(*message(), 2**31, 1), (f"{2**31} units", "int32 positions")),
        (lambda: zen.kernels.aggregate_for_others(*message(1), 5, 1), ("n=1", "at least 2")),
        (
            lambda: zen.kernels.place_own(jnp.ones((4, 1)), jnp.ones((2, 1), jnp.uint32), *message(2, 1), divisor=0),
            ("divisor=0", "at least 1"),
        ),
        (
            lambda: zen.kernels.place_own(jnp.ones((4, 1)), jnp.ones((2, 1), jnp.uint32), *message(0, 1)),
            ("values has shape (0, ", "workers"),
        ),
        (
            lambda: zen.kernels.place_own(jnp.ones((4, 1)), jnp.ones((2, 2), jnp.uint32), *message(2, 1)),
            ("words has shape (2, 2)", "must have shape (2, 1)"),
        ),
        (lambda: zen.kernels.aggregate(*message(), 5, divisor=0), ("divisor=0", "at least 1")),
        (lambda: zen.kernels.send_drawn(jnp.ones(3), jnp.ones(3), 1, jnp.float32(0)), ("step has dtype float32",)),
        (
            lambda: zen.kernels.send_largest(jnp.ones(3), jnp.ones(3), 1, 1, scale=jnp.float16(1)),
            ("scale has dtype float16",),
        ),
    ],
)
def test_kernels(call, fragments):
    refuses(call, *fragments)


def test_more_units_than_pure_jax_can_name():
    """2**31 units: nothing is allocated before they are refused."""
    partition, decode = (import_module(f"zen_jax.kernels.{name}") for name in ("partition", "hash_bitmap_decode"))
    floats, words = jax.ShapeDtypeStruct((2**31, 1), jnp.float32), jax.ShapeDtypeStruct((1, 2**26), jnp.uint32)
    refuses(lambda: jax.eval_shape(lambda x: partition.reference(x, 1, 1), floats), f"{2**31} units", "wider units")
    values = jax.ShapeDtypeStruct((1, 1, 1), jnp.float32)
    refuses(
        lambda: jax.eval_shape(lambda *m: decode.reference(*m, 2**31), words, values), f"{2**31} units", "wider units"
    )
    encode = import_module("zen_jax.kernels.hash_bitmap_encode")
    refuses(lambda: jax.eval_shape(lambda x: encode.reference(x, 1), floats), f"{2**31} units", "wider units")


def test_more_units_than_a_server_can_name():
    """The kernels refuse them while they are traced, on whatever platform; more servers name more units."""
    floats, words = jax.ShapeDtypeStruct((2**31, 1), jnp.float32), jax.ShapeDtypeStruct((1, 2**26), jnp.uint32)
    values = jax.ShapeDtypeStruct((1, 1, 1), jnp.float32)
    for call, operands in (
        (lambda x: zen.kernels.partition(x, 1, 1), [floats]),
        (lambda x: zen.kernels.hash_bitmap_encode(x, 1), [floats]),
        (lambda *message: zen.kernels.hash_bitmap_decode(*message, 2**31), [words, values]),
    ):
        refuses(lambda: jax.eval_shape(call, *operands), f"{2**31} units", "server can index", "more servers")  # noqa: B023


def test_as_many_units_as_pure_jax_can_name():
    """Whatever the room of the messages that are summed."""
    positions, counts = jax.ShapeDtypeStruct((2, 7 << 26), jnp.int32), jax.ShapeDtypeStruct((2,), jnp.int32)
    values = jax.ShapeDtypeStruct((*positions.shape, 1), jnp.float32)
    aggregate = import_module("zen_jax.kernels.aggregate")
    shard = jax.eval_shape(lambda *message: aggregate.reference(*message, 2**31 - 1), positions, values, counts)
    assert shard.shape == (2**31 - 1, 1)


@pytest.mark.parametrize("n,r1,r2", [(2, 800_000_000, 400_000_000), (1, 2**31 - 1, 1), (1, 2**33, 0)])
def test_more_slots_than_pure_jax_can_index(n, r1, r2):
    lowering = import_module("zen_jax.kernels.hierarchical_hash").reference
    indices = jax.ShapeDtypeStruct((10,), jnp.int32)
    hashed = lambda r1, r2: jax.eval_shape(lambda indices: lowering(indices, n, r1, r2, 3), indices)
    refuses(lambda: hashed(r1, r2), f"{n} * ({r1} + {r2}) slots", "hash='tile'")
    assert hashed(2**30 // n, 2**30 // n - 1)[0].shape == (n, 2**31 // n - 1)
