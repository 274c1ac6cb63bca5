"""Messages in both lowerings against NumPy: layout, dtypes, capacities, batching."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import FLOATS, assert_same_bits

from zen_jax.formats import message

N, ROOM = 3, 7
LOWERINGS = {
    "public": (message.pack, message.unpack, message.unpack_joined),
    "reference": (message.pack_reference, message.unpack_reference, message.unpack_joined_reference),
}


def _buckets(dtype, width, head_words, listed, seed=0):
    """Two batch items, with arbitrary data beyond each count, as partition leaves it."""
    rng = np.random.default_rng(seed)
    head = rng.integers(-(2**31), 2**31, (2, N, head_words), dtype=np.int32)
    positions = rng.integers(0, 2**31, (2, N, ROOM if listed else 0), dtype=np.int32)
    values = rng.normal(size=(2, N, ROOM, width)).astype(dtype)
    counts = np.array([[0, 2, ROOM], [ROOM + 5, 1, 3]], np.int32)
    return head, positions, values, counts


def _message(head, positions, values, count, capacity):
    """One message as bytes, and what unpacking it gives."""
    filled = (np.arange(capacity) < count).astype(np.int32)
    positions = positions[:capacity] * filled[: len(positions)]
    values = np.where(filled[:, None] > 0, values[:capacity], np.zeros((), values.dtype))
    units = values.tobytes()
    return head.tobytes() + positions.tobytes() + units + bytes(-len(units) % 4), (head, positions, values)


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("capacity", [1, 5])
@pytest.mark.parametrize(("head_words", "listed"), [(1, True), (0, False), (2, False)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_messages(dtype, head_words, listed, capacity, lowering):
    pack, unpack, _ = LOWERINGS[lowering]
    with jax.enable_x64(dtype == "float64"):
        for width in (1, 3):
            buckets = _buckets(FLOATS[dtype], width, head_words, listed)
            sizes = (head_words, capacity * listed, capacity, width, FLOATS[dtype])

            @jax.jit
            @jax.vmap
            def there_and_back(*parts, sizes=sizes):
                packed = pack(*parts, capacity)
                return packed, unpack(packed, *sizes)

            packed, unpacked = jax.device_get(there_and_back(*buckets))
            for item in np.ndindex(2, N):
                expected, parts = _message(*(part[item] for part in buckets), capacity)
                assert packed[item].tobytes() == expected
                for part, found in zip(parts, unpacked, strict=True):
                    assert_same_bits(found[item], part)


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("capacity", [1, 4])
@pytest.mark.parametrize("dtype", FLOATS)
def test_joined_messages(dtype, capacity, lowering):
    pack, _, unpack_joined = LOWERINGS[lowering]
    counts = np.array([[0, 2, 4], [3, 0, 0]], np.int32)
    with jax.enable_x64(dtype == "float64"):
        for width in (1, 3):
            head, positions, values, _ = _buckets(FLOATS[dtype], width, 1, listed=True)
            positions, values = positions[:, :1], values[:, :1]

            @jax.jit
            @jax.vmap
            def there_and_back(head, positions, values, counts, width=width):
                packed = pack(head, positions, values, counts, capacity, beyond=99)
                joined = unpack_joined(packed, jnp.minimum(counts, capacity), ROOM, 1, capacity, width, FLOATS[dtype])
                return packed, joined

            packed, joined = jax.device_get(there_and_back(head, positions, values, counts))
            for item in range(2):
                begin = np.cumsum(counts[item]) - counts[item]
                taken = [slice(b, b + min(c, capacity)) for b, c in zip(begin, counts[item], strict=True)]
                for bucket, entries in enumerate(taken):
                    mine, units = positions[item, 0, entries], values[item, 0, entries]
                    filler = capacity - len(mine)
                    listed = np.pad(mine, (0, filler), constant_values=99)
                    sent = np.concatenate([units, np.zeros((filler, width), units.dtype)]).tobytes()
                    expected = head[item, bucket].tobytes() + listed.tobytes() + sent + bytes(-len(sent) % 4)
                    assert packed[item, bucket].tobytes() == expected
                for found, part in zip(joined, (positions[item, 0], values[item, 0]), strict=True):
                    entries = np.concatenate([part[some] for some in taken])
                    assert_same_bits(found[item, : len(entries)], entries)
