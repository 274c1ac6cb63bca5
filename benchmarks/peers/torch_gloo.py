"""Times torch.distributed's gloo: dense all_reduce, and sparse all_reduce of row-sparse COO tensors.

"sparse" takes and returns the tensors that torch makes for an embedding with sparse=True. "sparse, from dense" also
counts finding the non-zero rows of a dense gradient and making the sum dense, as zen_jax does.
"""

import os
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist

from benchmarks import group
from benchmarks.problem import Problem


class Processes(group.Group):
    """All processes of torch.distributed."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def gather(self, numbers: np.ndarray) -> np.ndarray:
        mine = torch.from_numpy(np.array(numbers, np.float64))
        every = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(every, mine)
        return np.stack([each.numpy() for each in every])


class Dense(group.Case):
    name = "torch gloo dense"

    def __init__(self, problem: Problem, rank: int) -> None:
        self.problem, self.rank = problem, rank

    def prepare(self, step: int) -> Callable[[], torch.Tensor]:
        tensor = torch.from_numpy(self.problem.dense(step, self.rank))

        def call() -> torch.Tensor:
            dist.all_reduce(tensor)
            return tensor

        return call

    def dense(self, result: torch.Tensor) -> np.ndarray:
        return result.numpy()


class Sparse(Dense):
    name = "torch gloo sparse"

    def prepare(self, step: int) -> Callable[[], torch.Tensor]:
        rows, values = (torch.from_numpy(array) for array in self.problem.sparse(step, self.rank))
        shape = (self.problem.touched.shape[-1], self.problem.columns)
        tensor = torch.sparse_coo_tensor(rows[None], values, shape).coalesce()

        return lambda: self.reduced(tensor)

    def reduced(self, tensor: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(tensor)
        return tensor

    def dense(self, result: torch.Tensor) -> np.ndarray:
        return result.to_dense().numpy()


class SparseFromDense(Sparse):
    name = "torch gloo sparse, from dense"

    def prepare(self, step: int) -> Callable[[], torch.Tensor]:
        gradient = torch.from_numpy(self.problem.dense(step, self.rank))

        def call() -> torch.Tensor:
            # gradient.to_sparse(1) does the same, but ten times slower.
            rows = gradient.any(dim=1).nonzero().squeeze(1)
            mine = torch.sparse_coo_tensor(rows[None], gradient[rows], gradient.shape)._coalesced_(True)
            total = self.reduced(mine)
            return torch.zeros_like(gradient).index_copy_(0, total._indices()[0], total._values())

        return call

    def dense(self, result: torch.Tensor) -> np.ndarray:
        return result.numpy()


def main() -> None:
    options = group.arguments(__doc__)
    problem = Problem.load(options.problem)
    os.environ["GLOO_SOCKET_IFNAME"] = options.interface
    count = problem.touched.shape[1]
    dist.init_process_group(
        "gloo", init_method=f"tcp://{options.coordinator}", rank=options.process_id, world_size=count
    )
    cases = [case(problem, options.process_id) for case in (Dense, Sparse, SparseFromDense)]
    group.measure(Processes(), problem, cases, options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
