"""Compiles every scheme for TPUs or NVIDIA GPUs on a machine that has none, and shows a step's schedule.

    pip install 'jax[tpu]' optax
    JAX_PLATFORMS=cpu PYTHONPATH=. python scripts/compile_ahead.py tpu

    pip install --no-deps jax-cuda13-plugin jax-cuda13-pjrt nvidia-cuda-nvcc nvidia-nvvm  # the first two as new as jax
    JAX_PLATFORMS=cpu python scripts/compile_ahead.py gpu                                 # zen_jax built with CUDA

Shows that what this library lowers to, custom calls and collectives, passes XLA's compiler for four chips of a TPU v5e
or eight H200, and how much memory a step will take; then the order in which a chip runs the matrix products and the
synchronisation of a network's layers. Nothing is run.
"""

import argparse
import itertools
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import zen_jax as zen

ROWS, COLUMNS, CAPACITY = 20_000, 256, 300
LAYERS, WIDTH = 4, 1024
H200 = """
platform_name: "CUDA"
device_description_str: "NVIDIA H200"
dnn_version_info { major: 9 }
runtime_version { major: 13 }
gpu_device_info {
  cuda_compute_capability { major: 9 }
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  memory_bandwidth: 4800000000000
  device_memory_size: 150000000000
  l2_cache_size: 52428800
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  registers_per_block_limit: 65536
  registers_per_core_limit: 65536
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  threads_per_warp: 32
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}
"""
TOPOLOGIES = {
    "tpu": {"platform": "tpu", "topology_name": "v5e:2x2"},
    "gpu": {"platform": "cuda", "topology": "1x1x8", "target_config": H200},
}
# Keeps the collectives that agree on sizes apart, one for each leaf.
APART = {
    "tpu": {"xla_jf_crs_combiner_threshold_in_bytes": "0"},
    "gpu": {"xla_gpu_all_gather_combine_threshold_bytes": "0"},
}


def compiled(fun, mesh: Mesh, *args: jax.ShapeDtypeStruct, options: dict[str, str] | None = None):
    """Compiles `fun` of each chip's slice of the arguments, for all chips."""
    split = PartitionSpec("data")
    mapped = jax.shard_map(fun, mesh=mesh, in_specs=split, out_specs=PartitionSpec(), check_vma=False)
    args = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, split)) for x in args]
    return jax.jit(mapped).lower(*args).compile(compiler_options=options)


def gradients_of_layers(weights: jax.Array, batch: jax.Array) -> list[jax.Array]:
    """The gradients of a perceptron's layers, each synchronised separately."""

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
        if found := re.search(
            r' fusion\(.*op_name="[^"]*?(transpose\()?jvp\(layer(\d+)\)+/(dot_general|transpose)', line
        ):
            yield f"{'backward' if found[1] else 'forward'} {found[2]}"
        elif found := re.search(r" (all-reduce|all-gather|conditional)(-start)?\(", line):
            yield "EXCHANGE" if found[1] == "conditional" else "AGREE"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("platform", choices=TOPOLOGIES)
    parser.add_argument("--schemes", nargs="+", choices=zen.schemes.names(), default=zen.schemes.names())
    options = parser.parse_args()
    platform = options.platform
    devices = topologies.get_topology_desc(**TOPOLOGIES[platform]).devices
    mesh = jax.make_mesh((len(devices),), ("data",), axis_types=(AxisType.Auto,), devices=devices)
    print(f"jax {jax.__version__}, {len(devices)} x {devices[0].device_kind}, a gradient of {ROWS} x {COLUMNS} float32")
    gradients = jax.ShapeDtypeStruct((len(devices), ROWS, COLUMNS), jnp.float32)
    without_kernels = []
    for scheme in options.schemes:
        capacity = None if scheme.startswith("dense") else CAPACITY
        reduce = lambda g, scheme=scheme, capacity=capacity: zen.all_reduce(
            g[0], "data", scheme=scheme, capacity=capacity
        )
        start = time.perf_counter()
        program = compiled(reduce, mesh, gradients)
        seconds = time.perf_counter() - start
        memory = program.memory_analysis().temp_size_in_bytes / 1e6
        kernels = Counter(re.findall(r'custom_call_target="(zen_\w+)"', program.as_text()))
        if capacity and not kernels:
            without_kernels.append(scheme)
        print(
            f"{scheme:<14} {seconds:6.1f} s to compile, {memory:7.1f} MB besides the gradient",
            *(f"{name} x {count}" for name, count in sorted(kernels.items())),
            sep=", ",
        )

    weights = jax.ShapeDtypeStruct((len(devices), LAYERS, WIDTH, WIDTH), jnp.float32)
    batch = jax.ShapeDtypeStruct((len(devices) * 256, WIDTH), jnp.float32)
    for name, flags in (("XLA's default", None), ("agreements kept apart", APART[platform])):
        step = compiled(gradients_of_layers, mesh, weights, batch, options=flags)
        done = (what for what, _ in itertools.groupby(schedule(step.as_text())))
        print(f"\n{LAYERS} layers, {name}:\n  {', '.join(done)}")
    if platform == "gpu" and without_kernels:
        sys.exit(f"no custom calls in {', '.join(without_kernels)}: build zen_jax with ZEN_JAX_CUDA=1")


if __name__ == "__main__":
    main()
