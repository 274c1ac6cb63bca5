"""Measures every scheme, and peers, on the same gradients over a real or an emulated network.

    python -m benchmarks.network --workloads synthetic:0.01 --hosts 4 --rate 200mbit          # as root on Linux
    python -m benchmarks.network --data path/to/data --workloads gutenberg_lm --hosts 4 8 --rate 100mbit 200mbit \\
        --peer-python path/to/python-with-torch --json build/network.json --plot build/network.png
    python -m benchmarks.network --workloads synthetic:0.01 --hosts 4 --rate 10gbit \\
        --coordinator host0:7700 --process-id 0 --interface eth0    # once on each of 4 hosts, with its own id

Messages are planned on the steps before those that are measured, and every result is checked against the exact sum.
Choose a rate low enough for sending to outweigh computing: unlike real hosts, emulated ones share this machine's cores.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np

import zen_jax as zen
from benchmarks import group, measure, network_report, workloads
from benchmarks.emulated_hosts import Host, emulated_hosts, rate_in_bits, set_rate
from benchmarks.exact import ITEMSIZE, lower_bound
from benchmarks.network_tables import table_names
from benchmarks.peers import PEERS, Peer
from benchmarks.problem import Problem
from benchmarks.processes import PORT, ProcessesError, run_group, run_main
from zen_jax.cli.options import at_least
from zen_jax.cli.workers import received_bytes
from zen_jax.planning.costs import candidates

PLAN_STEPS = 2
HASH_BITMAP = "zen, elements, hash bitmap"
ABLATION = {
    "sparse_ps, elements": {"scheme": "sparse_ps", "unit": 1},
    "zen, elements, COO pull": {"scheme": "zen", "unit": 1, "push_format": "coo", "pull_format": "coo"},
    HASH_BITMAP: {"scheme": "zen", "unit": 1, "push_format": "coo", "pull_format": "hash_bitmap"},
}
"""The paper's own steps, from contiguous servers to hashed ones to hash bitmaps, with an index for every element."""
VARIANTS = {
    "zen, elements, murmur": {"hash": "murmur"},
    "zen, elements, bitmap push": {"push_format": "bitmap"},
    "zen, elements, bitmap pull": {"pull_format": "bitmap"},
    "zen, elements, dense pull": {"pull_format": "dense"},
}
"""What else the last of these steps could use; the planner knows neither MurmurHash nor bitmap pulls."""


def make_problem(
    workload: workloads.Workload, n: int, wanted: Mapping[str, Mapping[str, Any]], steps: int, gbps: float, folder: Path
) -> Problem:
    """Gradients of `steps` steps for n workers, and each case's keywords as planned on the steps before.

    A case has all of the planner's candidates that match what `wanted` says about it, the fastest on links of `gbps`
    first. The profile of the planning steps goes into `folder`: workers estimate on links that they calibrate, and take
    the candidate that is the fastest there.
    """

    def indicator(step: int) -> np.ndarray:
        return np.repeat(workload.touched(n, step)[:, :, None], workload.columns, axis=2).astype(np.float32)

    profile = zen.profile(*map(indicator, range(PLAN_STEPS)))
    profile.save(folder / "profile.json")
    cluster, known = zen.Cluster(n, inter_gbps=gbps), list(candidates(profile.leaves["(array)"], n))
    cases = {}
    for name, fixed in wanted.items():
        fitting = [each for each in known if all(getattr(each, key) == value for key, value in fixed.items())]
        if fitting:
            cases[name] = [each.options for each in sorted(fitting, key=lambda each: each.seconds(cluster, n))]
        else:
            print(f"{name} is left out: it cannot run on this gradient", file=sys.stderr)
    if HASH_BITMAP in cases:
        (planned,) = cases[HASH_BITMAP]
        cases |= {name: [planned | change] for name, change in VARIANTS.items()}
    touched = np.stack([workload.touched(n, PLAN_STEPS + step) for step in range(steps)])
    return Problem(touched, workload.columns, {"cases": cases, "profile": str(folder / "profile.json")})


def planned_tables(workload: workloads.Workload, n: int, gbps: float, folder: Path) -> dict[str, Any]:
    """Notes for a problem whose tables are to be timed as the leaves of a tree, too: their rows, and a plan for it."""

    def indicators(step: int) -> dict[str, np.ndarray]:
        tables = np.split(workload.touched(n, step), np.cumsum(workload.tables)[:-1], axis=1)
        wide = [np.repeat(table[:, :, None], workload.columns, axis=2).astype(np.float32) for table in tables]
        return dict(zip(table_names(workload.tables), wide, strict=True))

    plan = zen.plan(zen.profile(*map(indicators, range(PLAN_STEPS))), zen.Cluster(n, inter_gbps=gbps))
    plan.save(folder / "plan.json")
    return {"tables": workload.tables, "plan": str(folder / "plan.json")}


def measure_emulated(options: argparse.Namespace, peers: Iterable[str], problem: Path, n: int) -> list[dict[str, Any]]:
    """Records of all schemes and peers on n emulated hosts, without a limit and at every rate.

    A peer that fails is left out, because hours of measurements may precede it.
    """
    shared = ["--problem", str(problem), "--repeats", str(options.repeats), "--rates", group.UNLIMITED, *options.rate]
    with emulated_hosts(n) as hosts:
        records = run_group(_one_a_host("benchmarks.network_worker", sys.executable, hosts, shared, PORT))
        for port, name in enumerate(peers, PORT + 1):
            set_rate(hosts, None)
            peer, python = PEERS[name], options.peer_python
            if peer.powers_of_two and n & (n - 1):
                print(f"{name} is left out: it takes 2, 4, 8, ... processes, not {n}", file=sys.stderr)
                continue
            try:
                if peer.launched_by_mpi:
                    records += run_group([_mpiexec(peer, python, hosts, shared)])
                else:
                    records += run_group(_one_a_host(peer.module, python, hosts, shared, port))
            except ProcessesError as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
    return records


def measure_given(options: argparse.Namespace, problem: Path) -> list[dict[str, Any]]:
    """Records of all schemes on hosts that the caller started, run on one of them; empty except on the first."""
    place = ["--coordinator", options.coordinator, "--process-id", str(options.process_id)]
    shared = ["--problem", str(problem), "--repeats", str(options.repeats), "--interface", options.interface]
    records = run_group([[sys.executable, "-m", "benchmarks.network_worker", *shared, *place]])
    return [record | {"rate": options.rate[0]} for record in records]


def _one_a_host(module: str, python: str, hosts: Sequence[Host], shared: Sequence[str], port: int) -> list[list[str]]:
    place = ["--coordinator", f"{hosts[0].address}:{port}"]
    command = [python, "-m", module, *shared, *place]
    return [host.command([*command, "--process-id", str(index)]) for index, host in enumerate(hosts)]


def _mpiexec(peer: Peer, python: str, hosts: Sequence[Host], shared: Sequence[str]) -> list[str]:
    mpiexec = shutil.which("mpiexec", path=str(Path(python).parent)) or shutil.which("mpiexec")
    if mpiexec is None:
        raise ProcessesError(f"{peer.module} needs mpiexec beside {python} or on PATH: pip install mpich")
    parts = [["-n", "1", *host.command([python, "-m", peer.module, *shared])] for host in hosts]
    return [mpiexec, *parts[0], *(word for part in parts[1:] for word in (":", *part))]


def installed_peers(python: str, names: Iterable[str]) -> dict[str, str]:
    """Those of the peers whose packages `python` has, with the packages' versions; reports the others."""
    installed = {}
    for name in names:
        package = PEERS[name].package
        command = [python, "-c", f"import {package}; print({package}.__version__)"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            installed[name] = f"{package} {done.stdout.strip()}"
        else:
            print(f"peer {name} is left out: {python} has no {package}", file=sys.stderr)
    return installed


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=["gutenberg_lm"], help="data sets, or synthetic:DENSITY")
    parser.add_argument("--data", type=Path, help="folder that holds the data sets' folders")
    parser.add_argument("--hosts", type=at_least(2), nargs="+", default=[4], help="numbers of hosts, one worker each")
    parser.add_argument(
        "--rate",
        nargs="+",
        default=["200mbit"],
        help="rates of every link, each way: 100mbit, or 100mbit+2ms with a latency",
    )
    parser.add_argument("--schemes", nargs="+", default=["all"], choices=["all", *zen.schemes.names()])
    parser.add_argument("--ablation", action="store_true", help="also time zen part by part, with element units")
    parser.add_argument("--by-table", action="store_true", help="also time a workload's tables as the leaves of a tree")
    parser.add_argument("--peers", nargs="*", choices=PEERS, help="default: those that --peer-python has")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter with the peers' packages")
    parser.add_argument(
        "--repeats", type=at_least(1), default=3, help="timed calls, each with a different step's gradients"
    )
    parser.add_argument("--coordinator", help="HOST:PORT of process 0, on given hosts; --rate gives their links' rate")
    parser.add_argument("--process-id", type=at_least(0), help="index of this host, with --coordinator")
    parser.add_argument("--interface", default="eth0", help="this host's network interface, with --coordinator")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="PNG of the times; needs matplotlib")
    options = parser.parse_args()
    if "all" in options.schemes:
        options.schemes = list(zen.schemes.names())
    if (options.coordinator is None) != (options.process_id is None):
        parser.error("--coordinator and --process-id go together")
    if options.coordinator and (len(options.hosts), len(options.rate)) != (1, 1):
        parser.error("--coordinator takes a single number in --hosts and a single --rate")
    if options.coordinator and options.process_id >= options.hosts[0]:
        parser.error(f"--process-id {options.process_id} must be below --hosts {options.hosts[0]}")
    if options.coordinator and not re.fullmatch(r".+:\d+", options.coordinator):
        parser.error(f"--coordinator {options.coordinator!r} must be HOST:PORT of process 0")
    if options.coordinator and options.peers:
        parser.error("peers run on emulated hosts only: leave out --peers or --coordinator")
    if options.plot and find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install matplotlib")
    if options.coordinator:
        received_bytes(options.interface)
    for rate in options.rate:
        rate_in_bits(rate)
    return options


def measure_workload(
    options: argparse.Namespace, peers: Iterable[str], workload: workloads.Workload, n: int
) -> list[dict[str, Any]]:
    """The report's rows about one workload on n hosts."""
    wanted = {scheme: {"scheme": scheme} for scheme in options.schemes} | (ABLATION if options.ablation else {})
    gbps = min(map(rate_in_bits, options.rate)) / 1e9
    with tempfile.TemporaryDirectory() as folder:
        problem = make_problem(workload, n, wanted, options.repeats, gbps, Path(folder))
        if options.by_table:
            problem.notes.update(planned_tables(workload, n, gbps, Path(folder)))
        path = Path(folder) / "problem.npz"
        problem.save(path)
        given = options.coordinator is not None
        records = measure_given(options, path) if given else measure_emulated(options, peers, path, n)
    bound = float(np.mean([lower_bound(step, workload.columns * ITEMSIZE) for step in problem.touched]))
    return network_report.rows(records, workload.name, bound)


def main() -> None:
    options = parse()
    jax.config.update("jax_platforms", "cpu")  # as in all processes that it starts
    loaded = [workloads.load(name, options.data) for name in options.workloads]
    for workload in loaded:
        if options.by_table and not workload.tables:
            raise ValueError(f"workload {workload.name!r} is a single table: leave out --by-table.")
    peers = {}
    if options.coordinator is None:
        peers = installed_peers(options.peer_python, PEERS if options.peers is None else options.peers)
    setting = {"environment": measure.environment(), "peers": peers, "repeats": options.repeats}
    rows = []
    for workload in loaded:
        for n in options.hosts:
            found = measure_workload(options, peers, workload, n)
            if not found:  # another process reports
                continue
            rows += found
            measure.write_json(options.json, setting | {"rows": rows})  # first: a reader may have closed the pipe
            print(network_report.table(found), flush=True)
    if rows:
        print(network_report.choices(rows))
        if options.plot:
            network_report.plot(rows, options.plot)


if __name__ == "__main__":
    run_main(main)
