"""What benchmarks.kernels times, on a tensor small enough to check it, its ceilings, and what a cut-off run keeps."""

import json
import os
import sys

import jax
import numpy as np
import pytest

from benchmarks import ceilings, kernels, measure
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
    assert read == servers * touched * (unit_bytes + 4) and written == shards.nbytes

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
    messages = [np.asarray(part) for part in kernels.inboxes(buckets)]
    expected = np.zeros((5, 100, 3), np.float32)
    for server, (positions, values, counts) in enumerate(zip(*messages, strict=True)):
        for at, units, count in zip(positions, values, counts, strict=True):
            expected[server, at[:count]] += units[:count]
    np.testing.assert_allclose(nonzeros.scatter_add(*map(jax.numpy.asarray, messages), 100)(), expected, rtol=1e-5)


def test_the_ceilings_of_a_cpu_are_measured_with_any_number_of_threads(monkeypatch):
    shares = ceilings._shares(np.ones(1 << 13, np.uint64), 3)
    assert sum(share.size for share in shares) == 1 << 13
    assert all(share.ctypes.data % 16 == 0 for share in shares)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    for ways in ceilings._cpu_ways(1 << 16).values():
        for way in ways:
            way()


@pytest.mark.parametrize("compiler", ["false", "/nowhere/c++"])
def test_ceilings_need_no_compiler(compiler, monkeypatch):
    monkeypatch.setenv("CXX", compiler)
    assert ceilings._native_ceilings() is None


@pytest.mark.parametrize(("write", "floor"), [(2, 120), (10, 140)])
def test_a_floor_counts_what_is_written_at_the_faster_of_write_and_copy(write, floor, monkeypatch):
    """In seconds per byte the device reads at 1 and copies at 4, a copied byte being both read and written."""
    nbytes = 1 << 28
    seconds = {"scan": nbytes, "slow scan": 2 * nbytes, "fill": write * nbytes, "copy": 2 * 4 * nbytes, "kernel": 560}
    ways = {"read": ["slow scan", "scan"], "write": ["fill"], "copy": ["copy"]}
    monkeypatch.setattr(ceilings, "_cpu_ways", lambda _: ways)
    monkeypatch.setattr(measure, "elapsed", lambda run, calls=1: seconds[run])
    took = ceilings.Ceilings().against("kernel", read=100, written=10, repeats=3)
    shares = {"times_floor": 560 / floor, "of_read": 110 / 560, "of_copy": 440 / 560}
    assert took == pytest.approx({"median": 560, "min": 560, "max": 560, "floor": floor} | shares)


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


def test_an_option_cut_short_is_refused(monkeypatch, capsys):
    """Because the whole --fresh-memory is looked for before options are parsed."""
    monkeypatch.setattr(kernels, "Ceilings", None)
    monkeypatch.setattr(sys, "argv", ["kernels", "--fresh"])
    with pytest.raises(SystemExit, match="2"):
        kernels.main()
    assert "unrecognized arguments: --fresh" in capsys.readouterr().err


def test_every_peer_has_a_row():
    rows = list(kernels.peers(kernels.sparse_tensor(500, 1, 0.2), 4, 1))
    assert rows[0]["kernel"] == "XLA scatter-add" and rows[0]["times_aggregate"] > 0
    assert [row["kernel"] for row in rows[-2:]] == ["CUB DeviceSelect::Flagged", "CUB DeviceSelect::If"]
    absent = {row["kernel"] for row in rows[1:] if "times_partition" not in row}
    assert all(name.startswith(("torch", "cupy", "CUB")) for name in absent)
    assert [row["kernel"] for row in kernels.peers(kernels.sparse_tensor(500, 3, 0.2), 4, 1)] == ["XLA scatter-add"]
