"""The paper's Algorithm 1 against the tile rotation: Figure 16's sweeps, and the whole way to n servers' messages.

    python -m benchmarks.algorithm_1 --elements 214e6 --density 0.01 0.052 -n 16 --json build/algorithm_1.json

The paper's way takes four steps, each run here by the fastest available kernel: find the non-zeros' indices, hash them
into memory (`kernels.hierarchical_hash`), extract the indices from each server's memory, and take the values there.
`kernels.partition` does all of this in one pass. "serial" is the share of indices for which no rehash found a place,
"lost" how many found no serial slot either. Over all servers, memory for parallel writing has r1 slots per non-zero,
and memory for serial writing a tenth of that.

Source: ZEN (OSDI 2025), Algorithm 1, section 5.3, Figure 16.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks import measure
from benchmarks.kernels import ROOM, milliseconds, sparse_tensor
from benchmarks.processes import run_main
from zen_jax import kernels
from zen_jax.cli.options import at_least, positive, share
from zen_jax.hashing import EMPTY_SLOT

MEMORY = (1, 2, 4)  # r1 over |G| d, with the paper's k
REHASHES = (1, 2, 3, 4)  # k, with the paper's r1
PAPER = (2, 3)
SERIAL_SHARE = 10  # r1 / r2


def settings() -> list[tuple[int, int]]:
    """(r1 over the non-zeros, k) of both sweeps, each once."""
    return sorted({(r1, PAPER[1]) for r1 in MEMORY} | {(PAPER[0], k) for k in REHASHES})


def find(x: jax.Array, capacity: int) -> jax.Array:
    """Indices of the non-zeros of x [U]: int32 [capacity], EMPTY_SLOT after the last."""
    indices, _, counts = kernels.partition(x, 1, capacity)
    return jnp.where(jnp.arange(capacity) < counts[0], indices[0], EMPTY_SLOT.astype(np.int32))


def extract(memory: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array]:
    """Each server's indices from its memory [n, r1 + r2], empty slots left out: [n, capacity] and their counts."""
    # An empty slot has all bits set, so inverted it is the float +0, which the encode kernel leaves out.
    inverted = lax.bitcast_convert_type(~memory, jnp.float32)
    _, found, counts = jax.vmap(lambda row: kernels.hash_bitmap_encode(row, capacity))(inverted)
    return ~lax.bitcast_convert_type(found, jnp.uint32), counts


def take(x: jax.Array, indices: jax.Array, counts: jax.Array) -> jax.Array:
    """The values at each server's indices [n, C]."""
    filled = jnp.arange(indices.shape[1])[None] < counts[:, None]
    return x[jnp.where(filled, indices, 0)]


def sweep(x: np.ndarray, n: int, repeats: int) -> list[dict[str, Any]]:
    """A row for each setting."""
    device, nonzeros = jnp.asarray(x), int(np.count_nonzero(x))
    capacity = int(np.asarray(kernels.partition(device, n, 1)[2]).max() * ROOM) + 1
    rows = []

    def timed(run: Callable[..., Any], *operands: Any) -> tuple[Any, float]:
        compiled = jax.jit(run)
        return compiled(*operands), measure.seconds(lambda: compiled(*operands), repeats)["median"]

    _, one_pass = timed(lambda x: kernels.partition(x, n, capacity), device)
    indices, finding = timed(partial(find, capacity=nonzeros), device)
    for r1_share, k in settings():
        r1 = -(-r1_share * nonzeros // n)
        r2 = -(-r1 // SERIAL_SHARE)
        hashing = lambda i: kernels.hierarchical_hash(i, n, r1, r2, k)  # noqa: B023
        (memory, _, lost), hashed = timed(hashing, indices)
        (kept, counts), extracted = timed(partial(extract, capacity=capacity), memory)
        _, taken = timed(take, device, kept.astype(jnp.int32), counts)
        serial = int(jnp.sum(memory[:, r1:] != EMPTY_SLOT)) + int(lost)
        steps = {"find": finding, "hash": hashed, "extract": extracted, "take": taken}
        whole = sum(steps.values())
        row: dict[str, Any] = {"r1": r1_share, "k": k}
        row |= {f"{name}_ms": milliseconds(seconds) for name, seconds in steps.items()}
        row |= {"whole_ms": milliseconds(whole), "partition_ms": milliseconds(one_pass)}
        row |= {"times_partition": round(whole / one_pass, 2), "serial": round(serial / max(nonzeros, 1), 4)}
        rows.append(row | {"lost": int(lost)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=positive, default=16e6, help="elements of the tensor (default 16e6)")
    parser.add_argument("--density", type=share, nargs="+", default=[0.01, 0.052])
    parser.add_argument("-n", type=at_least(1), default=16, help="servers")
    parser.add_argument("--repeats", type=at_least(1), default=11)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    results: list[dict[str, Any]] = []
    setting = {"environment": measure.environment(), "elements": int(options.elements), "n": options.n}
    for density in options.density:
        x = sparse_tensor(int(options.elements), 1, density)
        results += [{"density": density} | row for row in sweep(x, options.n, options.repeats)]
        measure.write_json(options.json, setting | {"results": results})
    print(measure.table(results))


if __name__ == "__main__":
    run_main(main)
