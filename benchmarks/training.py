"""Trains the examples on emulated hosts with rate-limited links, and compares the schemes by their training throughput.

    python -m benchmarks.training --data path/to/data --examples lm deepfm --hosts 4 8 --json build/training.json

As in figures 11 and 13 of ZEN's paper, links have a rate at which a dense all-reduce spends most of a step, but not all
of it, in communication; the rate is derived from a run with unlimited links. Needs root on Linux. Unlike real hosts,
emulated ones share this machine's cores, so a scheme's computation weighs more here.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from benchmarks import measure
from benchmarks.emulated_hosts import Host, emulated_hosts, set_rate
from benchmarks.processes import PORT, run_group, run_main
from zen_jax.cli.options import at_least

DATA = {
    "lm": "gutenberg_lm",
    "deepfm": "nycflights_ctr",
    "nmt": "tatoeba_fra_eng",
    "transformer": "gutenberg_lm",
    "text_classification": "goemotions",
}
"""The examples, and the data set of each."""

SCHEMES = ("dense", "planned", "zen", "agsparse", "sparcml", "omnireduce")


def train(example: str, data: Path, hosts: Sequence[Host], scheme: str, steps: int) -> dict[str, Any]:
    """The summary of an example's run, one worker per host, in processes of its own: others leave no trace."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", f"examples.{example}.main", "--data", str(data / DATA[example]), "--out", out]
        command += ["--sync", scheme, "--steps", str(steps), "--num-processes", str(len(hosts))]
        command += ["--coordinator", f"{hosts[0].address}:{PORT}", "--process-id"]
        run_group([host.command([*command, str(rank)]) for rank, host in enumerate(hosts)])
        (run,) = json.loads((Path(out) / "summary.json").read_text())["runs"]
    return run


def compare(example: str, n: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each scheme."""
    with emulated_hosts(n) as hosts:
        unlimited = train(example, options.data, hosts, "dense", options.steps)
        # At this rate, what dense sends in a step takes `dense_share` of it.
        sending = unlimited["step_seconds"] * options.dense_share / (1 - options.dense_share)
        rate = f"{max(1, round(8e-6 * unlimited['bytes_per_step'] / sending))}mbit"
        set_rate(hosts, rate)
        runs: dict[str, list[dict[str, Any]]] = {scheme: [] for scheme in options.schemes}
        for _ in range(options.repeats):  # in turns: a machine's speed changes over minutes
            for scheme, found in runs.items():
                found.append(train(example, options.data, hosts, scheme, options.steps))
    seconds = {scheme: statistics.median(run["step_seconds"] for run in found) for scheme, found in runs.items()}
    return [
        {
            "example": example,
            "n": n,
            "rate": rate,
            "scheme": scheme,
            "s/step": round(seconds[scheme], 4),
            "of each run": " ".join(f"{run['step_seconds']:.4f}" for run in found),
            f"{found[0]['items']}/s": round(found[0]["items_per_second"] * found[0]["step_seconds"] / seconds[scheme]),
            "over dense": round(seconds["dense"] / seconds[scheme], 2),
            "MB/step": round(found[0]["bytes_per_step"] / 1e6, 3),
            "in communication": round(1 - unlimited["step_seconds"] / seconds[scheme], 2) if scheme == "dense" else "",
        }
        for scheme, found in runs.items()
    ]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the data sets' folders")
    parser.add_argument("--examples", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument(
        "--hosts", type=at_least(2), nargs="+", default=[4, 8], help="numbers of hosts, one worker each"
    )
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES))
    parser.add_argument(
        "--steps", type=at_least(8), default=16, help="the second half counts; a plan is made in the fifth"
    )
    parser.add_argument("--repeats", type=at_least(1), default=1, help="runs of each scheme; their median counts")
    parser.add_argument("--dense-share", type=float, default=0.67, help="share of a dense step that is communication")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not 0 < options.dense_share < 1:
        parser.error(f"--dense-share {options.dense_share} must be above 0 and below 1")
    if "dense" not in options.schemes:
        parser.error("--schemes must include dense")
    return options


def main() -> None:
    options = parse()
    jax.config.update("jax_platforms", "cpu")  # as in all processes that it starts
    setting = {"environment": measure.environment(), "steps": options.steps, "repeats": options.repeats}
    rows: list[dict[str, Any]] = []
    for example in options.examples:
        for n in options.hosts:
            rows += compare(example, n, options)
            measure.write_json(options.json, setting | {"rows": rows})  # first: a reader may have closed the pipe
            print(measure.table(rows[-len(options.schemes) :]), flush=True)


if __name__ == "__main__":
    run_main(main)
