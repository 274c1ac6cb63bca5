"""Training with one synchronisation scheme, from the same start and on the same batches as any other."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
import optax
from jax import lax

import zen_jax as zen
from examples.common.config import PLANNED, ROW_SPARSE, Config
from examples.common.task import PyTree, Task
from examples.common.workers import PER_WORKER, REPLICATED, Workers

# On a CPU, XLA drops optimization barriers before fusing. With them, an optimizer rounds alike after every scheme.
_KEEP_BARRIERS = {"xla_disable_hlo_passes": "cse_barrier_expander"}


class State(NamedTuple):
    """Everything that a step changes and a checkpoint holds."""

    params: PyTree
    optimizer: PyTree
    sparsifier: PyTree
    carry: PyTree


KINDS = State(REPLICATED, REPLICATED, PER_WORKER, PER_WORKER)


@dataclasses.dataclass(frozen=True)
class Step:
    """What one step did."""

    loss: float
    seconds: float
    info: dict[str, float]  # the fields of zen.Info


@dataclasses.dataclass
class Run:
    """One training run: its steps so far and, at the end, its figure on the held-out data."""

    scheme: str
    steps: list[Step] = dataclasses.field(default_factory=list)
    validation: float | None = None
    plan: zen.Plan | None = None  # chosen under `PLANNED`
    preempted: bool = False  # whether a host was told to end after the last of these steps


def initial_state(task: Task, scheme: str, workers: Workers) -> State:
    """The state before the first step."""

    def each(tree: PyTree) -> PyTree:
        return workers.shard(jax.tree.map(lambda x: np.stack([x] * len(workers.local)), jax.device_get(tree)))

    return State(
        workers.replicate(task.params),
        workers.replicate(_synchronized(task, scheme, workers).init(task.params)),
        each(task.sparsifier.init(task.params)),
        each(task.carry),
    )


def train(task: Task, config: Config, workers: Workers, run: Run, state: State) -> Iterator[tuple[Step, State]]:
    """Continues from `run` and `state` up to `config.steps` steps; yields each step and the state after it.

    A yielded state is donated to the next step.
    """
    if len(run.steps) == config.steps:  # resumed after its end
        return
    make = partial(make_step, task, config.seed, run.scheme, workers)
    planned = run.scheme == PLANNED
    step_fun = zen.autotune(make, cluster=workers.cluster()) if planned else make(None)
    for number in range(len(run.steps), config.steps):
        start = time.perf_counter()
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            batch = workers.shard(task.batch(number, workers.local))
            state, loss, info = step_fun(state, batch, np.int32(number))
            info = {name: float(value) for name, value in jax.device_get(info)._asdict().items()}
            run.steps.append(Step(float(loss), time.perf_counter() - start, info))
            run.plan = step_fun.plan if planned else None
        yield run.steps[-1], state


def _synchronized(
    task: Task, scheme: str, workers: Workers, plan: zen.Plan | zen.Profiler | None = None
) -> optax.GradientTransformation:
    optimizer = zen.embedding.lazy(task.optimizer) if scheme == ROW_SPARSE else task.optimizer
    scheme = "auto" if scheme in (PLANNED, ROW_SPARSE) else scheme
    axis_name, intra_axis = (*workers.axes, None)[:2]
    synchronize = zen.synchronize(axis_name, intra_axis=intra_axis, scheme=scheme, plan=plan, **task.synchronize)
    return optax.chain(synchronize, optimizer)


def make_step(
    task: Task, seed: int, scheme: str, workers: Workers, plan: zen.Plan | zen.Profiler | None
) -> Callable[[State, PyTree, np.int32], tuple[State, jax.Array, zen.Info]]:
    """A compiled step for all workers: (state, batch, number) -> (state, mean loss, info). The state is donated."""
    options = _KEEP_BARRIERS if jax.default_backend() == "cpu" else None
    worker_step = _worker_step(task, seed, scheme, workers, plan)
    step_fun = workers.run(worker_step, inputs=(KINDS, PER_WORKER, REPLICATED), outputs=(KINDS, REPLICATED, REPLICATED))
    return jax.jit(step_fun, donate_argnums=0, compiler_options=options)


def _worker_step(
    task: Task, seed: int, scheme: str, workers: Workers, plan: zen.Plan | zen.Profiler | None
) -> Callable[[State, PyTree, jax.Array], tuple[State, jax.Array, zen.Info]]:
    """What each worker does in a step: its own batch, one loss, one synchronised update."""
    optimizer = _synchronized(task, scheme, workers, plan)
    if scheme == ROW_SPARSE:
        value_and_grad = zen.embedding.value_and_grad(task.loss, task.lookups, has_aux=True)
    else:
        value_and_grad = jax.value_and_grad(task.loss, has_aux=True)

    def step_fun(state: State, batch: PyTree, number: jax.Array) -> tuple[State, jax.Array, zen.Info]:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), number), lax.axis_index(workers.axes))
        (loss, carry), grads = value_and_grad(state.params, state.carry, batch, key)
        grads, sparsifier_state = task.sparsifier.update(grads, state.sparsifier, state.params)
        updates, optimizer_state = optimizer.update(grads, state.optimizer, state.params)
        info = zen.total(optax.tree.get(optimizer_state, "info"))
        params = optax.apply_updates(state.params, updates)
        return State(params, optimizer_state, sparsifier_state, carry), lax.pmean(loss, workers.axes), info

    return step_fun
