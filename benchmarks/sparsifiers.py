"""Times every sparsifier against its bandwidth floor and the original algorithms written with jnp and lax.top_k.

    python -m benchmarks.sparsifiers --elements 16e6 --density 0.001 0.05 --json build/sparsifiers.json

Selection with error feedback must read a gradient and its residual, write the new residual, and write what it sends as
4-byte indices and values: 12|G| + 8d|G| bytes. The floor is the time that these take at the device's measured ceilings,
which are timed again beside every repeat. `dgc` also reads and writes its velocity; its figure "of 20|G|" compares it
with a floor that counts this. "of_ceiling" is the inverse of "times_floor", for `dgc` of "of 20|G|". State is donated,
as in a training step.

The last row of a density goes on to the servers' buckets (`--servers`): `top_k(compact=True)` hands a list to
`partition_coo`. Its floor counts the same bytes, because the buckets hold what the list does. It takes turns with
`top_k`, whose array `partition` reads; "of unfused" is the median ratio of their times. Gradients under 1 MiB are never
lists.
"""

import argparse
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from examples.common.memory import keep_freed_memory

if __name__ == "__main__":
    keep_freed_memory()

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import zen_jax as zen
from benchmarks import measure
from benchmarks.ceilings import Ceilings
from benchmarks.processes import run_main
from zen_jax.cli.options import at_least, positive, share
from zen_jax.trees import densified

MOMENTUM = 0.9


def top_k_update(gradient: jax.Array, residual: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Error feedback around `lax.top_k`."""
    total = gradient + residual
    _, indices = lax.top_k(jnp.abs(total), k)
    residual = total.at[indices].set(0)
    return jnp.zeros_like(total).at[indices].set(total[indices]), residual


def dgc_update(gradient: jax.Array, state: tuple[jax.Array, jax.Array], density: float) -> tuple[jax.Array, tuple]:
    """Deep Gradient Compression as first published: a strided sample, ten adaptations, the first k that pass."""
    velocity, residual = state
    size, k = gradient.size, math.ceil(density * gradient.size)
    velocity = MOMENTUM * velocity + gradient
    residual = residual + velocity
    importance = jnp.abs(residual)
    sample = importance[:: math.ceil(size / max(0.01 * size, 2 / density) / 32) * 32 + 1]
    threshold = lax.top_k(sample, max(1, math.ceil(density * sample.size)))[0][-1]

    def reaching(threshold: jax.Array) -> jax.Array:
        return jnp.sum(importance >= threshold, dtype=jnp.int32)

    def adapt(carry: tuple) -> tuple:
        i, threshold, count = carry
        threshold = jnp.where(count > 1.3 * k, threshold * 1.3, threshold * 0.8)
        return i + 1, threshold, reaching(threshold)

    def unfit(carry: tuple) -> jax.Array:
        i, _, count = carry
        return (i < 10) & ((count > 1.3 * k) | (count < 0.8 * k))

    _, threshold, _ = lax.while_loop(unfit, adapt, (0, threshold, reaching(threshold)))
    indices = jnp.nonzero(importance >= threshold, size=k, fill_value=size)[0]
    values = residual.at[indices].get(mode="fill", fill_value=0)
    clear = lambda x: x.at[indices].set(0, mode="drop")
    return jnp.zeros_like(gradient).at[indices].set(values, mode="drop"), (clear(velocity), clear(residual))


def contenders(gradient: jax.Array, density: float) -> Iterator[tuple[str, Callable, Any, bool]]:
    """Name, update(gradient, state), initial state, and whether it is slow."""
    size, k = gradient.size, math.ceil(density * gradient.size)
    value = float(np.partition(np.abs(np.asarray(gradient)), size - k)[size - k])  # on the CPU: a GPU would sort
    for name, transform in {
        "threshold": zen.threshold(value),
        "dgc": zen.dgc(density, momentum=MOMENTUM),
        "top_k": zen.top_k(density),
        "random_k": zen.random_k(density),
        "dgc, compact": zen.dgc(density, momentum=MOMENTUM, compact=True),
        "top_k, compact": zen.top_k(density, compact=True),
    }.items():
        rows = gradient.reshape(-1, 1)
        yield name, lambda g, state, t=transform: t.update(g.reshape(-1, 1), state), transform.init(rows), False
    zeros = lambda: jnp.zeros_like(gradient)
    yield "dgc, original", lambda g, state: dgc_update(g, state, density), (zeros(), zeros()), True
    yield "lax.top_k", lambda g, residual: top_k_update(g, residual, k), zeros(), True


def in_training(update: Callable, gradients: list[jax.Array], state: Any) -> Callable[[], Any]:
    """A callable that runs the next of a series of steps, each replacing the state of the last."""
    # The new state comes first, as in a training step: JAX gives donated buffers to the first results that they fit.
    step = jax.jit(lambda gradient, state: update(gradient, state)[::-1], donate_argnums=1)
    made = {"steps": 0, "state": state}

    def run() -> jax.Array:
        gradient = gradients[made["steps"] % len(gradients)]
        made["state"], sent = step(gradient, made["state"])
        made["steps"] += 1
        return sent

    return run


def to_buckets(gradients: list[jax.Array], density: float, n: int, *, compact: bool) -> Callable[[], Any]:
    """A callable that puts what `top_k` sends next into n servers' buckets, with twice the room they need."""
    sparsifier, room = zen.top_k(density, compact=compact), 2 * math.ceil(density * gradients[0].size / n)

    def update(gradient: jax.Array, state: Any) -> tuple[Any, Any]:
        sent, state = sparsifier.update(gradient, state)
        if isinstance(sent, zen.SparseGradient):
            return zen.kernels.partition_coo(sent.indices, sent.values, sent.count, n, room), state
        return zen.kernels.partition(sent, n, room), state

    return in_training(update, gradients, sparsifier.init(jnp.zeros_like(gradients[0])))


def in_milliseconds(took: dict[str, float]) -> dict[str, float]:
    row = {f"{key}_ms": round(took[key] * 1e3, 2) for key in ("floor", "median", "min", "max")}
    return row | {"times_floor": round(took["times_floor"], 2), "of_ceiling": round(1 / took["times_floor"], 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=positive, default=16e6, help="elements of the gradient (default 16e6)")
    parser.add_argument("--density", type=share, nargs="+", default=[0.001, 0.05])
    parser.add_argument("--repeats", type=at_least(1), default=11)
    parser.add_argument("--servers", type=at_least(1), default=8)
    parser.add_argument("--skip-slow", action="store_true", help="leave out the original algorithms")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    size = int(options.elements)
    rng = np.random.default_rng(0)
    gradients = [jnp.asarray(rng.standard_normal(size, np.float32)) for _ in range(2)]
    ceilings = Ceilings()
    results: list[dict[str, Any]] = []
    setting = {"environment": measure.environment(), "elements": size}

    def add(row: dict[str, Any]) -> None:
        results.append(row)
        measure.write_json(options.json, setting | {"ceilings": ceilings.rates(), "results": results})
        print(measure.table([row]), flush=True)

    for density in options.density:
        for name, update, state, slow in contenders(gradients[0], density):
            if slow and options.skip_slow:
                continue
            run = in_training(update, gradients, state)
            repeats = min(options.repeats, 3) if slow else options.repeats
            took = ceilings.against(run, 8 * size, int((4 + 8 * density) * size), repeats)
            row = {"density": density, "sparsifier": name} | in_milliseconds(took)
            if name.startswith("dgc"):
                took = ceilings.against(run, 12 * size, int((8 + 8 * density) * size), repeats)
                row |= {"of 20|G|": round(took["times_floor"], 2), "of_ceiling": round(1 / took["times_floor"], 3)}
            row["sent"] = f"{float(jnp.mean(densified(run()) != 0)):.3%}"
            add(row)
        fused, unfused = (to_buckets(gradients, density, options.servers, compact=way) for way in (True, False))
        took = ceilings.against(fused, 8 * size, int((4 + 8 * density) * size), options.repeats)
        row = {"density": density, "sparsifier": "top_k and partition, fused"} | in_milliseconds(took)
        row["of unfused"] = round(measure.ratio(fused, unfused, options.repeats)["ratio"], 2)
        add(row)
    print(measure.table(results))


if __name__ == "__main__":
    run_main(main)
