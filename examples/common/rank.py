"""This process among several, as given by options, the environment or a launcher."""

import dataclasses
import os

_BY_HAND = ("JAX_NUM_PROCESSES", "NUM_PROCESSES")
# Open MPI before SLURM, in whose jobs mpirun may run.
_COUNTS = (*_BY_HAND, "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")
_INDICES = ("JAX_PROCESS_ID", "PROCESS_ID", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX")
# What jax.distributed looks for. A batch script of SLURM is no step, and Open MPI 5 sets none of these.
_DETECTED = ("SLURM_STEP_NODELIST", "OMPI_MCA_orte_hnp_uri")


@dataclasses.dataclass(frozen=True)
class Rank:
    """This process among `count`; process 0 listens at `coordinator` (`host:port`) and at the next port."""

    coordinator: str
    count: int
    index: int

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.coordinator.rpartition(":")
        return host.strip("[]"), int(port)

    def name(self, index: int) -> str:
        """The name of a process in messages."""
        return f"process {index} of {self.count}"


def rank_from(coordinator: str | None, count: int | None, index: int | None) -> Rank | None:
    """The rank set by options or the environment, None if neither sets it; raises ValueError if it is half set."""
    coordinator = coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS")
    if coordinator is None:
        if (_from_environment(("OMPI_COMM_WORLD_SIZE",)) or 1) > 1 and not launcher_knows():
            raise ValueError(
                "Open MPI 5 does not say where process 0 listens: give mpirun -x JAX_COORDINATOR_ADDRESS=HOST:PORT"
            )
        if count is None and index is None and _from_environment(_BY_HAND) is None:
            return None
        raise ValueError(
            "--num-processes and --process-id, or NUM_PROCESSES, need --coordinator HOST:PORT or "
            "JAX_COORDINATOR_ADDRESS"
        )
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65535:
        raise ValueError(f"--coordinator {coordinator!r} must be HOST:PORT, with a port from 1 to 65534")
    count = _from_environment(_COUNTS) if count is None else count
    index = _from_environment(_INDICES) if index is None else index
    if count is None or index is None:
        raise ValueError(f"--coordinator {coordinator} needs --num-processes and --process-id")
    if not 0 <= index < count:
        raise ValueError(f"--process-id {index} must be at least 0 and below --num-processes {count}")
    return Rank(coordinator, count, index)


def launcher_knows() -> bool:
    """Whether this process was started by a launcher that jax.distributed detects by itself."""
    return any(name in os.environ for name in _DETECTED)


def _from_environment(names: tuple[str, ...]) -> int | None:
    for name in names:
        if text := os.environ.get(name):
            if not text.isdecimal():
                raise ValueError(f"environment variable {name}={text!r} is not an integer")
            return int(text)
    return None
