"""The tables of a workload as the leaves of a gradient tree: how `zen.synchronize` sends them, beside `psum`."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import zen_jax as zen
from benchmarks.problem import Problem

Reduce = Callable[[Any], tuple[Any, dict[str, jax.Array]]]
"""From a tree to its sum over the workers, and what the way to reduce reports about the call."""


def table_names(tables: Sequence[int]) -> list[str]:
    """Names of tables in the order in which their rows are numbered, which is also that of their leaves."""
    return [f"table{i:03}" for i in range(len(tables))]


def cases(problem: Problem, rank: int, mesh: Mesh) -> list["Tables"]:
    """Ways to reduce all tables of a problem; none if it has no tables."""
    if "tables" not in problem.notes:
        return []
    apart = {"dense_below": 0, "bucket_bytes": 1}
    return [
        Tables("tables, psum", _psum, problem, rank, mesh),
        Tables("tables, apart", _synchronize(**apart), problem, rank, mesh),
        Tables("tables, default", _synchronize(), problem, rank, mesh),
        Tables("tables, planned", _synchronize(plan=zen.Plan.load(problem.notes["plan"])), problem, rank, mesh),
        Tables("tables, row-sparse, apart", _synchronize(**apart), problem, rank, mesh, row_sparse=True),
        Tables("tables, row-sparse", _synchronize(), problem, rank, mesh, row_sparse=True),
    ]


def _synchronize(**options: Any) -> Reduce:
    transform = zen.synchronize("data", op="sum", **options)

    def reduce(tree: Any) -> tuple[Any, dict[str, jax.Array]]:
        reduced, state = transform.update(tree, None)
        return reduced, zen.total(state.info)._asdict()

    return reduce


def _psum(tree: Any) -> tuple[Any, dict[str, jax.Array]]:
    return lax.psum(tree, "data"), {}


class Tables:
    """One way to reduce the tables of a problem, as arrays or as `RowSparseGradient`."""

    def __init__(
        self, name: str, reduce: Reduce, problem: Problem, rank: int, mesh: Mesh, row_sparse: bool = False
    ) -> None:
        self.name, self.problem, self.rank = name, problem, rank
        self.rows, self.row_sparse = problem.notes["tables"], row_sparse
        self.ends = np.cumsum(self.rows)[:-1]
        counts = [part.sum(axis=-1).max() for part in np.split(problem.touched, self.ends, axis=-1)]
        self.rooms = [max(1, int(count)) for count in counts]
        self.sharding = NamedSharding(mesh, PartitionSpec("data"))
        mapped = jax.shard_map(
            lambda tree: reduce(jax.tree.map(lambda x: x[0], tree)),
            mesh=mesh,
            in_specs=PartitionSpec("data"),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
        self.step = jax.jit(mapped)

    def prepare(self, step: int) -> Callable[[], Any]:
        tables = np.split(self.problem.dense(step, self.rank), self.ends)
        leaves = [self._listed(*each) for each in zip(tables, self.rooms, strict=True)] if self.row_sparse else tables
        tree = dict(zip(table_names(self.rows), leaves, strict=True))
        place = lambda x: jax.make_array_from_process_local_data(self.sharding, np.asarray(x)[None])
        placed = jax.block_until_ready(jax.tree.map(place, tree))
        return lambda: jax.block_until_ready(self.step(placed))

    def dense(self, result: Any) -> np.ndarray:
        tree = jax.tree.map(lambda x: jnp.asarray(np.asarray(x.addressable_data(0))), result[0])
        leaves = [tree[name] for name in table_names(self.rows)]
        return np.concatenate([leaf.to_dense() if self.row_sparse else leaf for leaf in leaves])

    def info(self, result: Any) -> dict[str, float]:
        return {key: float(value.addressable_data(0)) for key, value in result[1].items()}

    @staticmethod
    def _listed(table: np.ndarray, room: int) -> zen.RowSparseGradient:
        found = np.flatnonzero(table.any(axis=1))
        ids, rows = np.full(room, len(table), np.int32), np.zeros((room, table.shape[1]), np.float32)
        ids[: found.size], rows[: found.size] = found, table[found]
        return zen.RowSparseGradient(ids, rows, len(table))
