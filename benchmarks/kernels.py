"""Times every kernel against its floor, its pure-JAX lowering, and other libraries' equivalents.

    python -m benchmarks.kernels --elements 64e6 --density 0.01 0.05 --json build/kernels.json

The floor of a kernel is the time that the device, at its measured ceilings, needs to read and write the bytes that the
kernel must; the ceilings are timed again beside every repeat. "times_floor" is the kernel's time over its floor,
"of_ceiling" the inverse, and "of_read" and "of_copy" the rate at which it moves these bytes over the rates at which the
device reads and copies. A peer that this machine lacks gets a row that says why.

aggregate and aggregate_encode run for up to 8 servers in one call, each with its own inbox: one server's share takes a
GPU less time than a call does, and fits in its cache. Their bytes and times are totals over these servers. The JSON is
rewritten after each row, so that an interrupted run keeps what it measured.

On a CPU the process keeps the memory it frees, as examples/lm does, so that results do not land on pages that the
operating system has yet to map; --fresh-memory leaves malloc as it is.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from examples.common.memory import keep_freed_memory

if __name__ == "__main__" and "--fresh-memory" not in sys.argv:
    keep_freed_memory()

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import measure
from benchmarks.ceilings import Ceilings
from benchmarks.peers import nonzeros
from benchmarks.processes import run_main
from zen_jax import kernels
from zen_jax.cli.options import at_least, positive, share
from zen_jax.kernels.aggregate import reference as aggregate_reference
from zen_jax.kernels.aggregate_encode import reference as aggregate_encode_reference
from zen_jax.kernels.hash_bitmap_decode import reference as decode_reference
from zen_jax.kernels.hash_bitmap_encode import reference as encode_reference
from zen_jax.kernels.partition import reference as partition_reference

ROOM = 1.1  # capacity over what the fullest server needs
SERVERS = 8  # at most, aggregated in one call


def sparse_tensor(units: int, width: int, density: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = np.zeros((units, width), np.float32)
    touched = np.flatnonzero(rng.random(units, np.float32) < density)
    x[touched] = rng.standard_normal((touched.size, width), np.float32)
    return x[:, 0] if width == 1 else x


def partitioned(rows: jax.Array, n: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Each server's bucket of the units [U, D], with more room than the fullest needs: [n, C], [n, C, D] and [n]."""
    capacity = int(np.asarray(kernels.partition(rows, n, 1)[2]).max() * ROOM) + 1
    return jax.jit(lambda x: kernels.partition(x, n, capacity))(rows)


def inboxes(buckets: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """The messages of n workers to each server s of min(n, SERVERS) = S: [S, n, C], [S, n, C, D] and [S, n].

    Worker w sends it bucket (s + w) mod n, so that the messages look like those of workers with unrelated gradients.
    """
    n = buckets[0].shape[0]
    sent = (np.arange(min(n, SERVERS), dtype=np.int32)[:, None] + np.arange(n, dtype=np.int32)) % n
    return jax.jit(lambda *parts: tuple(part[sent] for part in parts))(*buckets)


def cases(x: np.ndarray, n: int) -> Iterator[tuple[str, Callable, Callable, tuple, int, int]]:
    """For each kernel: name, custom call, pure-JAX lowering, operands, least bytes read and least bytes written."""
    units, size = x.shape[0], -(-x.shape[0] // n)
    rows = jnp.asarray(x).reshape(units, -1)
    buckets = partitioned(rows, n)
    capacity, total, unit_bytes = buckets[0].shape[1], int(buckets[2].sum()), rows.shape[1] * 4
    yield (
        "partition",
        lambda x: kernels.partition(x, n, capacity),
        lambda x: partition_reference(x, n, capacity),
        (rows,),
        x.nbytes,
        total * (unit_bytes + 4),
    )
    servers, received = min(n, SERVERS), inboxes(buckets)
    yield (
        "aggregate",
        jax.vmap(lambda *inbox: kernels.aggregate(*inbox, size)),
        jax.vmap(lambda *inbox: aggregate_reference(*inbox, size)),
        received,
        servers * total * (unit_bytes + 4),
        servers * size * unit_bytes,
    )
    sums = np.asarray(jax.jit(jax.vmap(lambda *inbox: kernels.aggregate_encode(*inbox, size, 1)))(*received)[2])
    room = int(sums.max() * ROOM) + 1
    yield (
        "aggregate_encode",
        jax.vmap(lambda *inbox: kernels.aggregate_encode(*inbox, size, room)),
        jax.vmap(lambda *inbox: aggregate_encode_reference(*inbox, size, room)),
        received,
        servers * total * (unit_bytes + 4),
        servers * (size // 8) + int(sums.sum()) * unit_bytes,
    )
    yield (
        "hash_bitmap_encode",
        lambda x: kernels.hash_bitmap_encode(x, total),
        lambda x: encode_reference(x, total),
        (rows,),
        x.nbytes,
        units // 8 + total * unit_bytes,
    )

    def encode_all(positions: jax.Array, values: jax.Array, sent: jax.Array) -> tuple[jax.Array, jax.Array]:
        one = lambda *bucket: kernels.aggregate_encode(*(part[None] for part in bucket), size, capacity)
        return jax.vmap(one)(positions, values, sent)[:2]

    encoded = jax.block_until_ready(jax.jit(encode_all)(*buckets))
    yield (
        "hash_bitmap_decode",
        lambda words, values: kernels.hash_bitmap_decode(words, values, units),
        lambda words, values: decode_reference(words, values, units),
        encoded,
        units // 8 + total * unit_bytes,
        x.nbytes,
    )


def peers(x: np.ndarray, n: int, repeats: int) -> Iterator[dict[str, Any]]:
    """A row for each peer: its time, and its median ratio to the time of aggregate or of partition on the same data.

    They take turns, except CUB, which events on the GPU time: its ratio is that of its median to partition's.
    """
    yield scatter_add(x, n, repeats)
    if x.ndim > 1:
        return  # the others do not handle rows
    operand, capacity = jnp.asarray(x), int(np.count_nonzero(x) / n * ROOM) + 1
    run = jax.jit(lambda x: kernels.partition(x, n, capacity))
    partition = lambda: run(operand)
    for name, peer in nonzeros.find_and_take(x, n):
        yield beside(name, peer, "partition", partition, repeats)
    own = measure.seconds(partition, repeats)["median"]
    for name, flagged in (("CUB DeviceSelect::Flagged", True), ("CUB DeviceSelect::If", False)):
        times = nonzeros.cub_seconds(x, repeats, flagged=flagged)
        if isinstance(times, nonzeros.Absent):
            yield {"kernel": name, "absent": times.reason}
            continue
        took = measure.spread(times)
        row = {f"{key}_ms": milliseconds(value) for key, value in took.items()}
        yield {"kernel": name} | row | {"times_partition": round(took["median"] / own, 2)}


def scatter_add(x: np.ndarray, n: int, repeats: int) -> dict[str, Any]:
    """XLA's scatter-add against aggregate, on the same messages."""
    size = -(-x.shape[0] // n)
    received = inboxes(partitioned(jnp.asarray(x).reshape(x.shape[0], -1), n))
    run = jax.jit(jax.vmap(lambda *inbox: kernels.aggregate(*inbox, size)))
    peer = nonzeros.scatter_add(*received, size)
    return beside("XLA scatter-add", peer, "aggregate", lambda: run(*received), repeats)


def beside(name: str, peer: nonzeros.Peer, kernel: str, run: Callable[[], Any], repeats: int) -> dict[str, Any]:
    """The row of a peer that is timed in turn with a kernel."""
    if isinstance(peer, nonzeros.Absent):
        return {"kernel": name, "absent": peer.reason}
    took = measure.ratio(peer, run, repeats)
    return {"kernel": name, "median_ms": milliseconds(took["median"]), f"times_{kernel}": round(took["ratio"], 2)}


def milliseconds(seconds: float) -> float:
    """Seconds in milliseconds, to four digits."""
    return float(f"{seconds * 1e3:.4g}")


def main() -> None:
    # Above, --fresh-memory is looked for as a whole word, before there is a parser.
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--elements", type=positive, default=64e6, help="elements of the tensor (default 64e6)")
    parser.add_argument("--density", type=share, nargs="+", default=[0.01, 0.05])
    parser.add_argument("--width", type=at_least(1), default=1, help="elements in a unit; 1 hashes elements")
    parser.add_argument("-n", type=at_least(1), default=16, help="servers")
    parser.add_argument("--repeats", type=at_least(1), default=11)
    parser.add_argument("--skip-slow", action="store_true", help="leave out the pure-JAX lowerings")
    parser.add_argument("--fresh-memory", action="store_true", help="let malloc return memory to the system")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    ceilings = Ceilings()
    results: list[dict[str, Any]] = []
    setting = {
        "environment": measure.environment(),
        "elements": int(options.elements),
        "width": options.width,
        "n": options.n,
        "servers_at_once": min(options.n, SERVERS),
    }

    def add(row: dict[str, Any]) -> None:
        results.append(row)
        measure.write_json(options.json, setting | {"ceilings": ceilings.rates(), "results": results})
        print(measure.table([row]), flush=True)

    units = int(options.elements) // options.width
    tensors = {density: sparse_tensor(units, options.width, density) for density in options.density}
    kernel_rows: dict[tuple[float, str], dict[str, Any]] = {}
    for density, x in tensors.items():
        for name, native, _, operands, read, written in cases(x, options.n):
            run = jax.jit(native)
            took = ceilings.against(lambda: run(*operands), read, written, options.repeats)  # noqa: B023
            row = {"density": density, "kernel": name, "bytes": read + written}
            row |= {f"{key}_ms": milliseconds(took[key]) for key in ("floor", "median", "min", "max")}
            row["times_floor"] = round(took["times_floor"], 2)
            row["of_ceiling"] = round(1 / took["times_floor"], 3)
            row |= {key: round(took[key], 3) for key in ("of_read", "of_copy")}
            kernel_rows[density, name] = row
            add(row)
    # Last, because they leave memory in small pages, on which the kernels' results would land.
    for density, x in tensors.items():
        if not options.skip_slow:
            for name, _, reference, operands, *_ in cases(x, options.n):
                slow = measure.seconds(lambda: jax.jit(reference)(*operands), 1)  # noqa: B023
                kernel_rows[density, name]["pure_jax_ms"] = milliseconds(slow["median"])
        for row in peers(x, options.n, options.repeats):
            add({"density": density} | row)
    print(measure.table(results))


if __name__ == "__main__":
    run_main(main)
