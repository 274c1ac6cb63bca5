"""One process of a measured group: times zen_jax's schemes over jax.distributed. Started by benchmarks.network."""

import json
from collections.abc import Callable, Mapping, Sequence
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

    def __init__(self, mesh: jax.sharding.Mesh, schemes: Sequence["Scheme"], profile: zen.SparsityProfile) -> None:
        self.rank, self.size = jax.process_index(), jax.process_count()
        self.mesh, self.schemes, self.profile = mesh, schemes, profile

    def gather(self, numbers: np.ndarray) -> np.ndarray:
        return gather(numbers)

    def at_rate(self, rate: str) -> dict[str, dict[str, Any]]:
        """Calibrates the links; lets each case take its fastest candidate there, and returns what it takes."""
        if rate == group.UNLIMITED:
            return {scheme.name: {"options": scheme.taken} for scheme in self.schemes}
        cluster = zen.calibrate(self.mesh)
        known = candidates(self.profile.leaves["(array)"], self.size)
        estimates = {_key(each.options): each.seconds(cluster, self.size) for each in known}
        return {scheme.name: scheme.take_fastest(estimates) for scheme in self.schemes}


class Scheme:
    """`zen.all_reduce` with one of the choices of keywords that the problem's notes give for this case."""

    def __init__(self, name: str, problem: Problem, rank: int, mesh: jax.sharding.Mesh) -> None:
        self.name, self.problem, self.rank, self.mesh = name, problem, rank, mesh
        self.sharding = NamedSharding(mesh, PartitionSpec("data"))
        self.choices = problem.notes["cases"][name]
        self.steps = {_key(options): self._step(**options) for options in self.choices}
        self.taken = self.choices[0]

    def _step(self, **options: Any) -> Callable[[Any], Any]:
        if options["capacity"] is not None:
            options["capacity"] = tuple(options["capacity"])
        reduce = lambda x: zen.all_reduce(x[0], "data", op="sum", return_info=True, **options)
        mapped = jax.shard_map(
            reduce, mesh=self.mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec(), check_vma=False
        )
        return jax.jit(mapped)

    def take_fastest(self, estimates: Mapping[str, float]) -> dict[str, Any]:
        """From estimated seconds by `_key`, the choice and its estimate; variants that no plan has have none."""
        self.taken = min(self.choices, key=lambda options: estimates.get(_key(options), 0.0))
        found = {"options": self.taken}
        return found | {"estimate": estimates[_key(self.taken)]} if _key(self.taken) in estimates else found

    def prepare(self, step: int) -> Callable[[], Any]:
        mine = self.problem.dense(step, self.rank)[None]
        placed = jax.block_until_ready(jax.make_array_from_process_local_data(self.sharding, mine))
        return lambda: jax.block_until_ready(self.steps[_key(self.taken)](placed))

    def dense(self, result: Any) -> np.ndarray:
        return np.asarray(result[0].addressable_data(0))

    def info(self, result: Any) -> dict[str, float]:
        return {key: float(value.addressable_data(0)) for key, value in result[1]._asdict().items()}


def _key(options: Mapping[str, Any]) -> str:
    """The same for a candidate's options and for what JSON makes of them."""
    return json.dumps(options)


def main() -> None:
    options = group.arguments(__doc__)
    problem = Problem.load(options.problem)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(options.coordinator, problem.touched.shape[1], options.process_id)
    compile_anew()
    mesh = jax.make_mesh((jax.process_count(),), ("data",), axis_types=(AxisType.Auto,))
    schemes = [Scheme(name, problem, jax.process_index(), mesh) for name in problem.notes["cases"]]
    processes = Processes(mesh, schemes, zen.SparsityProfile.load(problem.notes["profile"]))
    cases = schemes + network_tables.cases(problem, processes.rank, mesh)
    group.measure(processes, problem, cases, options)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
