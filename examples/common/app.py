"""The program behind every example: options, workers, one training run per scheme, and their comparison."""

import argparse
import dataclasses
import math
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

import zen_jax as zen
from examples.common import launch, metrics, prepared, progress, report
from examples.common.checkpoint import Checkpoints, check_agreed, check_shared, reached_preemption
from examples.common.config import ROW_SPARSE, Config, add_options
from examples.common.errors import BadInput, errors_as_bad_input
from examples.common.loop import Run, State, Step, initial_state, train
from examples.common.rank import rank_from
from examples.common.task import Task
from examples.common.workers import Workers, find_workers
from zen_jax.cli.options import at_least

_EXAMPLES = """examples:
  python -m {name}                        {workers} emulated workers
  python -m {name} --processes 4          4 processes on this machine, one worker each
  python -m {name} --checkpoint-every 50 --resume
                                          stopped and started again, it continues
  python -m {name} --coordinator HOST:PORT --num-processes 16 --process-id 3
                                          one of 16 processes under your own launcher
"""

TERMINATED = 128 + signal.SIGTERM

_OWN = ("data", "out")  # paths, which may differ between hosts; what they hold may not


@dataclasses.dataclass(frozen=True)
class Example:
    """An example, which trains `task(config, load(config))` with `config.workers` workers."""

    name: str  # of its module, such as "examples.lm.main"
    description: str
    config: type[Config]
    dataset: type  # what `load` returns
    load: Callable[[Config], Any]
    task: Callable[[Config, Any], Task]
    read_with: tuple[str, ...] = ()  # the options besides --data that decide how files are read


def main(example: Example, arguments: list[str]) -> int:
    """Returns the exit code: 0; 2 for options, data or checkpoints that cannot be used, or if training diverged; 1 if
    processes do not arrive or nobody reads what it prints; 143 if one was told to end; 130 after Ctrl-C.
    """
    parser = _parser(example)
    options = parser.parse_args(arguments)
    try:
        if options.prepare:
            with errors_as_bad_input():
                _prepare(example, options)
            return 0
        if options.processes:
            if (options.coordinator, options.num_processes, options.process_id) != (None, None, None):
                raise BadInput(
                    f"--processes {options.processes} starts all processes here: leave out --coordinator, "
                    "--num-processes and --process-id"
                )
            command = [sys.executable, "-m", example.name, *arguments, "--processes", "0"]
            return launch.start(command, options.processes)
        with errors_as_bad_input():
            rank = rank_from(options.coordinator, options.num_processes, options.process_id)
            options.out.mkdir(parents=True, exist_ok=True)
        with launch.joined(rank, options.timeout) as guard:
            with errors_as_bad_input():
                config, workers, task, digest = _set_up(example, options, alone=rank is None)
                task = dataclasses.replace(task, batch=guard(task.batch))
                checkpoints = {scheme: _open(config, workers, digest, scheme) for scheme in config.sync}
            check_agreed(checkpoints.values())
            with errors_as_bad_input():
                _check_resumable(config, checkpoints)
            return 0 if _compare(config, workers, task, checkpoints) else TERMINATED
    except (BadInput, TimeoutError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def _prepare(example: Example, options: argparse.Namespace) -> None:
    config = _config(example, options, example.config.workers)
    dataset, _ = _dataset(example, config)
    prepared.write(options.prepare, dataset, _read_with(example, config))
    print(f"prepared: train with --data {options.prepare}")


def _set_up(example: Example, options: argparse.Namespace, *, alone: bool) -> tuple[Config, Workers, Task, str]:
    """Any error in the options or the data is found here, before anything is traced."""
    workers = find_workers(options.workers, example.config.workers if alone else 1, options.machines)
    config = _config(example, options, workers.count)
    dataset, digest = _dataset(example, config)
    task = example.task(config, dataset)
    if ROW_SPARSE in config.sync and task.lookups is None:
        raise BadInput(f"--sync {ROW_SPARSE}: a step of {example.name} reads whole tables, not rows of them")
    same = {name: value for name, value in dataclasses.asdict(config).items() if name not in _OWN}
    zen.check_agreement(**same, training_data=digest, params=task.params, synchronize=task.synchronize)
    if jax.process_count() > 1:
        check_shared(config.out)  # else a checkpoint, which a SIGTERM alone causes, would hang or be incomplete
    return config, workers, task, digest


def _config(example: Example, options: argparse.Namespace, workers: int) -> Config:
    names = {field.name for field in dataclasses.fields(example.config)}
    chosen = {name: value for name, value in vars(options).items() if name in names}
    return example.config(**chosen | {"workers": workers})


def _dataset(example: Example, config: Config) -> tuple[Any, str]:
    """The data set and its digest."""
    if prepared.is_prepared(config.data):
        return prepared.opened(config.data, example.dataset, _read_with(example, config))
    dataset = example.load(config)
    return dataset, prepared.digest(dataset)


def _read_with(example: Example, config: Config) -> dict[str, Any]:
    return {name: getattr(config, name) for name in example.read_with}


def _open(config: Config, workers: Workers, digest: str, scheme: str) -> Checkpoints:
    """The checkpoints of a scheme's run, if there are any."""
    folder = config.out / scheme
    folder.mkdir(exist_ok=True)
    if not (os.access(folder, os.W_OK) and os.access(config.out, os.W_OK)):
        raise BadInput(f"{folder} cannot be written: give another --out, or permission")
    return Checkpoints(folder / "checkpoints", config, workers, digest)


def _check_resumable(config: Config, checkpoints: Mapping[str, Checkpoints]) -> None:
    """Each run has either no checkpoints yet, or ones that it can resume from."""
    for scheme, each in checkpoints.items():
        if each.last() is None:
            continue
        if not config.resume:
            raise BadInput(
                f"{config.out / scheme} holds checkpoints: continue from them with --resume, or give another --out"
            )
        each.check()


def _compare(config: Config, workers: Workers, task: Task, checkpoints: Mapping[str, Checkpoints]) -> bool:
    """Whether all runs finished."""
    is_main_process = jax.process_index() == 0
    if is_main_process:
        print(*task.lines, f"workers  {workers}, {task.items_per_step:,} {task.items} a step", sep="\n", flush=True)
    runs: list[Run] = []
    for scheme in config.sync:
        run = _run(config, workers, task, scheme, checkpoints[scheme])
        finished = len(run.steps) == config.steps and scheme == config.sync[-1]
        if run.preempted and not finished:
            if is_main_process:
                print(f"\nstopped after {len(run.steps)} steps of {scheme}: start it again with --resume", flush=True)
            return False
        runs.append(run)
    if is_main_process:
        rows = report.summarise(runs, task)
        report.write(config, task, runs, rows)
        print("", report.table(rows), *(f"\n{run.plan}" for run in runs if run.plan), sep="\n")
        print(f"\ncurves.png, summary.json and a folder for each run are in {config.out}")
    return True


def _run(config: Config, workers: Workers, task: Task, scheme: str, checkpoints: Checkpoints) -> Run:
    """The run of a scheme. It stops early, after a checkpoint, if any host is told to end (SIGTERM)."""
    run, state = Run(scheme), initial_state(task, scheme, workers)
    path = config.out / scheme / "metrics.jsonl"
    if checkpoints.last() is not None:
        with errors_as_bad_input():
            state = checkpoints.restore(state)
            run.steps = metrics.read(path, checkpoints.last())

    is_main_process = jax.process_index() == 0
    before = list(run.steps)
    steps = _finite(train(task, config, workers, run, state), len(before) + 1, checkpoints)
    steps = progress.watch(run, steps, config.steps, task, quiet=not is_main_process)
    steps = metrics.record(path, before, steps) if is_main_process else steps
    for done, (_, state) in enumerate(steps, len(before) + 1):
        run.preempted = reached_preemption()
        if run.preempted or (config.checkpoint_every and done % config.checkpoint_every == 0):
            if is_main_process:
                metrics.secure(path)
            checkpoints.save(done, state)
        if run.preempted:
            break
    checkpoints.close()
    if len(run.steps) == config.steps:
        run.validation = task.validate(state.params)
    return run


def _finite(steps: Iterable[tuple[Step, State]], first: int, checkpoints: Checkpoints) -> Iterator[tuple[Step, State]]:
    """Passes `steps` through; raises BadInput at the first loss that is NaN or infinite, the same on all processes."""
    for number, (step, state) in enumerate(steps, first):
        if not math.isfinite(step.loss):
            raise checkpoints.diverged(f"the loss of step {number} is {step.loss}")
        yield step, state


def _parser(example: Example) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=example.name,
        description=example.description,
        epilog=_EXAMPLES.format(name=example.name, workers=example.config.workers),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, example.config)
    parser.add_argument(
        "--prepare",
        type=Path,
        metavar="PATH",
        help="write the data to this folder and stop; with --data PATH, a process then reads only its workers' part",
    )
    several = parser.add_argument_group("several processes")
    several.add_argument("--processes", type=at_least(0), default=0, metavar="N", help="start N on this machine's CPUs")
    several.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        help="where process 0 listens, on this port and the next; or set JAX_COORDINATOR_ADDRESS",
    )
    several.add_argument(
        "--num-processes",
        type=at_least(1),
        metavar="N",
        help="number of processes; or set NUM_PROCESSES, or use a launcher",
    )
    several.add_argument(
        "--process-id",
        type=at_least(0),
        metavar="I",
        help="index of this process; or set PROCESS_ID, or use a launcher",
    )
    several.add_argument(
        "--timeout",
        type=at_least(1),
        default=60,
        metavar="SECONDS",
        help="seconds of silence, or of waiting for its input, after which a process counts as stuck and all end "
        "(default: 60)",
    )
    return parser
