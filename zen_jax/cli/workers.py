"""The workers that `bench` times: those of jax.distributed, or devices of this process."""

import contextlib
import os
import socket
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from zen_jax import agreement
from zen_jax._typing import Array, PyTree

AXIS = "data"
# What jax.distributed looks for, and how many processes there are. A batch script of Slurm is no step, and Open MPI 5
# sets none of these.
_LAUNCHERS = {"SLURM_STEP_NODELIST": "SLURM_NTASKS", "OMPI_MCA_orte_hnp_uri": "OMPI_COMM_WORLD_SIZE"}
_INTERFACES = Path("/sys/class/net")  # Linux's
_PATIENCE = 30  # seconds that the others have to end once this process does


class Place(NamedTuple):
    """This process among others; `coordinator` is HOST:PORT of the first. None if a launcher knows."""

    coordinator: str | None
    num_processes: int | None
    process_id: int | None


def find_place(
    coordinator: str | None, num_processes: int | None, process_id: int | None, *, alone: bool
) -> Place | None:
    """The place given by the options, or by a launcher of several unless `alone`; None for a process by itself.

    Raises:
      ValueError: for some options without the others, an index out of range, a coordinator that is not HOST:PORT, or
        no coordinator under Open MPI 5.
    """
    place = Place(coordinator, num_processes, process_id)
    if place == (None, None, None):
        if alone:
            return None
        if any(name in os.environ and os.environ.get(count) != "1" for name, count in _LAUNCHERS.items()):
            return place
        if int(os.environ.get("OMPI_COMM_WORLD_SIZE", 1)) > 1:
            raise ValueError(
                "Open MPI 5 does not say where its first process listens. Give every process --coordinator, "
                "--num-processes and --process-id."
            )
        return None
    if None in place:
        raise ValueError(
            "--coordinator, --num-processes and --process-id go together. Give all three to every process."
        )
    if process_id >= num_processes:
        raise ValueError(f"--process-id {process_id} must be below --num-processes {num_processes}. Number from 0.")
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(
            f"--coordinator {coordinator!r} must be HOST:PORT. Give an address of process 0 and a free port."
        )
    return place


def join(place: Place) -> None:
    """Connects this process to the others. If they do not come, JAX ends the process after five minutes.

    Raises:
      ValueError: in the first of them, for a port that is taken.
    """
    if place.process_id == 0:
        port = int(place.coordinator.rpartition(":")[2])
        try:
            socket.create_server(("", port)).close()  # gRPC would share the port with another run, and end that run
        except OSError as error:
            raise ValueError(f"process 0 cannot listen on port {port}: {error.strerror}. Give another one.") from error
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(*place, devices_under_open_mpi(), shutdown_timeout_seconds=_PATIENCE)
    compile_anew()


def devices_under_open_mpi() -> list[int] | None:
    """The one device of a process that Open MPI started, which JAX would choose by itself only under Open MPI 4."""
    local = os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK")
    return None if local is None or "JAX_LOCAL_DEVICE_IDS" in os.environ else [int(local)]


def compile_anew() -> None:
    """After `jax.distributed.initialize`: on CPUs, this process takes no program from JAX's compilation cache.

    Such programs can hang among several processes, and zen refuses to be part of them.
    """
    if jax.default_backend() == "cpu":
        jax.config.update("jax_enable_compilation_cache", False)


def make_mesh(n: int | None) -> Mesh:
    """A mesh of n devices of this process, emulated on CPU; if n is None, of the devices of all processes.

    Raises:
      ValueError: if there are fewer.
    """
    if n is not None:
        with contextlib.suppress(RuntimeError):  # JAX is already running, with the devices that it has
            jax.config.update("jax_num_cpu_devices", n)
    devices = jax.devices()[:n]
    if n is not None and len(devices) < n:
        raise ValueError(
            f"{n} workers need as many devices, but platform {devices[0].platform} has {len(devices)}. "
            "Use fewer, or emulate them: JAX_PLATFORMS=cpu."
        )
    return jax.make_mesh((len(devices),), (AXIS,), axis_types=(AxisType.Auto,), devices=devices)


def place_stack(stack: PyTree, mesh: Mesh) -> PyTree:
    """Places stacked arrays [n, ...] that every process has: each worker's slice on its device."""
    spread = NamedSharding(mesh, PartitionSpec(AXIS))

    def place(array: np.ndarray) -> Array:
        return jax.make_array_from_callback(array.shape, spread, lambda index: array[index])

    return jax.block_until_ready(jax.tree.map(place, stack))


def received_bytes(interface: str) -> int:
    """Bytes that this host has received over a network interface since it came up.

    Raises:
      ValueError: if there is no such interface, or no Linux.
    """
    try:
        return int((_INTERFACES / interface / "statistics" / "rx_bytes").read_text())
    except OSError as error:
        known = ", ".join(sorted(path.name for path in _INTERFACES.glob("*"))) or "none that Linux counts for"
        raise ValueError(f"no counters of --interface {interface!r}. This host has {known}.") from error


def gather(numbers: np.ndarray) -> np.ndarray:
    """Gathers float64 [...] of this process into [processes, ...] of all; no process goes on before all arrive."""
    # As bits, because JAX would round float64 to float32.
    bits = agreement.gather(np.asarray(numbers, np.float64).reshape(-1).view(np.uint32))
    return bits.view(np.float64).reshape(-1, *np.shape(numbers))
