"""Times every scheme on the same gradients, next to its estimate and the lower bound.

Workers are the devices of all processes of jax.distributed. --launch-on starts one on each host by ssh (which must not
ask for a password), in the same folder and with the same Python as here: each reads the gradients there, and the first
writes the results. Or start the same command on every host yourself, with --coordinator, --num-processes and its own
--process-id, or with none of the three under Slurm or Open MPI 4. Otherwise, workers are devices of this process, which
share one memory: no network is measured. Messages are planned from the gradients themselves."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

import zen_jax as zen
from zen_jax.cli import bench_report, gradients, launch, output, workers
from zen_jax.cli import options as shared
from zen_jax.cli.timing import time_cases
from zen_jax.planning.calibrate import count_hosts
from zen_jax.planning.cluster import GBPS, LATENCY_US, even_hosts

EXAMPLES = """  zen-jax bench --workers 4
  zen-jax bench --workers 8 --density 0.001 --rows 100000 --columns 256 --plot bench.png
  zen-jax bench step1.npz step2.npz --repeats 10 --json bench.json --save-cluster cluster.json
  zen-jax bench --launch-on node1,node2,node3,node4 --interface eth0
  zen-jax bench --coordinator 10.0.0.1:7700 --num-processes 16 --process-id 3 --schemes dense,zen,auto"""
BASELINE = "dense"
WORKERS, REPEATS = 4, 5  # if nothing else says how many
MADE_UP = {"density": 0.01, "rows": 20_000, "columns": 64}  # gradients, if no files are given


def add_options(parser: argparse.ArgumentParser) -> None:
    number = shared.at_least(1)
    parser.add_argument(
        "gradients",
        nargs="*",
        type=Path,
        metavar="GRADIENTS.npz",
        help="stacked gradients of one step (default: made up)",
    )
    parser.add_argument(
        "--density", type=shared.share, help=f"density of made-up gradients (default: {MADE_UP['density']})"
    )
    parser.add_argument("--rows", type=number, metavar="N", help=f"their rows (default: {MADE_UP['rows']})")
    parser.add_argument("--columns", type=number, metavar="N", help=f"their columns (default: {MADE_UP['columns']})")
    alone_or_not = parser.add_mutually_exclusive_group()
    alone_or_not.add_argument(
        "--workers",
        type=shared.at_least(2),
        metavar="N",
        help=f"number of devices of this process (default: one for each slice of the gradients, or {WORKERS})",
    )
    alone_or_not.add_argument(
        "--launch-on",
        type=launch.host_names,
        metavar="HOSTS",
        help=f"hosts to start a process on by ssh, comma-separated; {launch.LOCAL} needs none",
    )
    parser.add_argument("--launch-index", type=shared.at_least(0), help=argparse.SUPPRESS)  # of a process started so
    parser.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        help="an address of process 0, for several processes (default: on the first host of --launch-on)",
    )
    parser.add_argument("--num-processes", type=number, metavar="N", help="number of processes, with --coordinator")
    parser.add_argument(
        "--process-id", type=shared.at_least(0), metavar="I", help="index of this process, with --coordinator"
    )
    parser.add_argument(
        "--interface", metavar="NAME", help="count the bytes that this host receives on it, such as eth0 (Linux)"
    )
    shared.add_schemes(parser, zen.schemes.names(), f"schemes to time besides {BASELINE}")
    parser.add_argument(
        "--repeats",
        type=number,
        metavar="N",
        help=f"timed calls, at least one for each file (default: {REPEATS}, or as many as there are files)",
    )
    parser.add_argument(
        "--gbps", type=shared.between(*GBPS), help="bandwidth to estimate with, in Gbit/s (default: measured)"
    )
    parser.add_argument(
        "--latency-us",
        type=shared.between(*LATENCY_US),
        metavar="US",
        help="latency to estimate with (default: measured)",
    )
    parser.add_argument(
        "--save-cluster",
        type=Path,
        metavar="FILE",
        help="write the links, and the kernels if measured, for plan --cluster",
    )
    output.add_json(parser)
    output.add_plot(parser)


def run(options: argparse.Namespace) -> output.Result | None:
    place = _find_place(options)
    if (options.gbps is None) != (options.latency_us is None):
        raise ValueError("--gbps and --latency-us go together. Leave both out to measure the links.")
    if options.interface is not None and place is None:
        raise ValueError("--interface counts bytes between hosts. Leave it out, or give --launch-on or --coordinator.")
    if options.launch_on is not None:
        if options.launch_index is None:
            launch.run_on(options.launch_on, options.arguments)
            return None
        launch.end_with_starter()
    if options.interface is not None:
        workers.received_bytes(options.interface)
    chosen = {name: value for name in MADE_UP if (value := getattr(options, name)) is not None}
    if options.gradients and chosen:
        raise ValueError(f"--{min(chosen)} is for made-up gradients. Leave it out, or the files.")
    steps = gradients.read(options.gradients)
    repeats = options.repeats or max(REPEATS, len(steps))
    if repeats < len(steps):
        raise ValueError(f"--repeats {repeats} would leave some of the {len(steps)} files out. Give at least as many.")
    if place is not None:
        output.say("waiting for the other processes, for at most five minutes")
        workers.join(place)
        mesh = workers.make_mesh(None)
    else:
        mesh = workers.make_mesh(options.workers or (gradients.workers(steps[0]) if steps else WORKERS))
    if mesh.size < 2:
        raise ValueError("there is only one worker, so nothing to synchronise. Use at least two.")
    if not steps:
        wanted = MADE_UP | chosen
        if wanted["rows"] * wanted["columns"] < mesh.size:
            raise ValueError(
                f"--rows {wanted['rows']} and --columns {wanted['columns']} make gradients of fewer elements than "
                f"workers, {mesh.size}. Use larger ones."
            )
        steps = [gradients.synthetic(mesh.size, **wanted)]
    if gradients.workers(steps[0]) != mesh.size:
        held = gradients.workers(steps[0])
        raise ValueError(
            f"the gradients are those of {held} workers, but there are {mesh.size}. Give one slice for each."
        )
    say = output.say if jax.process_index() == 0 else lambda line: None
    with output.chatter_to_stderr():  # gloo's
        return _bench(steps, mesh, repeats, options, say)


def _find_place(options: argparse.Namespace) -> workers.Place | None:
    if options.workers is not None and options.coordinator is not None:
        raise ValueError("--workers are devices of this process. Give it or --coordinator, not both.")
    if options.launch_on is None:
        alone = options.workers is not None
        return workers.find_place(options.coordinator, options.num_processes, options.process_id, alone=alone)
    if options.num_processes is not None or options.process_id is not None:
        raise ValueError("--launch-on numbers the processes. Leave out --num-processes and --process-id.")
    coordinator = options.coordinator or launch.coordinator(options.launch_on)
    return workers.find_place(coordinator, len(options.launch_on), options.launch_index or 0, alone=False)


def _bench(
    steps: Sequence[Mapping[str, np.ndarray]],
    mesh: Mesh,
    repeats: int,
    options: argparse.Namespace,
    say: Callable[[str], None],
) -> output.Result | None:
    say(f"profiling the gradients of {mesh.size} workers")
    profile = zen.profile(*steps)
    schemes = tuple(dict.fromkeys((BASELINE, *options.schemes)))
    links = {"gbps": options.gbps, "latency_us": options.latency_us}
    counted = options.interface is not None
    zen.check_agreement(profile=profile, schemes=schemes, repeats=repeats, interface_given=counted, **links)
    if options.gbps is None:
        say("measuring links and kernels")
        cluster = zen.calibrate(mesh, workers.AXIS)
    else:
        cluster = zen.Cluster(*even_hosts(mesh.size, count_hosts(mesh)), options.gbps, latency_us=options.latency_us)
    if options.save_cluster and jax.process_index() == 0:
        with output.writing(options.save_cluster):
            cluster.save(options.save_cluster)
    estimate = zen.estimate(profile, cluster)
    double = any(leaf.dtype == np.float64 for leaf in steps[0].values())
    with jax.enable_x64(double):
        placed = [workers.place_stack(step, mesh) for step in steps]
        cases = [Scheme(name, estimate, placed, mesh) for name in schemes]
        timings = time_cases(
            cases,
            gather=workers.gather,
            steps=len(steps),
            repeats=repeats,
            received=partial(workers.received_bytes, options.interface) if counted else None,
            report=say,
        )
    if jax.process_index() > 0:
        return None
    choice = {name: leaf.scheme for name, leaf in zen.plan(profile, cluster).leaves.items()}
    return bench_report.result(timings, estimate, cluster, choice, BASELINE)


class Scheme:
    """A case of `time_cases`: reduces a tree's leaves by `zen_jax.all_reduce`, each as estimated for a scheme."""

    def __init__(self, name: str, estimate: zen.Estimate, placed: Sequence[Mapping[str, Any]], mesh: Mesh) -> None:
        self.name, self._placed = name, placed
        options = {leaf: each.candidate.options for leaf, each in estimate.under(name).items()}

        def reduce(stacked: Mapping[str, Any]) -> Any:
            reduced, infos = {}, []
            for leaf, stack in stacked.items():
                reduced[leaf], info = zen.all_reduce(stack[0], workers.AXIS, return_info=True, **options[leaf])
                infos.append(info)
            return reduced, zen.total(infos)

        mapped = jax.shard_map(
            reduce, mesh=mesh, in_specs=PartitionSpec(workers.AXIS), out_specs=PartitionSpec(), check_vma=False
        )
        self._step = jax.jit(mapped)

    def prepare(self, step: int) -> Callable[[], Any]:
        return lambda: jax.block_until_ready(self._step(self._placed[step]))

    def info(self, result: Any) -> dict[str, float]:
        return {key: float(value.addressable_data(0)) for key, value in result[1]._asdict().items()}
