"""Compares the capacity ladder with the alternative, rounds of one fixed capacity, for the push of one gradient.

    python -m benchmarks.ladder --json build/ladder.json

Both push the same buckets of n emulated workers, element units, at several densities. "bytes" is the capacity that
was sent over the fullest message's bytes. Rounds are shown at capacities that fit a low, a medium and a high density.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks import measure
from benchmarks.processes import run_main
from zen_jax import _axis, kernels
from zen_jax.cli.options import at_least, positive, share
from zen_jax.formats import coo
from zen_jax.schemes.ladder import ladder, rung_for


def push_in_rounds(capacity: int, size: int, top: int) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    """As many exchanges of `capacity` units as the fullest bucket needs, each added to the shard."""

    def push(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        n = _axis.axis_size("data")
        positions, values, counts = kernels.partition(x, n, top + capacity)
        rounds = -(-jnp.max(_axis.all_gather(jnp.max(counts), "data")) // capacity)

        def one_round(r: jax.Array, shard: jax.Array) -> jax.Array:
            first = r * capacity
            slices = [lax.dynamic_slice_in_dim(a, first, capacity, axis=1) for a in (positions, values)]
            message = coo.pack(*slices, jnp.clip(counts - first, 0, capacity), capacity)
            received = coo.unpack(_axis.all_to_all(message, "data"), capacity, 1, x.dtype)
            return shard + kernels.aggregate(*received, size)

        shard = lax.fori_loop(0, rounds, one_round, jnp.zeros((size, 1), x.dtype))
        return shard, rounds * coo.message_bytes(capacity, 1, x.dtype)

    return push


def push_by_ladder(size: int, top: int) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    rungs = ladder(top, None, unit_bytes=4)

    def push(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        n = _axis.axis_size("data")
        positions, values, counts = kernels.partition(x, n, top)
        rung = rung_for(jnp.max(_axis.all_gather(jnp.max(counts), "data")), rungs)

        def branch(capacity: int) -> Callable[..., jax.Array]:
            def exchange(positions: jax.Array, values: jax.Array, counts: jax.Array) -> jax.Array:
                message = coo.pack(positions, values, counts, capacity)
                received = coo.unpack(_axis.all_to_all(message, "data"), capacity, 1, x.dtype)
                return kernels.aggregate(*received, size)

            return exchange

        shard = lax.switch(rung, [branch(c) for c in rungs], positions, values, counts)
        return shard, jnp.array([coo.message_bytes(c, 1, x.dtype) for c in rungs])[rung]

    return push


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=positive, default=2e6)
    parser.add_argument("--density", type=share, nargs="+", default=[0.002, 0.01, 0.05, 0.2])
    parser.add_argument("-n", type=at_least(2), default=8)
    parser.add_argument("--repeats", type=at_least(1), default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    n, units = options.n, int(options.elements)
    size = -(-units // n)
    fits = {share: int(size * share * 1.1) for share in (0.002, 0.02, 0.2)}
    ways = {"ladder": push_by_ladder(size, size)}
    ways |= {f"rounds for {share:.1%}": push_in_rounds(c, size, size) for share, c in fits.items()}
    rng = np.random.default_rng(0)
    rows = []
    for density in options.density:
        mask = rng.random((n, units, 1)) < density
        x = jnp.asarray(np.where(mask, rng.standard_normal((n, units, 1)), 0).astype(np.float32))
        buckets = jax.vmap(lambda x: kernels.partition(x, n, 1)[2])(x)
        exact = float(jnp.max(buckets)) * 8
        for name, push in ways.items():
            run = jax.jit(jax.vmap(push, axis_name="data"))
            start = time.perf_counter()
            _, moved = jax.block_until_ready(run(x))
            compiled = time.perf_counter() - start
            took = measure.seconds(lambda: run(x), options.repeats)  # noqa: B023
            rows.append(
                {
                    "density": density,
                    "push": name,
                    "ms": round(took["median"] * 1e3, 1),
                    "bytes": round(float(moved[0]) / exact, 2),
                    "first call s": round(compiled, 1),
                }
            )
    print(measure.table(rows))
    measure.write_json(options.json, {"environment": measure.environment(), "rows": rows})


if __name__ == "__main__":
    run_main(main)
