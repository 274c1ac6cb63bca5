"""Where the workers live: all in one process (emulated), or one on every device of all processes.

A worker's program is an ordinary function that calls collectives over `axes`. Both classes turn it into a function
for all workers; an argument or result, or a part of it, is `PER_WORKER` (every worker has its own, stacked along the
first axis) or `REPLICATED`.
"""

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

import zen_jax as zen

FLAT = ("data",)
LEVELS = ("machines", "devices")
PER_WORKER, REPLICATED = 0, None


class Emulated:
    """`count` workers on one device: vmap with a named axis runs the same collectives without a network."""

    def __init__(self, count: int):
        self.count, self.axes = count, FLAT
        self.local: Sequence[int] = range(count)

    def __str__(self) -> str:
        return f"{self.count} emulated workers in one process"

    def cluster(self) -> zen.Cluster:
        """The links that a plan assumes: nothing is measured, and each worker counts as a host of its own."""
        return zen.Cluster(self.count)

    def run(self, fun, inputs: tuple, outputs: tuple):
        return jax.vmap(fun, in_axes=inputs, out_axes=outputs, axis_name=self.axes[0])

    def replicate(self, tree):
        """The same values for every worker, in new arrays."""
        return jax.tree.map(jax.numpy.array, tree)

    def shard(self, tree):
        """Arrays [len(local), ...], a row for each worker of this process, as arrays [count, ...]."""
        return jax.tree.map(jax.numpy.array, tree)

    def sharding(self, kind: int | None) -> Sharding:
        """The sharding of arrays of a kind."""
        return SingleDeviceSharding(jax.devices()[0])


class Devices:
    """One worker on each device of every process. Several machines form one axis of the mesh, their devices another."""

    def __init__(self, machines: int = 1):
        devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
        self.count, self.axes = len(devices), FLAT if machines == 1 else LEVELS
        self.mesh = Mesh(np.reshape(devices, (machines, -1) if machines > 1 else (-1,)), self.axes)
        self.local: Sequence[int] = [i for i, d in enumerate(devices) if d.process_index == jax.process_index()]

    def __str__(self) -> str:
        machines = f", {self.mesh.shape['machines']} machines" if self.axes == LEVELS else ""
        return f"{self.count} workers on {jax.process_count()} processes{machines}"

    def cluster(self) -> zen.Cluster:
        """The links between the devices, measured."""
        return zen.calibrate(self.mesh, *self.axes)

    def run(self, fun, inputs: tuple, outputs: tuple):
        def worker(*args):
            results = fun(*_map_each(lambda x: x[0], inputs, args))
            return _map_each(lambda x: x[None], outputs, results)

        def specs(kinds: tuple) -> tuple:
            return jax.tree.map(lambda kind: self.sharding(kind).spec, kinds, is_leaf=_is_kind)

        # With check_vma, jax.grad would sum the gradients over the workers before zen.synchronize sees them.
        return jax.shard_map(worker, mesh=self.mesh, in_specs=specs(inputs), out_specs=specs(outputs), check_vma=False)

    def replicate(self, tree):
        """The same values for every worker; every process passes them."""

        def place(x):
            x = np.asarray(x)
            return jax.make_array_from_callback(x.shape, self.sharding(REPLICATED), lambda index: x[index])

        return jax.tree.map(place, tree)

    def shard(self, tree):
        """Arrays [len(local), ...], a row for each worker of this process, as arrays [count, ...]."""

        def place(x):
            shape = (self.count, *np.shape(x)[1:])
            return jax.make_array_from_process_local_data(self.sharding(PER_WORKER), np.asarray(x), shape)

        return jax.tree.map(place, tree)

    def sharding(self, kind: int | None) -> NamedSharding:
        """The sharding of arrays of a kind."""
        return NamedSharding(self.mesh, PartitionSpec(self.axes) if kind is PER_WORKER else PartitionSpec())


def _map_each(fun, kinds, tree):
    """Applies fun to every array whose kind is PER_WORKER."""

    def map_part(kind, part):
        return jax.tree.map(fun, part) if kind is PER_WORKER else part

    return jax.tree.map(map_part, kinds, tree, is_leaf=_is_kind)


def _is_kind(x) -> bool:
    return x in (PER_WORKER, REPLICATED)


Workers = Emulated | Devices


def find_workers(count: int | None, default: int, machines: int = 1) -> Workers:
    """A worker on every device if there are several, evenly on `machines` machines, else `count` emulated workers."""
    devices = jax.device_count()
    if devices > 1 and count in (None, devices):
        if devices % machines:
            raise ValueError(f"--machines {machines} must divide the number of devices, {devices}")
        return Devices(machines)
    if jax.process_count() > 1:
        raise ValueError(
            f"--workers {count} must be {devices}, one on each device of the {jax.process_count()} processes"
        )
    if machines > 1:
        raise ValueError(f"--machines {machines}: workers that are emulated on one device have no machines")
    return Emulated(default if count is None else count)
