"""Other implementations, each a script that uses the input and the timing loop of `benchmarks.group`."""

from typing import NamedTuple


class Peer(NamedTuple):
    """A module to run in every process, and the package that it needs."""

    module: str
    package: str
    launched_by_mpi: bool = False
    powers_of_two: bool = False  # the numbers of processes that it takes


PEERS = {
    "torch_gloo": Peer("benchmarks.peers.torch_gloo", "torch"),
    "horovod_sparse": Peer("benchmarks.peers.horovod_sparse", "horovod"),
    "mpi_recursive_doubling": Peer(
        "benchmarks.peers.mpi_recursive_doubling", "mpi4py", launched_by_mpi=True, powers_of_two=True
    ),
}
