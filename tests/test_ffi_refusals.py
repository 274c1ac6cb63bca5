"""Custom calls without the Python functions around them: no kernel runs past the end of a buffer, or needs an alias."""

import importlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zen_jax as zen
from zen_jax import _native

NATIVE = zen.backend_info()["cpu"]
pytestmark = pytest.mark.skipif(not NATIVE.startswith("custom calls"), reason=f"no native module: {NATIVE}")

F, H, I, U = jnp.float32, jnp.float16, jnp.int32, jnp.uint32  # noqa: E741
SEED = {"seed": np.uint32(5)}
LARGEST = {"rank": np.int64(1), "momentum": np.float64(0.5), "chunks": np.int64(0)}
STATE = {"update": ((4,), F), "residual": ((4,), F)}
MOVING = STATE | {"velocity": ((0,), F), "scale": ((), F), "bounds": ((4,), I)}
MOVED = {"new_residual": ((4,), F), "new_velocity": ((0,), F)}

# What each custom call takes: operands, results, attributes.
TAKEN = {
    "zen_partition": (
        {"x": ((6, 2), F)},
        {"positions": ((2, 3), I), "values": ((2, 3, 2), F), "counts": ((2,), I)},
        SEED,
    ),
    "zen_partition_coo": (
        {"indices": ((4,), I), "values": ((4,), F), "count": ((), I)},
        {"positions": ((2, 3), I), "bucket_values": ((2, 3), F), "counts": ((2,), I)},
        SEED,
    ),
    "zen_unique_ids": (
        {"ids": ((4,), I)},
        {"unique": ((4,), I), "slots": ((4,), I), "count": ((), I)},
        {"fill": np.int32(9)},
    ),
    "zen_aggregate": (
        {"positions": ((2, 3), I), "values": ((2, 3, 2), F), "counts": ((2,), I)},
        {"shard": ((5, 2), F)},
        {"divisor": np.int64(1)},
    ),
    "zen_aggregate_encode": (
        {"positions": ((2, 3), I), "values": ((2, 3, 2), F), "counts": ((2,), I)},
        {"words": ((2,), U), "units": ((4, 2), F), "count": ((), I)},
        {"divisor": np.int64(1), "size": np.int64(40)},
    ),
    "zen_aggregate_for_others": (
        {"positions": ((2, 3), I), "values": ((2, 3, 2), F), "counts": ((2,), I)},
        {"words": ((2, 2), U), "units": ((2, 4, 2), F), "held": ((2,), I), "nonzero": ((), I)},
        {"divisor": np.int64(1), "size": np.int64(40)},
    ),
    "zen_place_own": (
        {
            "x": ((7, 2), F),
            "words": ((2, 1), U),
            "positions": ((2, 3), I),
            "values": ((2, 3, 2), F),
            "counts": ((2,), I),
        },
        {"placed": ((7, 2), F)},
        SEED | {"divisor": np.int64(1)},
    ),
    "zen_hash_bitmap_encode": (
        {"shard": ((40, 2), F)},
        {"words": ((2,), U), "values": ((3, 2), F), "count": ((), I)},
        {},
    ),
    "zen_hash_bitmap_decode": ({"words": ((2, 1), U), "values": ((2, 3, 2), F)}, {"out": ((7, 2), F)}, SEED),
    "zen_pack": (
        {"head": ((2, 1), I), "positions": ((2, 4), I), "values": ((2, 4, 3), H), "counts": ((2,), I)},
        {"first": ((9,), U), "second": ((9,), U)},
        {"capacity": np.int64(3), "beyond": np.int32(0)},
    ),
    "zen_unpack": (
        {"messages": ((2, 9), U)},
        {"head": ((2, 1), I), "positions": ((2, 3), I), "values": ((2, 3, 3), H)},
        {},
    ),
    "zen_unpack_joined": (
        {"messages": ((2, 9), U), "counts": ((2,), I)},
        {"positions": ((5,), I), "values": ((5, 3), H)},
        {"capacity": np.int64(3)},
    ),
    "zen_hierarchical_hash": (
        {"indices": ((4,), I)},
        {"memory": ((2, 8), U), "counts": ((2,), I), "overflow": ((), I)},
        SEED | {"n": np.int64(2), "r1": np.int64(5), "r2": np.int64(3), "k": np.int64(2)},
    ),
    "zen_send_largest": (MOVING, {"sent": ((4,), F)} | MOVED, LARGEST),
    "zen_list_largest": (MOVING, {"indices": ((2,), I), "values": ((2,), F), "count": ((), I)} | MOVED, LARGEST),
    "zen_send_drawn": (
        STATE | {"step": ((), U)},
        {"sent": ((4,), F), "new_residual": ((4,), F)},
        {"rank": np.int64(1), "k": np.int64(2)},
    ),
    "zen_send_reaching": (
        STATE,
        {"sent": ((4,), F), "new_residual": ((4,), F)},
        {"rank": np.int64(1), "key": np.uint64(0x3F800000)},
    ),
}

# What is passed instead of what is taken, and the complaint.
REFUSED = [
    ("zen_partition", {"x": ((6,), F)}, "x has shape [6], expected at least 2 dimensions"),
    ("zen_partition", {"x": ((6, 2), I)}, "x has dtype S32, expected float32, float64, float16 or bfloat16"),
    ("zen_partition", {"x": ((3, 6, 2), F)}, "positions has shape [2, 3], expected the leading dimensions [3] and 2"),
    ("zen_partition", {"values": ((2, 3, 1), F)}, "values has shape [2, 3, 1], expected [2, 3, 2]"),
    ("zen_partition", {"values": ((2, 3, 2), H)}, "values has dtype F16, expected F32"),
    ("zen_partition", {"positions": ((0, 3), I)}, "n is 0, expected 1 to 65535"),
    ("zen_partition", {"positions": ((2, 0), I)}, "capacity is 0, expected 1 to"),
    ("zen_partition_coo", {"values": ((3,), F)}, "values has shape [3], expected [4]"),
    ("zen_partition_coo", {"count": ((1,), I)}, "count has shape [1], expected []"),
    ("zen_partition_coo", {"bucket_values": ((2, 3), H)}, "bucket_values has dtype F16, expected F32"),
    ("zen_unique_ids", {"ids": ((4,), U)}, "ids has dtype U32, expected S32"),
    ("zen_unique_ids", {"unique": ((3,), I)}, "unique has shape [3], expected [4]"),
    ("zen_unique_ids", {"slots": ((5,), I)}, "slots has shape [5], expected [4]"),
    ("zen_aggregate", {"counts": ((3,), I)}, "counts has shape [3], expected [2]"),
    ("zen_aggregate", {"shard": ((5, 1), F)}, "shard has shape [5, 1], expected [5, 2]"),
    ("zen_aggregate", {"shard": ((5, 2), H)}, "shard has dtype F16, expected F32"),
    ("zen_aggregate", {"divisor": np.int64(0)}, "divisor is 0, expected 1 to"),
    ("zen_aggregate_encode", {"values": ((2, 2, 2), F)}, "values has shape [2, 2, 2], expected [2, 3, 2]"),
    ("zen_aggregate_encode", {"words": ((1,), U)}, "words has shape [1], expected [2]"),
    ("zen_aggregate_encode", {"units": ((4, 1), F)}, "units has shape [4, 1], expected [4, 2]"),
    ("zen_aggregate_encode", {"units": ((0, 2), F)}, "capacity is 0, expected 1 to"),
    ("zen_aggregate_encode", {"count": ((2,), I)}, "count has shape [2], expected []"),
    ("zen_aggregate_encode", {"size": np.int64(-1)}, "size is -1, expected 0 to"),
    ("zen_aggregate_encode", {"divisor": np.int64(0)}, "divisor is 0, expected 1 to"),
    (
        "zen_aggregate_for_others",
        {"positions": ((1, 3), I), "values": ((1, 3, 2), F), "counts": ((1,), I)},
        "n is 1, expected 2 to",
    ),
    ("zen_aggregate_for_others", {"words": ((2, 1), U)}, "words has shape [2, 1], expected [2, 2]"),
    ("zen_aggregate_for_others", {"units": ((3, 4, 2), F)}, "units has shape [3, 4, 2], expected [2, 4, 2]"),
    ("zen_aggregate_for_others", {"units": ((2, 4, 2), H)}, "units has dtype F16, expected F32"),
    ("zen_aggregate_for_others", {"held": ((), I)}, "held has shape [], expected [2]"),
    ("zen_aggregate_for_others", {"nonzero": ((), F)}, "nonzero has dtype F32, expected S32"),
    ("zen_aggregate_for_others", {"size": np.int64(0)}, "size is 0, expected 1 to"),
    ("zen_place_own", {"words": ((2, 2), U)}, "words has shape [2, 2], expected [2, 1]"),
    ("zen_place_own", {"positions": ((2, 4), I)}, "values has shape [2, 3, 2], expected [2, 4, 2]"),
    ("zen_place_own", {"values": ((2, 3, 2), H)}, "x has dtype F32, expected F16"),
    ("zen_place_own", {"counts": ((1,), I)}, "counts has shape [1], expected [2]"),
    ("zen_place_own", {"placed": ((8, 2), F)}, "placed has shape [8, 2], expected [7, 2]"),
    ("zen_place_own", {"divisor": np.int64(0)}, "divisor is 0, expected 1 to"),
    ("zen_hash_bitmap_encode", {"words": ((1,), U)}, "words has shape [1], expected [2]"),
    ("zen_hash_bitmap_encode", {"values": ((3, 1), F)}, "values has shape [3, 1], expected [3, 2]"),
    ("zen_hash_bitmap_encode", {"count": ((), U)}, "count has dtype U32, expected S32"),
    ("zen_hash_bitmap_decode", {"words": ((2, 2), U)}, "words has shape [2, 2], expected [2, 1]"),
    ("zen_hash_bitmap_decode", {"words": ((2, 1), I)}, "words has dtype S32, expected U32"),
    ("zen_hash_bitmap_decode", {"out": ((7, 3), F)}, "values has shape [2, 3, 2], expected [2, 3, 3]"),
    ("zen_pack", {"head": ((3, 1), I)}, "positions has shape [2, 4], expected [3, 4]"),
    ("zen_pack", {"positions": ((2, 3), I)}, "positions has shape [2, 3], expected [2, 4]"),
    ("zen_pack", {"values": ((2, 4, 2), H)}, "message has shape [9], expected [7]"),
    ("zen_pack", {"capacity": np.int64(5)}, "capacity is 5, expected 1 to 4"),
    ("zen_pack", {"second": ((8,), U)}, "message has shape [8], expected [9]"),
    ("zen_pack", {"second": ((9,), I)}, "message has dtype S32, expected U32"),
    ("zen_unpack", {"messages": ((2, 8), U)}, "messages has shape [2, 8], expected [2, 9]"),
    ("zen_unpack", {"head": ((2, 1), U)}, "head has dtype U32, expected S32"),
    ("zen_unpack", {"values": ((2, 2, 3), H)}, "positions has shape [2, 3], expected [2, 2]"),
    ("zen_unpack_joined", {"counts": ((3,), I)}, "counts has shape [3], expected [2]"),
    ("zen_unpack_joined", {"positions": ((4,), I)}, "positions has shape [4], expected [5]"),
    ("zen_unpack_joined", {"values": ((5, 3), I)}, "values has dtype S32, expected float32, float64"),
    ("zen_unpack_joined", {"capacity": np.int64(0)}, "capacity is 0, expected 1 to 9"),
    ("zen_unpack_joined", {"capacity": np.int64(2**64 // 10 + 1)}, "capacity is 1844674407370955162, expected 1 to 9"),
    ("zen_unpack_joined", {"capacity": np.int64(4)}, "the number of words in a head is -1, expected 0 to"),
    ("zen_hierarchical_hash", {"memory": ((2, 7), U)}, "memory has shape [2, 7], expected [2, 8]"),
    ("zen_hierarchical_hash", {"n": np.int64(3)}, "memory has shape [2, 8], expected [3, 8]"),
    ("zen_hierarchical_hash", {"r1": np.int64(-1)}, "r1 is -1, expected 0 to"),
    ("zen_hierarchical_hash", {"overflow": ((), F)}, "overflow has dtype F32, expected S32"),
    ("zen_send_largest", {"residual": ((3,), F)}, "residual has shape [3], expected [4]"),
    ("zen_send_largest", {"sent": ((4,), H)}, "sent has dtype F16, expected F32"),
    ("zen_send_largest", {"velocity": ((4,), F)}, "new_velocity has shape [0], expected [4]"),
    ("zen_send_largest", {"bounds": ((2,), I)}, "bounds has shape [2], expected [4]"),
    ("zen_send_largest", {"rank": np.int64(-1)}, "rank is -1, expected 0 to 64"),
    ("zen_send_largest", {"chunks": np.int64(1)}, "chunks is 1, expected 0 to 0"),
    ("zen_list_largest", {"values": ((3,), F)}, "values has shape [3], expected [2]"),
    ("zen_list_largest", {"indices": ((2,), U)}, "indices has dtype U32, expected S32"),
    ("zen_list_largest", {"scale": ((), H)}, "scale has dtype F16, expected F32"),
    ("zen_list_largest", {"new_residual": ((4,), H)}, "new_residual has dtype F16, expected F32"),
    ("zen_send_drawn", {"step": ((), I)}, "step has dtype S32, expected U32"),
    ("zen_send_drawn", {"k": np.int64(5)}, "k is 5, expected 1 to 4"),
    ("zen_send_reaching", {"rank": np.int64(2)}, "update has shape [4], expected at least 2 dimensions"),
    ("zen_send_reaching", {"sent": ((5,), F)}, "sent has shape [5], expected [4]"),
]


@pytest.mark.parametrize(("target", "wrong", "complaint"), REFUSED)
def test_refused(target, wrong, complaint):
    def run(**others):
        operands, results, attributes = ({k: others.get(k, v) for k, v in part.items()} for part in TAKEN[target])
        call = jax.ffi.ffi_call(target, [jax.ShapeDtypeStruct(*result) for result in results.values()])
        jax.block_until_ready(call(*(jnp.ones(*operand) for operand in operands.values()), **attributes))

    run()
    with pytest.raises(jax.errors.JaxRuntimeError, match=re.escape(f"{target}: {complaint}")):
        run(**wrong)


def test_a_result_need_not_reuse_the_operand_that_it_completes():
    words = jnp.array([[0b0011], [0b0001]], U)
    values = jnp.arange(1.0, 13.0).reshape(2, 3, 2)
    x = zen.kernels.hash_bitmap_decode(words, values, 7, **SEED)
    own = (x, words, jnp.array([[0, 2, 3], [1, 2, 0]]), 10 * values, jnp.array([3, 2]))
    place_own = importlib.import_module("zen_jax.kernels.place_own").reference
    _, results, attributes = TAKEN["zen_place_own"]
    call = jax.ffi.ffi_call("zen_place_own", [jax.ShapeDtypeStruct(*result) for result in results.values()])
    (placed,) = call(*own, **attributes)
    np.testing.assert_array_equal(placed, place_own(*own, **SEED))


def test_every_custom_call_is_covered():
    assert TAKEN.keys() == {target for target, *_ in REFUSED} == set(_native.library("cpu").registrations())
