"""Compiles every scheme for a TPU v5e slice of four chips, on a machine that has none.

    pip install 'jax[tpu]' optax
    JAX_PLATFORMS=cpu PYTHONPATH=. python scripts/compile_for_tpu.py

Shows that the pure-JAX lowering and the collectives pass the TPU compiler, and what memory they take; nothing is run.
"""

import time

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import zen_jax as zen

ROWS, COLUMNS, CAPACITY = 20_000, 256, 300


def main() -> None:
    devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices
    mesh = jax.make_mesh((len(devices),), ("data",), axis_types=(AxisType.Auto,), devices=devices)
    per_worker = PartitionSpec("data")
    shape = (len(devices), ROWS, COLUMNS)
    gradients = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, per_worker))
    for scheme in zen.schemes.names():
        capacity = None if scheme.startswith("dense") else CAPACITY
        reduce = lambda g, scheme=scheme, capacity=capacity: zen.all_reduce(  # noqa: E731
            g[0], "data", scheme=scheme, capacity=capacity
        )
        step = jax.shard_map(reduce, mesh=mesh, in_specs=per_worker, out_specs=PartitionSpec(), check_vma=False)
        start = time.perf_counter()
        compiled = jax.jit(step).lower(gradients).compile()
        memory = compiled.memory_analysis().temp_size_in_bytes / 1e6
        print(f"{scheme:<14} {time.perf_counter() - start:6.1f} s to compile, {memory:7.1f} MB beside the gradient")


if __name__ == "__main__":
    main()
