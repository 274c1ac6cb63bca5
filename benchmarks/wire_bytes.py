"""Bytes that zen moves for the embedding gradients of real text, against the least that any scheme could.

    python -m benchmarks.wire_bytes --data path/to/gutenberg_lm --json build/wire_bytes.json

The text is a folder with train.txt.gz, tokens separated by spaces, one paragraph a line. Each of n workers reads a
batch of 128 x 35 tokens a step, and its gradient has one non-zero row for each distinct token. The lower bound: every
worker receives each row that another worker touched once, without indices. "Exact" is Balanced Parallelism with
messages of exactly the size of what they carry, COO push and hash-bitmap pull, rows as units.
"""

import argparse
import gzip
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import zen_jax as zen
from benchmarks import measure


def read_tokens(folder: Path) -> tuple[np.ndarray, int]:
    """Token ids of the training text, each paragraph closed by <eos>, and the number of types."""
    types: dict[str, int] = {"<eos>": 0}
    ids = []
    with gzip.open(folder / "train.txt.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            ids.extend(types.setdefault(word, len(types)) for word in [*line.split(), "<eos>"])
    return np.asarray(ids, np.int32), len(types)


def touched_rows(tokens: np.ndarray, types: int, n: int, sequences: int, length: int, step: int) -> np.ndarray:
    """bool [n, types]: the rows that each worker touches in a step; every sequence reads on where it stopped."""
    streams = tokens[: len(tokens) // (n * sequences) * n * sequences].reshape(n, -1)
    window = streams.reshape(n, sequences, -1)[:, :, step * length : (step + 1) * length]
    touched = np.zeros((n, types), bool)
    for worker, words in enumerate(window):
        touched[worker, words.ravel()] = True
    return touched


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("-n", type=int, default=8)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--sequences", type=int, default=128)
    parser.add_argument("--length", type=int, default=35)
    parser.add_argument("--plan-steps", type=int, default=4, help="steps that the plan is measured on")
    parser.add_argument("--steps", type=int, default=8, help="later steps that are then synchronised")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    n, dim = options.n, options.dim
    tokens, types = read_tokens(options.data)

    def rows_at(step: int) -> np.ndarray:
        return touched_rows(tokens, types, n, options.sequences, options.length, step)

    def gradients_of(touched: np.ndarray) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(touched, jnp.float32)[:, :, None], (n, types, dim))

    plans = [zen.measure_plan(gradients_of(rows_at(step))) for step in range(options.plan_steps)]
    leaves = [plan.leaves[""] for plan in plans]
    capacity = tuple(max(leaf.capacity[way] for leaf in leaves) for way in (0, 1))

    def reduce(capacity):
        def run(gradient):
            return zen.all_reduce(gradient, "data", capacity=capacity, return_info=True)[1]

        return jax.jit(jax.vmap(run, axis_name="data", out_axes=None))

    runs = {"planned": reduce(capacity), "no plan": reduce(None)}
    rows = []
    for step in range(options.plan_steps, options.plan_steps + options.steps):
        touched = rows_at(step)
        others = [np.delete(touched, worker, axis=0).any(axis=0).sum() for worker in range(n)]
        bound = float(np.mean(others)) * dim * 4
        pushed, union = touched.sum(axis=1).mean(), touched.any(axis=0).sum()
        exact = (n - 1) / n * (pushed * (dim * 4 + 4) + union * dim * 4 + types / 8)
        row = {
            "step": step,
            "density": round(float(touched.mean()), 4),
            "bound_MB": round(bound / 1e6, 3),
            "exact/bound": round(exact / bound, 3),
        }
        for name, run in runs.items():
            info = run(gradients_of(touched))
            moved = float(info.bytes_pushed + info.bytes_pulled)
            row |= {f"{name}/bound": round(moved / bound, 3), f"{name}/exact": round(moved / exact, 3)}
            row["dense/bound"] = round(float(info.bytes_dense) / bound, 2)
        rows.append(row)
    print(f"V {types}, D {dim}, n {n}, {options.sequences} x {options.length} tokens a worker, capacity {capacity}")
    print(measure.table(rows))
    measure.write_json(options.json, {"types": types, "n": n, "dim": dim, "capacity": capacity, "steps": rows})


if __name__ == "__main__":
    main()
