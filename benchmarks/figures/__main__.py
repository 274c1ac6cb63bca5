"""Reproduces a figure of ZEN's paper as NAME.png, NAME.json and a table, NAME.md.

python -m benchmarks.figures characteristics --data path/to/data --out build/figures
python -m benchmarks.figures speedups --network build/network.json
"""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

from benchmarks import measure, workloads
from benchmarks.figures import (
    breakdown,
    breakdown_measured,
    characteristics,
    formats,
    imbalance,
    schemes,
    skewness,
    speedups,
    strawmen,
)
from benchmarks.figures.drawing import markdown, save
from benchmarks.processes import run_main
from zen_jax.cli.options import at_least

FIGURES = {
    "characteristics": characteristics,  # Fig. 2
    "skewness": skewness,  # Fig. 3
    "schemes": schemes,  # Fig. 8
    "speedups": speedups,  # Fig. 15
    "formats": formats,  # Fig. 17a
    "breakdown": breakdown,  # Fig. 17b
    "breakdown_measured": breakdown_measured,
    "imbalance": imbalance,
    "strawmen": strawmen,  # section 3, Algorithm 3
}
FROM_NETWORK = ("speedups", "breakdown_measured")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[*FIGURES, "all"], help="all: without --network, all but the measured ones")
    parser.add_argument("--data", type=Path, help="folder that holds the data sets' folders")
    parser.add_argument("--network", type=Path, nargs="+", help="JSON of benchmarks.network, for measured figures")
    parser.add_argument("--workloads", nargs="+", default=list(workloads.DATA_SETS), help="default: all data sets")
    parser.add_argument("--steps", type=at_least(1), default=2, help="steps that figures average over")
    parser.add_argument("--out", type=Path, default=Path("build/figures"))
    options = parser.parse_args()
    if options.name in FROM_NETWORK and not options.network:
        parser.error(f"{options.name} needs --network FILE, which benchmarks.network --json writes")
    if find_spec("matplotlib") is None:
        parser.error("figures need matplotlib: pip install matplotlib")
    return options


def main() -> None:
    options = parse()
    skipped = () if options.network else FROM_NETWORK
    names = [name for name in FIGURES if name not in skipped] if options.name == "all" else [options.name]
    for name in names:
        figure = FIGURES[name]
        rows = figure.rows(options)
        if not rows:
            print(f"{name} is left out: no run in --network has its cases", file=sys.stderr)
            continue
        measure.write_json(options.out / f"{name}.json", {"figure": figure.__doc__.splitlines()[0], "rows": rows})
        (options.out / f"{name}.md").write_text(markdown(rows))
        save(figure.draw, rows, options.out / f"{name}.png")
        print(f"{options.out / name}.png, .json, .md")


if __name__ == "__main__":
    run_main(main)
