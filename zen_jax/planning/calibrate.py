"""`calibrate`: measures the latency and bandwidth of a mesh axis, and the rates of the kernels, on these devices."""

import hashlib
import itertools
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import ArrayLike

from zen_jax import _axis, errors, kernels
from zen_jax._sums import sum_in_order
from zen_jax._typing import Array, AxisName
from zen_jax.planning.cluster import COLLECTIVES, Cluster, KernelCost, Link, collective_steps, even_hosts

SMALL, MEDIUM, LARGE = 4, 1 << 20, 1 << 26  # bytes that a worker sends in one collective; SMALL shows latency alone
# Bytes, and in how many collectives in a row. Rates depend on the size, by a tenth and more: an embedding's gradient
# sends about the first, and a psum whole gradients. After the first in a row workers are late as in a step, from the
# one before; a psum starts and ends at the same time on all.
PLANNED, PLANNED_DENSE = (1 << 22, 3), (1 << 24, 1)
CALL_SECONDS = 0.1, 1.5  # of a large message: fast links get larger ones, slow links smaller ones or fewer in a row
FEW, MANY = 5, 45  # small collectives in one timed call: the difference excludes the time to start a call
LATE = 1024  # half of the workers starts later by a product of matrices of this size: on a CPU some milliseconds
REPEATS = 5
WARM_UP = 4  # rounds of a kernel: the first compiles, and a few more touch fresh memory
OVERLAP = 0.02  # seconds of one kernel's calls in a row, so that it runs beside the other processes', as in a step
ROWS, COLUMNS = 1 << 18, 64  # of the tensor that kernels are timed on: 64 MiB, more than caches and malloc keep
DENSITIES = (0.01, 0.2)  # low enough for messages with room for a quarter of the units

MaxOverProcesses = Callable[[ArrayLike], np.ndarray]


def calibrate(mesh: Mesh, axis_name: AxisName = "data", intra_axis: AxisName | None = None) -> Cluster:
    """Measures how long collectives and kernels take on a mesh axis. Every process of the mesh must call it.

    Takes ten to thirty seconds, a minute on slow links; nothing else should use the links meanwhile. The slowest worker
    counts, and every process gets the same figures.

    Args:
      mesh: the devices.
      axis_name: the mesh axis of the workers, or several as a tuple.
      intra_axis: the axis of a machine's devices, if `axis_name` is the axis of machines, as in `zen_jax.synchronize`.

    Returns:
      A Cluster with one measured Link for each collective that schemes use, and a KernelCost for each kernel.

    Raises:
      ValueError: for an axis that the mesh lacks or that is given twice, or a mesh without devices; inside jit, scan or
        the like.

    >>> import jax
    >>> mesh = jax.make_mesh((1,), ("data",))
    >>> calibrate(mesh).workers
    1
    """
    n, inside = _axis.mesh_size(mesh, axis_name), {}
    if errors.is_traced():
        raise ValueError("zen_jax.calibrate was called inside jit or scan, which runs nothing yet. Call it outside.")
    if not isinstance(mesh, Mesh):
        raise ValueError("mesh is an AbstractMesh, without devices to measure. Use jax.make_mesh(sizes, names).")
    max_over_processes = _make_max_over_processes(mesh)
    _axis.combined_axes(axis_name, intra_axis)
    hosts, devices = even_hosts(n, count_hosts(mesh))
    if intra_axis is not None:
        hosts, devices = n, _axis.mesh_size(mesh, intra_axis, "intra_axis")
        inside = _measure_links(mesh, intra_axis, max_over_processes, ("psum",))
    links = _measure_links(mesh, axis_name, max_over_processes)
    gbps = min((link.gbps for link in links.values()), default=Cluster.inter_gbps)
    latency = max((link.latency_us for link in links.values()), default=Cluster.latency_us)
    return Cluster(
        hosts,
        devices,
        inter_gbps=gbps,
        intra_gbps=inside["psum"].gbps if inside else None,
        latency_us=latency,
        intra_latency_us=inside["psum"].latency_us if inside else None,
        collectives=links,
        kernels=_measure_kernels(mesh, axis_name, max_over_processes),
    )


def count_hosts(mesh: Mesh) -> int:
    """How many machines, told apart by hostname, the mesh's processes run on. Every process of the mesh must call it.

    >>> count_hosts(jax.make_mesh((1,), ("data",)))
    1
    """
    processes = sorted({device.process_index for device in mesh.devices.flat})
    names = np.zeros((len(processes), 8))
    digest = hashlib.blake2b(socket.gethostname().encode(), digest_size=8).digest()
    names[processes.index(jax.process_index())] = np.frombuffer(digest, np.uint8)
    return len(np.unique(_make_max_over_processes(mesh)(names), axis=0))


def _measure_links(
    mesh: Mesh, axis_name: AxisName, max_over_processes: MaxOverProcesses, collectives: Sequence[str] = COLLECTIVES
) -> dict[str, Link]:
    """Latency from the smallest messages, the rate from large ones: bursts, buffers and caches flatter any others.

    The large ones are timed in turn, so that a moment in which everything is slow makes no collective look slower. An
    all-to-all costs what it and the gather that follows it take longer than a gather alone.
    """
    n = _axis.mesh_size(mesh, axis_name)
    if n == 1:
        return {}

    def timed(*calls: Callable[[], Any]) -> list[float]:
        return max_over_processes(_seconds(calls, max_over_processes, warm_up=1)).tolist()

    prepares = {name: _collective(name, mesh, axis_name) for name in collectives}
    sizes = {}  # in bytes, and how many in a row
    for name, prepare in prepares.items():
        (medium,) = timed(prepare(MEDIUM))
        least, most = (MEDIUM / medium * limit for limit in CALL_SECONDS)
        planned, in_a_row = PLANNED_DENSE if name == "psum" else PLANNED
        sizes[name] = int(np.clip(planned, min(least, LARGE), max(most, MEDIUM))), in_a_row
    if "all_to_all" in sizes:
        sizes["all_gather"] = sizes["all_to_all"]  # what is subtracted must be what is behind it
    rows = timed(*(prepares[name](nbytes / in_a_row, in_a_row) for name, (nbytes, in_a_row) in sizes.items()))
    costs = {}  # seconds before the first byte, and for each
    for (name, prepare), row in zip(prepares.items(), rows, strict=True):
        nbytes, in_a_row = sizes[name]
        one, few = timed(prepare(SMALL), prepare(SMALL, FEW))
        times = int(np.clip(FEW * CALL_SECONDS[1] / few, 2 * FEW, MANY))
        (many,) = timed(prepare(SMALL, times))
        latency = max(0.0, (many - few) / (times - FEW))
        empty = one + (in_a_row - 1) * latency
        costs[name] = np.array([latency, max(row - empty, row / 2) / nbytes])
    if "all_to_all" in costs:
        costs["all_to_all"] = np.maximum(costs["all_to_all"] - costs["all_gather"], costs["all_to_all"] / 4)
    return {
        name: Link(latency * 1e6 / collective_steps(name, n), 8e-9 / each) for name, (latency, each) in costs.items()
    }


def _collective(name: str, mesh: Mesh, axis_name: AxisName) -> Callable[..., Callable[[], Any]]:
    """Returns a function that prepares a call: a collective, or several in a row, of `nbytes` sent by each worker.

    A gather of as many bytes follows each all-to-all, as a pull follows a push.
    """
    n = _axis.mesh_size(mesh, axis_name)
    rows = n if name == "all_to_all" else 1
    sent_for_each_byte_held = {
        "all_to_all": (n - 1) / n,
        "all_gather": n - 1,
        "psum": 2 * (n - 1) / n,
        "permute": 1,
        "send": 1,
    }
    # Pairs, as in recursive doubling: where connections are half duplex, a ring would be twice as fast. Partners are as
    # far apart as can be, on two machines if there are several.
    half = n // 2
    there = [(i, i + half) for i in range(half)]
    back = [(target, source) for source, target in there]
    once: dict[str, Callable[[Array], Array]] = {
        "all_to_all": lambda x: _axis.all_gather(_axis.all_to_all(x, axis_name)[0], axis_name),
        "all_gather": lambda x: _axis.all_gather(x, axis_name)[0],
        "psum": lambda x: lax.psum(x, axis_name) / n,
        "permute": lambda x: _axis.permute(x, axis_name, there + back),
        "send": lambda x: _axis.permute(x, axis_name, there),
    }

    def worker(x: Array, times: Array) -> Array:
        # Schemes agree on the room before they send; then some workers take a little longer to pack their messages.
        agreed = jnp.min(lax.all_gather(times, axis_name))
        late = jnp.where(lax.axis_index(axis_name) < half, 0, jnp.minimum(agreed, 1))  # known only when all have agreed
        product = lax.fori_loop(0, late, lambda _, m: m @ m, jnp.full((LATE, LATE), 1 / LATE, jnp.float32))
        start = (product[0, 0] > 1).astype(jnp.int32)  # 0, but known only then
        return lax.fori_loop(start, agreed, lambda _, x: once[name](x), x)

    run = _on_workers(worker, mesh, axis_name)

    def prepare(nbytes: float, times: int = 1) -> Callable[[], Any]:
        columns = max(1, round(nbytes / sent_for_each_byte_held[name] / (4 * rows)))
        held = _on_every_device(np.ones((rows, columns), np.float32), mesh)
        return lambda: run(held, np.int32(times))

    return prepare


def _measure_kernels(mesh: Mesh, axis_name: AxisName, max_over_processes: MaxOverProcesses) -> dict[str, KernelCost]:
    n = _axis.mesh_size(mesh, axis_name)
    size = -(-ROWS // n)
    room = -(-size // 4)
    runs: dict[str, Callable[..., Any]] = {
        "partition": lambda x: kernels.partition(x, n, room),
        "aggregate": lambda *inbox: kernels.aggregate(*inbox, n * size),  # as workers add up all that they pull
        "encode": lambda x: kernels.hash_bitmap_encode(x, n * room),
        "aggregate_encode": lambda *inbox: kernels.aggregate_encode(*inbox, size, size),
        "decode": lambda words, units: kernels.hash_bitmap_decode(words, units, n * size),
        "sum": lambda x: sum_in_order(x.reshape(n, -1), divisor=1),
        "copy": lambda half: jnp.concatenate([half, half]),
    }
    if n > 1:  # a worker alone has no others
        runs["for_others"] = lambda *inbox: kernels.aggregate_for_others(*inbox, size, size)
    timed = {name: _on_workers(run, mesh, axis_name) for name, run in runs.items()}
    moved, seconds = [], []
    for density in DENSITIES:
        charged = _kernel_operands(n, size, room, density)
        for name in runs:
            operands, *nbytes = charged[name]
            operands = [_on_every_device(np.asarray(operand), mesh) for operand in operands]
            seconds += _seconds([partial(timed[name], *operands)], max_over_processes, WARM_UP, OVERLAP)
            moved.append(nbytes)
    shape = (len(DENSITIES), len(runs))
    agreed = max_over_processes(np.reshape(seconds, shape))
    bytes_moved = np.reshape(moved, (*shape, 2))
    # Linear algebra rounds differently on other CPUs, but all processes must make the same plan.
    costs = max_over_processes([_fit(bytes_moved[:, i], agreed[:, i]) for i in range(len(runs))])
    return {name: KernelCost(*cost) for name, cost in zip(runs, costs.tolist(), strict=True)}


def _kernel_operands(n: int, size: int, room: int, density: float) -> dict[str, tuple[tuple[Array, ...], float, float]]:
    """For each kernel, its operands and the bytes of the tensor that it is charged for (see `costs.Work`)."""
    touched = np.random.default_rng(0).random(size * n) < density
    x = jnp.broadcast_to(jnp.asarray(touched, jnp.float32)[:, None], (size * n, COLUMNS))
    whole, held = float(x.nbytes), float(touched.sum() * COLUMNS * 4)
    words, units, _ = jax.vmap(lambda shard: kernels.hash_bitmap_encode(shard, room))(x.reshape(n, size, -1))
    inbox = kernels.partition(x, n, room)
    senders = np.zeros(size, int)
    for positions, count in zip(*map(np.asarray, inbox[::2]), strict=True):
        senders[positions[:count]] += 1
    lacking = n * np.count_nonzero(senders) - np.count_nonzero(senders == 1)  # by any worker
    return {
        "partition": ((x,), whole, held),
        "aggregate": (inbox, whole, held),
        "encode": ((x,), whole, held),
        "aggregate_encode": (inbox, whole / n, held),
        "for_others": (inbox, whole / n, float(lacking * COLUMNS * 4)),
        "decode": ((words, units), whole, held),
        "sum": ((x,), whole, 0.0),
        "copy": ((x[: size * n // 2],), whole, 0.0),
    }


def _on_workers(run: Callable[..., Any], mesh: Mesh, axis_name: AxisName) -> Callable[..., Any]:
    """`run` on every device at once, as in a training step, on operands that every device has."""
    mapped = jax.shard_map(
        lambda *operands: jax.tree.map(lambda x: x[None], run(*operands)),
        mesh=mesh,
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(axis_name),
        check_vma=False,
    )
    return jax.jit(mapped)


def _on_every_device(x: np.ndarray, mesh: Mesh) -> Array:
    """x where a step would find it: copying it to the devices is not part of a kernel or a collective."""
    return jax.make_array_from_callback(x.shape, NamedSharding(mesh, PartitionSpec()), lambda index: x[index])


def _seconds(
    runs: Sequence[Callable[[], Any]], max_over_processes: MaxOverProcesses, warm_up: int, at_least: float = 0.0
) -> list[float]:
    """Seconds that a call of each takes, the median of a few rounds after warm-up rounds that do not count.

    A round calls one after the other, each again and again until `at_least` so many seconds have passed.
    """
    rounds = []
    for _ in range(warm_up + REPEATS):
        times = []
        for run in runs:
            max_over_processes(0.0)  # all processes start together: waiting for a late one is not part of a collective
            start, calls, passed = time.perf_counter(), 0, 0.0
            while not calls or passed < at_least:
                jax.block_until_ready(run())
                calls, passed = calls + 1, time.perf_counter() - start
            times.append(passed / calls)
        rounds.append(times)
    return np.median(rounds[warm_up:], axis=0).tolist()


def _make_max_over_processes(mesh: Mesh) -> MaxOverProcesses:
    """Returns a function that gives the largest of all processes' measurements, the same float32 numbers in each."""
    every_axis = tuple(mesh.axis_names)
    spread = NamedSharding(mesh, PartitionSpec(every_axis))
    agree = jax.jit(
        jax.shard_map(
            lambda x: lax.pmax(x[0], every_axis),
            mesh=mesh,
            in_specs=PartitionSpec(every_axis),
            out_specs=PartitionSpec(),
        )
    )

    def max_over_processes(measured: ArrayLike) -> np.ndarray:
        mine = np.asarray(measured, np.float32)[None]
        placed = jax.make_array_from_callback((mesh.size, *mine.shape[1:]), spread, lambda _: mine)
        return np.asarray(agree(placed).addressable_data(0), np.float64)

    return max_over_processes


def _fit(moved: np.ndarray, seconds: np.ndarray) -> tuple[float, ...]:
    """Costs >= 0 that fit moved @ costs to seconds, by relative error: sparse tensors weigh as much as dense ones."""
    scaled = moved / seconds[:, None]
    charged = np.flatnonzero(scaled.any(axis=0))
    best, least = np.zeros(scaled.shape[1]), np.inf
    for size in range(1, charged.size + 1):
        for chosen in map(list, itertools.combinations(charged, size)):
            costs = np.zeros(scaled.shape[1])
            costs[chosen] = np.linalg.lstsq(scaled[:, chosen], np.ones(len(seconds)), rcond=None)[0]
            error = np.sum((scaled @ costs - 1) ** 2)
            if (costs >= 0).all() and error < least:
                best, least = costs, error
    return tuple(map(float, best))
