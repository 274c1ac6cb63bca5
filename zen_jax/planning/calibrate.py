"""`calibrate`: the latency and bandwidth of a mesh axis, and the rates of the kernels, as they are on these devices."""

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from zen_jax import errors, kernels
from zen_jax._typing import Array
from zen_jax.planning.cluster import COLLECTIVES, Cluster, Link, Rate

SMALL, MEDIUM, LARGE = 1 << 12, 1 << 20, 1 << 26  # bytes that a worker sends in one collective
LARGE_SECONDS = 0.4  # that a collective of large messages may take: slow links get smaller ones
IN_A_ROW = (1, 5)  # small collectives in one timed call, so that starting the call is told from them
REPEATS = 5
ROWS, COLUMNS = 1 << 18, 64  # of the tensor that kernels are timed on: 64 MiB, beyond what caches and malloc keep
DENSITIES = (0.01, 0.2)


def calibrate(mesh: Mesh, axis_name: str = "data") -> Cluster:
    """Measures what collectives and kernels take on a mesh axis. Every process of the mesh must call it.

    Takes some seconds, longer the slower the links; nothing else should use them meanwhile. The slowest worker counts,
    and every process gets the same figures.

    Args:
      mesh: the devices.
      axis_name: the mesh axis that workers lie on.

    Returns:
      A Cluster with one measured Link for each collective that schemes use, and a Rate for each kernel.

    Raises:
      ValueError: for an axis that the mesh lacks.

    >>> import jax
    >>> mesh = jax.make_mesh((1,), ("data",))
    >>> calibrate(mesh).workers
    1
    """
    errors.check_choice("axis_name", axis_name, mesh.axis_names)
    n = mesh.shape[axis_name]
    links = _measure_links(mesh, axis_name, n) if n > 1 else {}
    processes = len({device.process_index for device in mesh.devices.flat})
    hosts = processes if n % processes == 0 else n
    slowest = min((link.gbps for link in links.values()), default=Cluster.inter_gbps)
    latency = max((link.latency_us for link in links.values()), default=Cluster.latency_us)
    return Cluster(
        hosts,
        n // hosts,
        inter_gbps=slowest,
        latency_us=latency,
        collectives=links,
        kernels=_measure_kernels(mesh, axis_name, n),
    )


def _measure_links(mesh: Mesh, axis_name: str, n: int) -> dict[str, Link]:
    links = {}
    for name in COLLECTIVES:
        run = _collective(name, mesh, axis_name, n)

        def timed(nbytes: int, times: int, run: Callable[..., Any] = run) -> tuple[tuple[int, ...], float]:
            seconds = _slowest(np.asarray(_seconds(lambda: run(nbytes, times))), mesh)
            return (1, times, times * nbytes), float(seconds)

        measured = [timed(SMALL, times) for times in IN_A_ROW] + [timed(MEDIUM, 1)]
        _, seconds = measured[-1]
        # Two sizes far apart tell the rate that large messages get: bursts, buffers and caches flatter small ones.
        measured.append(timed(int(min(LARGE, max(2, LARGE_SECONDS / seconds) * MEDIUM)), 1))
        calls, seconds = map(np.asarray, zip(*measured, strict=True))
        _, latency, per_byte = _fit(calls.astype(float), seconds)
        one = Cluster(1, latency_us=1.0).seconds(name, 0, n) * 1e6  # steps of the collective
        links[name] = Link(latency * 1e6 / one, 8e-9 / max(per_byte, 1e-15))
    return links


def _collective(name: str, mesh: Mesh, axis_name: str, n: int) -> Callable[[int, int], Array]:
    """Runs a collective in which a worker sends about so many bytes, some times in a row."""
    sent_for_each_byte_held = {
        "all_to_all": (n - 1) / n,
        "all_gather": n - 1,
        "psum": 2 * (n - 1) / n,
        "permute": 1,
    }
    ring = [(i, (i + 1) % n) for i in range(n)]
    once: dict[str, Callable[[Array], Array]] = {
        "all_to_all": lambda x: lax.all_to_all(x, axis_name, 0, 0),
        "all_gather": lambda x: lax.all_gather(x, axis_name)[0],
        "psum": lambda x: lax.psum(x, axis_name) / n,
        "permute": lambda x: lax.ppermute(x, axis_name, ring),
    }

    def worker(x: Array, times: Array) -> Array:
        return lax.fori_loop(0, times, lambda _, x: once[name](x), x)[None]

    run = _on_workers(worker, mesh, axis_name)

    def of_bytes(nbytes: int, times: int) -> Array:
        rows = max(1, round(nbytes / sent_for_each_byte_held[name] / (4 * n)))
        return run(jnp.ones((n, rows), jnp.float32), np.int32(times))

    return of_bytes


def _measure_kernels(mesh: Mesh, axis_name: str, n: int) -> dict[str, Rate]:
    dense, nonzero, seconds = [], [], []
    for density in DENSITIES:
        for run, operands, dense_bytes, nonzero_bytes in _kernel_runs(n, density).values():
            timed = _on_workers(lambda *args, run=run: jax.tree.map(lambda x: x[None], run(*args)), mesh, axis_name)
            seconds.append(_seconds(lambda timed=timed, operands=operands: timed(*operands)))
            dense.append(dense_bytes)
            nonzero.append(nonzero_bytes)
    names = tuple(_kernel_runs(n, DENSITIES[0]))
    shape = (len(DENSITIES), len(names))
    agreed = _slowest(np.reshape(seconds, shape), mesh)
    moved = np.stack([np.reshape(dense, shape), np.reshape(nonzero, shape)], axis=-1)
    return {name: Rate(*_fit(moved[:, i], agreed[:, i])) for i, name in enumerate(names)}


def _kernel_runs(n: int, density: float) -> dict[str, tuple[Callable[..., Any], tuple, float, float]]:
    """For each kernel: a call, its operands, and the bytes of the tensor that it is charged for (see `costs.Work`)."""
    size = -(-ROWS // n)
    touched = np.random.default_rng(0).random(size * n) < density
    x = jnp.broadcast_to(jnp.asarray(touched, jnp.float32)[:, None], (size * n, COLUMNS))
    count, whole = int(touched.sum()), x.nbytes
    held = count * COLUMNS * 4
    room = max(1, int(1.5 * count / n) + 8)
    positions, values, counts = kernels.partition(x, n, room)
    words, units, _ = jax.vmap(lambda shard: kernels.hash_bitmap_encode(shard, room))(x.reshape(n, size, -1))
    return {
        "partition": (lambda x: kernels.partition(x, n, room), (x,), whole, held),
        "aggregate": (lambda *inbox: kernels.aggregate(*inbox, size), (positions, values, counts), whole / n, held),
        "encode": (lambda x: kernels.hash_bitmap_encode(x, n * room), (x,), whole, held),
        "decode": (lambda w, v: kernels.hash_bitmap_decode(w, v, size * n), (words, units), whole, held),
        "sum": (lambda x: jnp.sum(x.reshape(n, -1), axis=0), (x,), whole, 0.0),
        "copy": (lambda x: jnp.concatenate([x, x]), (x[: size * n // 2],), whole, 0.0),
    }


def _on_workers(worker: Callable[..., Any], mesh: Mesh, axis_name: str) -> Callable[..., Any]:
    """`worker` on every device at once, as in a training step, of operands that all have."""
    mapped = jax.shard_map(
        worker, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(axis_name), check_vma=False
    )
    return jax.jit(mapped)


def _seconds(run: Callable[[], Any]) -> float:
    """Median of a few calls, after one that compiles."""
    times = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def _slowest(measured: np.ndarray, mesh: Mesh) -> np.ndarray:
    """The largest of what all processes measured, the same float32 numbers in each."""
    every_axis = tuple(mesh.axis_names)
    shape = (mesh.size, *measured.shape)
    spread = NamedSharding(mesh, PartitionSpec(every_axis))
    mine = np.asarray(measured, np.float32)[None]
    placed = jax.make_array_from_callback(shape, spread, lambda _: mine)
    agree = jax.shard_map(
        lambda x: lax.pmax(x[0], every_axis), mesh=mesh, in_specs=PartitionSpec(every_axis), out_specs=PartitionSpec()
    )
    return np.asarray(jax.jit(agree)(placed).addressable_data(0), np.float64)


def _fit(moved: np.ndarray, seconds: np.ndarray) -> tuple[float, ...]:
    """Costs >= 0 with moved @ costs near seconds, relative to seconds: small messages weigh as much as large ones."""
    scaled = moved / seconds[:, None]
    charged = np.flatnonzero(scaled.any(axis=0))
    best, least = np.zeros(scaled.shape[1]), np.inf
    for size in range(1, charged.size + 1):
        for chosen in map(list, itertools.combinations(charged, size)):
            costs = np.zeros(scaled.shape[1])
            # Unit columns, or bytes and calls would differ by more than floats resolve.
            norms = np.linalg.norm(scaled[:, chosen], axis=0)
            costs[chosen] = np.linalg.lstsq(scaled[:, chosen] / norms, np.ones(len(seconds)), rcond=None)[0] / norms
            error = np.sum((scaled @ costs - 1) ** 2)
            if (costs >= 0).all() and error < least:
                best, least = costs, error
    return tuple(map(float, best))
