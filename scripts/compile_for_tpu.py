"""Compiles every scheme for a TPU v5e slice of four chips, on a machine that has none, and shows a step's schedule.

    pip install 'jax[tpu]' optax
    JAX_PLATFORMS=cpu PYTHONPATH=. python scripts/compile_for_tpu.py

Shows that the pure-JAX lowering and the collectives pass the TPU compiler, and what memory they take; then in which
order a chip runs the matrix products and the synchronisation of a network's layers. Nothing is run.
"""

import re
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import zen_jax as zen

ROWS, COLUMNS, CAPACITY = 20_000, 256, 300
LAYERS, WIDTH = 4, 1024
APART = {"xla_jf_crs_combiner_threshold_in_bytes": "0"}  # all-reduces stay as many as they are


def compiled(fun, mesh: Mesh, *args: jax.ShapeDtypeStruct, options: dict[str, str] | None = None):
    """`fun` of each chip's slice of the arguments, for all of them."""
    split = PartitionSpec("data")
    mapped = jax.shard_map(fun, mesh=mesh, in_specs=split, out_specs=PartitionSpec(), check_vma=False)
    args = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, split)) for x in args]
    return jax.jit(mapped).lower(*args).compile(compiler_options=options)


def gradients_of_layers(weights: jax.Array, batch: jax.Array) -> list[jax.Array]:
    """Of a perceptron's layers, each synchronised by itself."""

    def loss(layers: list[jax.Array]) -> jax.Array:
        x = batch
        for number, layer in enumerate(layers):
            with jax.named_scope(f"layer{number}"):
                x = jnp.tanh(x @ layer)
        return jnp.mean(x**2)

    gradients = jax.grad(loss)(list(weights[0]))
    return [zen.all_reduce(g, "data", scheme="agsparse", capacity=CAPACITY) for g in gradients]


def schedule(hlo: str) -> Iterator[str]:
    """What a compiled step does, in order: matrix products of layers, agreements on sizes, exchanges."""
    entry = hlo[hlo.index("\nENTRY") :]
    for line in entry[: entry.index("\n}")].splitlines():
        if found := re.search(r'op_name="[^"]*?(transpose\()?jvp\(layer(\d+)\)+/dot_general', line):
            yield f"{'backward' if found[1] else 'forward'} {found[2]}"
        elif found := re.search(r" (all-reduce|conditional)(-start)?\(", line):
            yield {"all-reduce": "AGREE", "conditional": "EXCHANGE"}[found[1]]


def main() -> None:
    devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices
    mesh = jax.make_mesh((len(devices),), ("data",), axis_types=(AxisType.Auto,), devices=devices)
    gradients = jax.ShapeDtypeStruct((len(devices), ROWS, COLUMNS), jnp.float32)
    for scheme in zen.schemes.names():
        capacity = None if scheme.startswith("dense") else CAPACITY
        reduce = lambda g, scheme=scheme, capacity=capacity: zen.all_reduce(  # noqa: E731
            g[0], "data", scheme=scheme, capacity=capacity
        )
        start = time.perf_counter()
        memory = compiled(reduce, mesh, gradients).memory_analysis().temp_size_in_bytes / 1e6
        print(f"{scheme:<14} {time.perf_counter() - start:6.1f} s to compile, {memory:7.1f} MB beside the gradient")

    weights = jax.ShapeDtypeStruct((len(devices), LAYERS, WIDTH, WIDTH), jnp.float32)
    batch = jax.ShapeDtypeStruct((len(devices) * 256, WIDTH), jnp.float32)
    for name, options in (("as XLA likes", None), ("all-reduces apart", APART)):
        step = compiled(gradients_of_layers, mesh, weights, batch, options=options)
        print(f"\n{LAYERS} layers, {name}:\n  {', '.join(schedule(step.as_text()))}")


if __name__ == "__main__":
    main()
