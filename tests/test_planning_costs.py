"""The cost model: bytes are those that schemes report, and work is what their kernels read and write."""

import itertools
from dataclasses import replace

import harness
import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparse

import zen_jax as zen
from zen_jax.formats import coo
from zen_jax.formats.tensor_block import BLOCK
from zen_jax.planning import costs
from zen_jax.planning.sparsity import LeafProfile

AXIS = harness.AXIS
SHAPE = (100, BLOCK)  # rows are also OmniReduce's blocks


def test_bytes_are_those_of_info():
    """Run as planned on the profiled gradients, every scheme, and every format once, moves the bytes of the model."""
    n, seen = 3, set()
    stack = jnp.asarray(sparse(np.random.default_rng(n), n, SHAPE, 0.1, np.float16))
    leaf = zen.profile(stack, unit="row").leaves["(array)"]
    for candidate in costs.candidates(leaf, n):
        formats = candidate.push_format, candidate.pull_format
        assert candidate.nbytes >= costs.lower_bound(leaf, n)
        again = candidate.scheme in seen and formats not in {("bitmap", "coo"), ("coo", "dense")}
        if again or candidate.scheme == "auto":  # which is zen, and dense where that is smaller
            continue
        seen.add(candidate.scheme)
        planned = zen.LeafPlan(SHAPE, leaf.dtype, candidate.scheme, candidate.unit, candidate.capacity, *formats)
        how = {"return_info": True, **planned.options}
        info = harness.spmd(lambda x: zen.all_reduce(x, AXIS, **how)[1], "vmap", n)(stack)  # noqa: B023
        np.testing.assert_allclose(candidate.nbytes, info.bytes_pushed[0] + info.bytes_pulled[0], 1e-6)
        assert float(info.rounds[0]) == (0 if candidate.scheme.startswith("dense") else 1)
    assert seen == set(zen.schemes.names()) - {"auto"}


@pytest.mark.parametrize("rows", [880, 892, 904, 990])
def test_bytes_of_auto_are_those_of_info_where_it_turns_dense(rows):
    n = 16
    stack = jnp.zeros((n, 1000, 64)).at[:, :rows].set(1.0)
    [found] = [
        way
        for way in costs.candidates(zen.profile(stack, unit=16).leaves["(array)"], n)
        if (way.scheme, way.unit, way.push_format, way.pull_format) == ("auto", 16, "coo", "hash_bitmap")
    ]
    info = harness.spmd(lambda x: zen.all_reduce(x, AXIS, **found.options, return_info=True)[1], "vmap", n)(stack)
    assert found.nbytes == float(info.bytes_pushed[0] + info.bytes_pulled[0])


def test_bytes_are_those_of_info_where_a_scheme_turns_dense_on_the_way():
    """agsparse once workers have agreed on the sizes, sparcml in its second stage."""
    n, stack = 4, jnp.zeros((4, 1000, 64)).at[:, :600].set(1.0)
    leaf = zen.profile(stack, unit=64).leaves["(array)"]
    found = {way.scheme: way for way in costs.candidates(leaf, n) if way.scheme in ("agsparse", "sparcml")}
    assert len(found) == 2
    for way in found.values():
        run = lambda x: zen.all_reduce(x, AXIS, **way.options, return_info=True)[1]  # noqa: B023
        info = harness.spmd(run, "vmap", n)(stack)
        assert info.dense_taken[0] == 1 and info.rounds[0] == 1, "as planned"
        assert way.nbytes == float(info.bytes_pushed[0] + info.bytes_pulled[0])


def test_work_counts_what_kernels_read_and_write():
    """Of 1000 rows all four workers hold the same 200, and each 50 more: it serves a quarter of the tensor."""
    n, stack = 4, jnp.zeros((4, 1000, 64)).at[:, :200].set(1.0)
    for i in range(n):
        stack = stack.at[i, 200 + 50 * i : 250 + 50 * i].set(1.0)
    leaf = zen.profile(stack, unit=64).leaves["(array)"]
    row = 64 * 4
    whole, held, union, of_three = leaf.nbytes, 250 * row, 400 * row, 350 * row
    ways = {(way.scheme, way.push_format, way.pull_format): way for way in costs.candidates(leaf, n)}
    work = {key: [tuple(each) for each in way.work if each.kernel != "copy"] for key, way in ways.items()}
    partition, shard = ("partition", whole, held), whole / n
    assert {formats: work["zen", *formats] for formats in costs.FORMATS_TO_TRY} == {
        ("coo", "hash_bitmap"): [partition, ("aggregate_encode", shard, held), ("decode", whole, union)],
        ("coo", "coo"): [
            partition,
            ("aggregate", shard, held),
            ("partition", shard, union / n),
            ("aggregate", whole, union),
        ],
        ("coo", "dense"): [partition, ("aggregate", shard, held), ("decode", whole, whole)],
        ("coo", "others"): [partition, ("for_others", shard, of_three), ("decode", whole, of_three)],
        ("bitmap", "hash_bitmap"): [
            partition,
            ("decode", whole, held),
            ("sum", whole, 0),
            ("encode", shard, union / n),
            ("decode", whole, union),
        ],
        ("bitmap", "coo"): [
            partition,
            ("decode", whole, held),
            ("sum", whole, 0),
            ("partition", shard, union / n),
            ("aggregate", whole, union),
        ],
        ("bitmap", "dense"): [partition, ("decode", whole, held), ("sum", whole, 0), ("decode", whole, whole)],
    }
    assert work["dense_ordered", "coo", "hash_bitmap"] == [("sum", whole, 0)]
    counting = ("partition", whole, 0)  # of the sum, for Info
    assert work["agsparse", "coo", "hash_bitmap"] == [partition, ("aggregate", whole, n * held), counting]
    of_two = 300 * row
    assert work["sparcml", "coo", "hash_bitmap"] == [
        partition,
        ("aggregate", whole, 2 * held),
        ("partition", whole, of_two),
        ("aggregate", whole, 2 * of_two),
        counting,
    ]


def test_messages_are_copied_when_they_are_packed_and_unpacked():
    """What all get is packed once, and a whole shard is sent as it is."""
    n, stack = 16, jnp.zeros((16, 1600, 64)).at[:, :100].set(1.0)
    leaf = zen.profile(stack, unit=64).leaves["(array)"]
    copied = {}
    for way in costs.candidates(leaf, n):
        if way.scheme in ("zen", "agsparse") and way.push_format == "coo":
            copied[way.scheme, way.pull_format] = sum(each.dense for each in way.work if each.kernel == "copy")
            messages = [coo.message_bytes(room, 64, np.float32) for room in way.capacity]
            units = way.capacity[-1] * 64 * 4
            expected = {
                ("agsparse", "hash_bitmap"): (n + 1) * messages[0],
                ("zen", "dense"): 2 * n * messages[0],
                ("zen", "hash_bitmap"): 2 * n * messages[0] + (n + 1) * units,
                ("zen", "coo"): 2 * n * messages[0] + (n + 1) * (messages[-1] - 4),
                ("zen", "others"): 2 * n * (messages[0] + units) + 2 * 100 * 64 * 4,  # and its own are placed
            }
            assert copied[way.scheme, way.pull_format] == expected[way.scheme, way.pull_format]
    assert len(copied) == 5


def test_work_of_schemes_that_turn_dense_on_the_way():
    n, stack = 4, jnp.zeros((4, 1000, 64)).at[:, :600].set(1.0)
    leaf = zen.profile(stack, unit=64).leaves["(array)"]
    work = {way.scheme: [tuple(each) for each in way.work] for way in costs.candidates(leaf, n)}
    whole, listing, counting = leaf.nbytes, ("partition", leaf.nbytes, 600 * 64 * 4), ("partition", leaf.nbytes, 0)
    assert work["agsparse"] == [listing, ("sum", whole, 0), counting]
    assert work["sparcml"][-3:] == [listing, ("sum", 2 * whole, 0), counting]


def test_a_leaf_that_no_sparse_message_could_hold_needs_no_agreement():
    for scheme, n, size in (("auto", 3, 7), ("agsparse", 4, 5)):
        stack = jnp.ones((n, size))
        ways = costs.candidates(zen.profile(stack, unit="element").leaves["(array)"], n)
        run = lambda x: zen.all_reduce(x, AXIS, scheme=scheme, unit=1, return_info=True)[1]  # noqa: B023
        info = harness.spmd(run, "vmap", n)(stack)
        [nbytes] = {way.nbytes for way in ways if way.scheme == scheme}
        assert nbytes == pytest.approx(float(info.bytes_pushed[0] + info.bytes_pulled[0]))


def test_dense_sums_of_16_bit_floats_cost_what_ordered_ones_do():
    ordered, dense = itertools.islice(costs.candidates(LeafProfile((1000, 64), "bfloat16"), 4), 2)
    assert dense == replace(ordered, scheme="dense")


def test_psum_moves_the_bytes_of_an_ordered_sum_and_computes_nothing():
    ordered, dense = itertools.islice(costs.candidates(LeafProfile((1000, 64), "float32"), 4), 2)
    assert ordered.nbytes == 2 * 3 / 4 * 1000 * 64 * 4
    assert dense.exchanges == (costs.Exchange("psum", ordered.nbytes),)
    assert dense.work == ()


def test_a_single_worker_sends_nothing():
    found = zen.estimate(zen.profile(jnp.ones((1, 100, 64))), zen.Cluster(1))
    assert {each.seconds for each in found.leaves["(array)"].values()} == {0}


def test_equations_of_the_paper():
    """Without latency, and apart from headroom and bitmaps, element units cost what Equations 1 and 2 say."""
    n, elements, density = 8, 1 << 18, 0.02
    mask = np.random.default_rng(0).random((n, elements)) < density
    leaf = zen.profile(jnp.asarray(mask, jnp.float32), unit="element").leaves["(array)"]
    unit, b, m = leaf.by_width[1], 1e9 / 8, 4 * elements
    cluster = zen.Cluster(n, inter_gbps=1, latency_us=0)
    seconds = {(c.scheme, c.push_format, c.pull_format): c.seconds(cluster, n) for c in costs.candidates(leaf, n)}
    balanced = (n - 1) / n * (unit.densification(n) + 1) * 2 * m * unit.density / b
    hierarchical = sum(unit.densification(2**i) for i in range(3)) * 2 * m * unit.density / b
    np.testing.assert_allclose(seconds["zen", "coo", "coo"], balanced, 0.1)
    np.testing.assert_allclose(seconds["sparcml", "coo", "hash_bitmap"], hierarchical, 0.1)


def test_a_leaf_that_was_not_measured_travels_dense():
    leaf = LeafProfile((100, 4), "float32")
    assert {candidate.scheme for candidate in costs.candidates(leaf, 4)} == {"dense", "dense_ordered"}
    assert costs.lower_bound(leaf, 4) == 1600
