"""Where the workers live: all in one process (emulated), or one on every device of all processes.

A worker's program is an ordinary function that calls collectives over `AXIS`. Both classes turn it into a function
for all workers; an argument or result is `EACH` (every worker has its own, stacked in front) or `SAME`.
"""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "data"
EACH, SAME = 0, None


class Emulated:
    """`count` workers on one device: vmap with a named axis runs the same collectives without a network."""

    def __init__(self, count: int):
        self.count = count

    def __str__(self) -> str:
        return f"{self.count} emulated workers in one process"

    def run(self, fun, inputs: tuple, outputs: tuple):
        return jax.vmap(fun, in_axes=inputs, out_axes=outputs, axis_name=AXIS)

    def share(self, tree):
        return tree

    def spread(self, tree):
        return tree


class Devices:
    """One worker on each device of every process."""

    def __init__(self):
        self.mesh = Mesh(np.array(jax.devices()), (AXIS,))
        self.count = self.mesh.size

    def __str__(self) -> str:
        return f"{self.count} workers on {jax.process_count()} processes"

    def run(self, fun, inputs: tuple, outputs: tuple):
        def worker(*args):
            args = [
                jax.tree.map(lambda x: x[0], arg) if kind is EACH else arg
                for arg, kind in zip(args, inputs, strict=True)
            ]
            results = fun(*args)
            return tuple(
                jax.tree.map(lambda x: x[None], result) if kind is EACH else result
                for result, kind in zip(results, outputs, strict=True)
            )

        def specs(kinds: tuple) -> tuple:
            return tuple(PartitionSpec(AXIS) if kind is EACH else PartitionSpec() for kind in kinds)

        # With check_vma, jax.grad would sum the gradients over the workers before zen.synchronize sees them.
        return jax.shard_map(worker, mesh=self.mesh, in_specs=specs(inputs), out_specs=specs(outputs), check_vma=False)

    def share(self, tree):
        """The same values on every device."""
        return self._place(tree, PartitionSpec())

    def spread(self, tree):
        """Arrays [count, ...], one row for each worker; every process passes them whole."""
        return self._place(tree, PartitionSpec(AXIS))

    def _place(self, tree, spec: PartitionSpec):
        sharding = NamedSharding(self.mesh, spec)

        def place(x):
            x = np.asarray(x)
            return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

        return jax.tree.map(place, tree)


def find_workers(count: int | None, default: int) -> Emulated | Devices:
    """Every device where there are several, else `count` emulated workers."""
    devices = jax.device_count()
    if devices > 1 and count in (None, devices):
        return Devices()
    if jax.process_count() > 1:
        raise ValueError(
            f"--workers {count}: {jax.process_count()} processes have {devices} devices, one worker on each"
        )
    return Emulated(default if count is None else count)
