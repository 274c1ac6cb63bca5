"""What benchmarks.kernels times, on a tensor small enough to check it, and what an interrupted run keeps."""

import json
import sys

import jax
import numpy as np
import pytest

from benchmarks import kernels, measure
from benchmarks.peers import nonzeros


def units_of(words, units, count):
    """The positions of a shard's non-zero units by its bitmap, and their values."""
    at = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
    assert at.size == count
    return at, units[:count]


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("n", [2, 11])
def test_aggregates_are_of_several_servers_with_an_inbox_each(n, width):
    servers, size, unit_bytes = min(n, kernels.SERVERS), -(-600 // n), width * 4
    x = kernels.sparse_tensor(600, width, 0.3)
    touched = np.count_nonzero(x.reshape(600, -1).any(axis=1))
    named = {name: case for name, *case in kernels.cases(x, n)}

    native, reference, inboxes, read, written = named["aggregate"]
    shards = np.asarray(jax.jit(native)(*inboxes))
    np.testing.assert_array_equal(shards, jax.jit(reference)(*inboxes))
    assert shards.shape == (servers, size, width)
    assert read == n * np.count_nonzero(shards.any(axis=2)) * (unit_bytes + 4) and written == shards.nbytes

    native, reference, inboxes, read, written = named["aggregate_encode"]
    assert len({positions.tobytes() for positions in np.asarray(inboxes[0])}) == servers
    actual, expected = (tuple(map(np.asarray, jax.jit(run)(*inboxes))) for run in (native, reference))
    for ours, oracle in zip(zip(*actual, strict=True), zip(*expected, strict=True), strict=True):
        for found, wanted in zip(units_of(*ours), units_of(*oracle), strict=True):
            np.testing.assert_array_equal(found, wanted)
    assert read == servers * touched * (unit_bytes + 4)
    assert written == servers * (size // 8) + actual[2].sum() * unit_bytes


def test_scatter_add_sums_each_servers_messages():
    buckets = kernels.partitioned(jax.numpy.asarray(kernels.sparse_tensor(500, 3, 0.4)), 5)
    messages = [np.asarray(part) for part in kernels.inboxes(buckets, alike=False)]
    expected = np.zeros((5, 100, 3), np.float32)
    for server, (positions, values, counts) in enumerate(zip(*messages, strict=True)):
        for at, units, count in zip(positions, values, counts, strict=True):
            expected[server, at[:count]] += units[:count]
    np.testing.assert_allclose(nonzeros.scatter_add(*map(jax.numpy.asarray, messages), 100)(), expected, rtol=1e-5)


class FixedCeilings:
    """Ceilings of a device that moves one byte per second."""

    def against(self, run, read, written, repeats):
        took = measure.seconds(run, repeats)
        return took | {"floor": read + written, "times_floor": 1.0, "of_read": 1.0, "of_copy": 1.0}

    def rates(self):
        return {way: {"median": 1.0, "best": 1.0} for way in ("read", "write", "copy")}


def test_a_run_that_is_cut_off_keeps_what_it_measured(monkeypatch, tmp_path):
    class CutOff(Exception):
        pass

    def cut_off(x, n, repeats):
        yield {"kernel": "a peer", "absent": "no such thing"}
        raise CutOff

    monkeypatch.setattr(kernels, "Ceilings", FixedCeilings)
    monkeypatch.setattr(kernels, "peers", cut_off)
    command = "kernels --elements 2000 --density 0.1 -n 3 --repeats 1 --skip-slow --json".split()
    monkeypatch.setattr(sys, "argv", [*command, str(tmp_path / "kernels.json")])
    with pytest.raises(CutOff):
        kernels.main()
    kept = json.loads((tmp_path / "kernels.json").read_text())
    assert [row["kernel"] for row in kept["results"]][-2:] == ["hash_bitmap_decode", "a peer"]
    assert kept["servers_at_once"] == 3 and kept["ceilings"]["read"]["median"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["kernels.json"]


def test_every_peer_has_a_row():
    rows = list(kernels.peers(kernels.sparse_tensor(500, 1, 0.2), 4, 1))
    assert rows[0]["kernel"] == "XLA scatter-add" and rows[0]["times_aggregate"] > 0
    assert [row["kernel"] for row in rows[-2:]] == ["CUB DeviceSelect::Flagged", "CUB DeviceSelect::If"]
    absent = {row["kernel"] for row in rows[1:] if "times_partition" not in row}
    assert all(name.startswith(("torch", "cupy", "CUB")) for name in absent)
    assert [row["kernel"] for row in kernels.peers(kernels.sparse_tensor(500, 3, 0.2), 4, 1)] == ["XLA scatter-add"]
