"""Times every kernel against its floor, its pure-JAX lowering, NumPy, jnp.nonzero and torch.

    python -m benchmarks.kernels --elements 64e6 --density 0.01 0.05 --json build/kernels.json

The floor of a kernel is the time in which the device, at its measured ceilings, reads and writes the bytes that the
kernel must; the ceilings are timed again beside every repeat. "times_floor" is the kernel's time over its floor, and
"of_read" the rate at which it moves these bytes over the rate at which the device reads.

On a CPU the process keeps the memory it frees, as examples/lm does, so that results do not land on pages that the
kernel has yet to map; --fresh-memory leaves malloc as it is.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from examples.common.memory import keep_freed_memory

if __name__ == "__main__" and "--fresh-memory" not in sys.argv:
    keep_freed_memory()

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import measure
from zen_jax import kernels
from zen_jax.kernels.aggregate import reference as aggregate_reference
from zen_jax.kernels.hash_bitmap_decode import reference as decode_reference
from zen_jax.kernels.hash_bitmap_encode import reference as encode_reference
from zen_jax.kernels.partition import reference as partition_reference

ROOM = 1.1  # capacity over the fullest bucket


def sparse_tensor(units: int, width: int, density: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = np.zeros((units, width), np.float32)
    touched = rng.choice(units, int(units * density), replace=False)
    x[touched] = rng.standard_normal((touched.size, width), np.float32)
    return x[:, 0] if width == 1 else x


def cases(x: np.ndarray, n: int) -> Iterator[tuple[str, Callable, Callable, tuple, int, int]]:
    """For each kernel: name, custom call, pure-JAX lowering, operands, bytes read and bytes written at least."""
    device = jnp.asarray(x)
    units, size = x.shape[0], -(-x.shape[0] // n)
    rows = device.reshape(units, -1)
    counts = np.asarray(kernels.partition(device, n, 1)[2])
    capacity = int(counts.max() * ROOM)
    total, unit_bytes = int(counts.sum()), rows.shape[1] * 4
    yield (
        "partition",
        lambda x: kernels.partition(x, n, capacity),
        lambda x: partition_reference(x, n, capacity),
        (rows,),
        x.nbytes,
        total * (unit_bytes + 4),
    )
    positions, values, sent = jax.jit(lambda x: kernels.partition(x, n, capacity))(rows)
    # Server 0's inbox when all n workers send alike: bucket 0 of each.
    inbox = (jnp.tile(positions[:1], (n, 1)), jnp.tile(values[:1], (n, 1, 1)), jnp.tile(sent[:1], n))
    yield (
        "aggregate",
        lambda *inbox: kernels.aggregate(*inbox, size),
        lambda *inbox: aggregate_reference(*inbox, size),
        inbox,
        n * int(counts[0]) * (unit_bytes + 4),
        size * unit_bytes,
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
        shards = [kernels.aggregate(positions[i : i + 1], values[i : i + 1], sent[i : i + 1], size) for i in range(n)]
        encoded = [kernels.hash_bitmap_encode(shard, capacity) for shard in shards]
        return jnp.stack([e[0] for e in encoded]), jnp.stack([e[1] for e in encoded])

    encoded = jax.block_until_ready(jax.jit(encode_all)(positions, values, sent))
    yield (
        "hash_bitmap_decode",
        lambda words, values: kernels.hash_bitmap_decode(words, values, units),
        lambda words, values: decode_reference(words, values, units),
        encoded,
        units // 8 + total * unit_bytes,
        x.nbytes,
    )


def peers(x: np.ndarray) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What finds and takes the non-zeros of a 1-D tensor elsewhere."""
    device = jnp.asarray(x)
    count = int(np.count_nonzero(x))
    if jax.default_backend() == "cpu":

        def numpy_nonzero() -> tuple[np.ndarray, np.ndarray]:
            indices = np.flatnonzero(x != 0)
            return indices, x[indices]

        yield "numpy flatnonzero + take", numpy_nonzero

    @jax.jit
    def jax_nonzero(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        indices = jnp.nonzero(x, size=count)[0]
        return indices, x[indices]

    yield "jnp.nonzero + take", lambda: jax_nonzero(device)
    try:
        import torch
    except ImportError:
        return
    on_gpu = jax.default_backend() != "cpu" and torch.cuda.is_available()
    tensor = torch.from_numpy(x).to("cuda" if on_gpu else "cpu")

    def torch_nonzero() -> Any:
        indices = torch.nonzero(tensor).squeeze(1)
        taken = torch.index_select(tensor, 0, indices)
        if on_gpu:
            torch.cuda.synchronize()
        return float(taken[-1])

    yield "torch.nonzero + index_select", torch_nonzero


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=float, default=64e6, help="elements of the tensor (default 64e6)")
    parser.add_argument("--density", type=float, nargs="+", default=[0.01, 0.05])
    parser.add_argument("--width", type=int, default=1, help="elements in a unit; 1 hashes elements")
    parser.add_argument("-n", type=int, default=16, help="servers")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--skip-slow", action="store_true", help="leave out the pure-JAX lowering and jnp.nonzero")
    parser.add_argument("--fresh-memory", action="store_true", help="let malloc return memory to the system")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    ceilings = measure.Ceilings()
    results: list[dict[str, Any]] = []
    for density in options.density:
        x = sparse_tensor(int(options.elements) // options.width, options.width, density)
        for name, native, reference, operands, read, written in cases(x, options.n):
            run = jax.jit(native)
            took = ceilings.against(lambda: run(*operands), read, written, options.repeats)  # noqa: B023
            row = {"density": density, "kernel": name}
            row |= {f"{key}_ms": round(took[key] * 1e3, 2) for key in ("floor", "median", "min", "max")}
            row["times_floor"] = round(took["times_floor"], 2)
            row["of_read"] = round(took["of_read"], 2)
            if not options.skip_slow:
                slow = measure.seconds(lambda: jax.jit(reference)(*operands), 1)  # noqa: B023
                row["pure_jax_ms"] = round(slow["median"] * 1e3, 1)
            results.append(row)
            print(measure.table([row]), flush=True)
        if options.width == 1:
            operand, capacity = jnp.asarray(x), int(np.count_nonzero(x) / options.n * ROOM)
            partition = jax.jit(lambda x: kernels.partition(x, options.n, capacity))  # noqa: B023
            for name, run in peers(x):
                if options.skip_slow and name.startswith("jnp"):
                    continue
                took = measure.ratio(run, lambda: partition(operand), options.repeats)  # noqa: B023
                row = {"density": density, "kernel": name, "median_ms": round(took["median"] * 1e3, 2)}
                results.append(row | {"times_partition": round(took["ratio"], 1)})
    print(measure.table(results))
    result = {
        "environment": measure.environment(),
        "ceilings": ceilings.rates(),
        "elements": int(options.elements),
        "width": options.width,
        "n": options.n,
        "results": results,
    }
    measure.write_json(options.json, result)


if __name__ == "__main__":
    main()
