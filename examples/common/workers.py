"""Where the workers live: all in one process (emulated), or one on every device of all processes.

A worker's program is an ordinary function that calls collectives over `AXIS`. Both classes turn it into a function
for all workers; an argument or result, or a part of it, is `EACH` (every worker has its own, stacked in front) or
`SAME`.
"""

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

import zen_jax as zen

AXIS = "data"
EACH, SAME = 0, None


class Emulated:
    """`count` workers on one device: vmap with a named axis runs the same collectives without a network."""

    def __init__(self, count: int):
        self.count = count
        self.local: Sequence[int] = range(count)

    def __str__(self) -> str:
        return f"{self.count} emulated workers in one process"

    def cluster(self) -> zen.Cluster:
        """The links that a plan is made for: nothing is measured, as if each worker were a host of its own."""
        return zen.Cluster(self.count)

    def run(self, fun, inputs: tuple, outputs: tuple):
        return jax.vmap(fun, in_axes=inputs, out_axes=outputs, axis_name=AXIS)

    def share(self, tree):
        """The same values for every worker, in arrays of their own."""
        return jax.tree.map(jax.numpy.array, tree)

    def spread(self, tree):
        """Arrays [len(local), ...], a row for each worker of this process, as arrays [count, ...]."""
        return jax.tree.map(jax.numpy.array, tree)

    def sharding(self, kind: int | None) -> Sharding:
        """Where arrays of a kind lie."""
        return SingleDeviceSharding(jax.devices()[0])


class Devices:
    """One worker on each device of every process."""

    def __init__(self):
        devices = jax.devices()
        self.mesh = Mesh(np.array(devices), (AXIS,))
        self.count = self.mesh.size
        self.local: Sequence[int] = [i for i, d in enumerate(devices) if d.process_index == jax.process_index()]

    def __str__(self) -> str:
        return f"{self.count} workers on {jax.process_count()} processes"

    def cluster(self) -> zen.Cluster:
        """The links between the devices, measured."""
        return zen.calibrate(self.mesh, AXIS)

    def run(self, fun, inputs: tuple, outputs: tuple):
        def worker(*args):
            results = fun(*_map_each(lambda x: x[0], inputs, args))
            return _map_each(lambda x: x[None], outputs, results)

        def specs(kinds: tuple) -> tuple:
            return jax.tree.map(lambda kind: self.sharding(kind).spec, kinds, is_leaf=_is_kind)

        # With check_vma, jax.grad would sum the gradients over the workers before zen.synchronize sees them.
        return jax.shard_map(worker, mesh=self.mesh, in_specs=specs(inputs), out_specs=specs(outputs), check_vma=False)

    def share(self, tree):
        """The same values for every worker; every process passes them."""

        def place(x):
            x = np.asarray(x)
            return jax.make_array_from_callback(x.shape, self.sharding(SAME), lambda index: x[index])

        return jax.tree.map(place, tree)

    def spread(self, tree):
        """Arrays [len(local), ...], a row for each worker of this process, as arrays [count, ...]."""

        def place(x):
            shape = (self.count, *np.shape(x)[1:])
            return jax.make_array_from_process_local_data(self.sharding(EACH), np.asarray(x), shape)

        return jax.tree.map(place, tree)

    def sharding(self, kind: int | None) -> NamedSharding:
        """Where arrays of a kind lie."""
        return NamedSharding(self.mesh, PartitionSpec(AXIS) if kind is EACH else PartitionSpec())


def _map_each(fun, kinds, tree):
    """fun of every array whose kind is EACH."""

    def map_part(kind, part):
        return jax.tree.map(fun, part) if kind is EACH else part

    return jax.tree.map(map_part, kinds, tree, is_leaf=_is_kind)


def _is_kind(x) -> bool:
    return x in (EACH, SAME)


Workers = Emulated | Devices


def find_workers(count: int | None, default: int) -> Workers:
    """Every device where there are several, else `count` emulated workers."""
    devices = jax.device_count()
    if devices > 1 and count in (None, devices):
        return Devices()
    if jax.process_count() > 1:
        raise ValueError(
            f"--workers {count}: {jax.process_count()} processes have {devices} devices, one worker on each"
        )
    return Emulated(default if count is None else count)
