"""One process of a measured group: times zen_jax's schemes over jax.distributed. Started by benchmarks.network."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import zen_jax as zen
from benchmarks import group, network_tables
from benchmarks.problem import Problem
from zen_jax.cli.workers import compile_anew, gather
from zen_jax.planning.costs import candidates


class Processes:
    """All processes of jax.distributed, one device each."""

    def __init__(self, mesh: jax.sharding.Mesh, problem: Problem) -> None:
        self.rank, self.size = jax.process_index(), jax.process_count()
        self.mesh, self.problem = mesh, problem

    def gather(self, numbers: np.ndarray) -> np.ndarray:
        return gather(numbers)

    def at_rate(self, rate: str) -> dict[str, dict[str, Any]]:
        """Calibrates the links; returns each case's estimated seconds."""
        if rate == group.UNLIMITED:
            return {}
        cluster = zen.calibrate(self.mesh)
        leaf = zen.SparsityProfile.load(self.problem.notes["profile"]).leaves["(array)"]
        known = list(candidates(leaf, self.size))
        return {
            name: {"estimate": each.seconds(cluster, self.size)}
            for name, options in self.problem.notes["cases"].items()
            for each in known
            if each.options == _with_tuples(options)
        }


class Scheme:
    """`zen.all_reduce` with the keywords that the problem's notes give for this case."""

    def __init__(self, name: str, problem: Problem, rank: int, mesh: jax.sharding.Mesh) -> None:
        self.name, self.problem, self.rank = name, problem, rank
        self.sharding = NamedSharding(mesh, PartitionSpec("data"))
        keywords = problem.notes["cases"][name]
        reduce = lambda x: zen.all_reduce(x[0], "data", op="sum", return_info=True, **keywords)
        mapped = jax.shard_map(
            reduce, mesh=mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec(), check_vma=False
        )
        self.step = jax.jit(mapped)

    def prepare(self, step: int) -> Callable[[], Any]:
        mine = self.problem.dense(step, self.rank)[None]
        placed = jax.block_until_ready(jax.make_array_from_process_local_data(self.sharding, mine))
        return lambda: jax.block_until_ready(self.step(placed))

    def dense(self, result: Any) -> np.ndarray:
        return np.asarray(result[0].addressable_data(0))

    def info(self, result: Any) -> dict[str, float]:
        return {key: float(value.addressable_data(0)) for key, value in result[1]._asdict().items()}


def _with_tuples(keywords: dict[str, Any]) -> dict[str, Any]:
    """Turns lists back into tuples, which JSON lacks."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in keywords.items()}


def main() -> None:
    options = group.arguments(__doc__)
    problem = Problem.load(options.problem)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(options.coordinator, problem.touched.shape[1], options.process_id)
    compile_anew()
    mesh = jax.make_mesh((jax.process_count(),), ("data",), axis_types=(AxisType.Auto,))
    processes = Processes(mesh, problem)
    schemes = [Scheme(name, problem, processes.rank, mesh) for name in problem.notes["cases"]]
    cases = schemes + network_tables.cases(problem, processes.rank, mesh)
    group.measure(processes, problem, cases, options)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
