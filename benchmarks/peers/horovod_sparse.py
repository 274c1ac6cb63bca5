"""Times Horovod's sparse allreduce over gloo: it gathers every worker's indices and rows, which are then added up.

"from dense" also counts finding the non-zero rows of a dense gradient and making the sum dense, as zen_jax does.
"""

import argparse
import os
import socket
import threading
import time

import horovod.torch as hvd
import numpy as np
import torch
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

from benchmarks import group
from benchmarks.peers import torch_gloo
from benchmarks.problem import Problem

ARRIVAL = 60.0  # seconds for process 0 to listen


class Processes(group.Group):
    """All processes of Horovod."""

    def __init__(self) -> None:
        self.rank, self.size = hvd.rank(), hvd.size()

    def gather(self, numbers: np.ndarray) -> np.ndarray:
        return hvd.allgather(torch.from_numpy(np.array(numbers, np.float64))[None]).numpy()


class Sparse(torch_gloo.Sparse):
    name = "Horovod sparse"

    def reduced(self, tensor: torch.Tensor) -> torch.Tensor:
        return hvd.sparse_allreduce_async(tensor, self.name, hvd.Sum)().coalesce()


class SparseFromDense(Sparse, torch_gloo.SparseFromDense):
    name = "Horovod sparse, from dense"


def init(options: argparse.Namespace, count: int) -> None:
    """Does what Horovod's launcher would: process 0 serves as the meeting point, one process is on each host."""
    host, port = options.coordinator.rsplit(":", 1)
    if options.process_id == 0:
        server = RendezvousHTTPServer(("", int(port)), RendezvousHandler, verbose=0)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    _wait_for(host, int(port))
    rank = {"RANK": options.process_id, "SIZE": count, "LOCAL_RANK": 0, "LOCAL_SIZE": 1}
    cross = {"CROSS_RANK": options.process_id, "CROSS_SIZE": count, "HOSTNAME": socket.gethostname()}
    gloo = {"GLOO_RENDEZVOUS_ADDR": host, "GLOO_RENDEZVOUS_PORT": port, "GLOO_IFACE": options.interface}
    chosen = {"CONTROLLER": "gloo", "CPU_OPERATIONS": "gloo"}
    os.environ |= {f"HOROVOD_{name}": str(value) for name, value in (rank | cross | gloo | chosen).items()}
    hvd.init()


def _wait_for(host: str, port: int) -> None:
    deadline = time.monotonic() + ARRIVAL
    while True:
        try:
            socket.create_connection((host, port), timeout=ARRIVAL).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def main() -> None:
    options = group.arguments(__doc__)
    problem = Problem.load(options.problem)
    init(options, problem.touched.shape[1])
    cases = [case(problem, options.process_id) for case in (Sparse, SparseFromDense)]
    group.measure(Processes(), problem, cases, options)
    hvd.shutdown()


if __name__ == "__main__":
    main()
