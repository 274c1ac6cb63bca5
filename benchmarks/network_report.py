"""Rows, table and plot of what benchmarks.network measured.

    python -m benchmarks.network_report benchmarks/results/network_grid.json

prints what a plan would have chosen in each setting, and how far off estimates were.
"""

import argparse
import json
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from benchmarks import group, measure
from benchmarks.emulated_hosts import rate_in_bits
from benchmarks.figures import drawing
from benchmarks.processes import run_main
from zen_jax.planning.plan import WORKER_ORDER_SCHEMES

DENSE = "dense"
CONSIDERED = (DENSE, *WORKER_ORDER_SCHEMES)  # psum stands for dense_ordered, which a plan considers by default
CHOICE, ESTIMATE = 0.05, 0.15  # targets: how much slower than the fastest, and how far off


def read(files: Sequence[Path]) -> list[dict[str, Any]]:
    """All rows of the JSON files of benchmarks.network; a ValueError names a file that is none."""
    found = []
    for file in files:
        try:
            rows = json.loads(file.read_text())["rows"]
            measured = all({"workload", "rate", "case", "median_ms"} <= row.keys() for row in rows)
        except (ValueError, LookupError, TypeError, AttributeError):
            measured = False
        if not measured:
            raise ValueError(f"{file} is not what benchmarks.network wrote with --json")
        found += rows
    return found


def rows(records: Sequence[dict[str, Any]], workload: str, bound: float) -> list[dict[str, Any]]:
    """One row for each case and rate of one number of hosts.

    Args:
      records: what rank 0 of each group printed, including the rate `group.UNLIMITED` where there is one.
      workload: its name.
      bound: least bytes that a worker receives.

    Returns:
      Rows with times in ms and bytes in MB (10^6). "options" are what the planner chose at this rate;
      "first_call_s" is of those that it tried first. "compute_share" is the time on an unlimited link, with the same
      options, over the time at the rate: kernels, packing and the operating system's copies. "speed_up" is over dense,
      and "of_bytes" its share of what the bytes on the wire would allow.
    """
    unlimited = {record["case"]: record for record in records if record["rate"] == group.UNLIMITED}
    limited = [record for record in records if record["rate"] != group.UNLIMITED]
    dense = {record["rate"]: record for record in limited if record["case"] == DENSE}
    found = []
    for record in limited:
        seconds, info = record["seconds"], record["info"]
        row = {"workload": workload, "n": record["n"], "rate": record["rate"], "case": record["case"]}
        row |= {f"{which}_ms": seconds[which] * 1e3 for which in ("median", "min", "max")}
        row["all_ms"] = [each * 1e3 for each in seconds["all"]]
        row |= {"wire_MB": record["received"] / 1e6, "wire_over_bound": record["received"] / bound}
        row["wire_imbalance"] = record["busiest"] / record["received"]
        row["bound_ms"] = bound * 8 / rate_in_bits(record["rate"]) * 1e3
        row["first_call_s"] = record["first_call"]
        if info:
            row["info_MB"] = (info["bytes_pushed"] + info["bytes_pulled"]) / 1e6
            row |= {key: info[key] for key in ("imbalance_push", "imbalance_pull", "rounds", "dense_taken")}
        free = unlimited.get(record["case"])
        if free and free.get("options") == record.get("options"):
            row["compute_share"] = min(1.0, free["seconds"]["median"] / seconds["median"])
        if record["rate"] in dense:
            slow = dense[record["rate"]]
            row["speed_up"] = slow["seconds"]["median"] / seconds["median"]
            row["of_bytes"] = row["speed_up"] / (slow["received"] / record["received"])
        if "options" in record:
            row["options"] = record["options"]
        if "estimate" in record:
            row["estimate_ms"] = record["estimate"] * 1e3
        found.append(row)
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as text; `*` marks what a plan would choose by default."""
    printed, chosen = [], [planned for planned, _ in _choices(rows)]
    for row in rows:
        cells = {key: row[key] for key in ("workload", "n", "rate")}
        cells["case"] = row["case"] + " *" * (row in chosen)
        cells["ms (min-max)"] = "{median_ms:.0f} ({min_ms:.0f}-{max_ms:.0f})".format(**row)
        wanted = {
            "estimate": ("estimate_ms", ".0f"),
            "bound": ("bound_ms", ".0f"),
            "wire MB": ("wire_MB", ".2f"),
            "info MB": ("info_MB", ".2f"),
            "wire/bound": ("wire_over_bound", ".2f"),
            "push": ("imbalance_push", ".2f"),
            "pull": ("imbalance_pull", ".2f"),
            "compute": ("compute_share", ".0%"),
            "speed-up": ("speed_up", ".2f"),
            "of bytes": ("of_bytes", ".0%"),
        }
        cells |= {title: format(row[key], style) if key in row else "" for title, (key, style) in wanted.items()}
        printed.append(cells)
    return measure.table(printed)


def choices(rows: Sequence[dict[str, Any]]) -> str:
    """For each workload, number of hosts and rate: what a plan would choose by default, and the fastest of these."""
    printed = []
    for planned, fastest in _choices(rows):
        cells = {key: planned[key] for key in ("workload", "n", "rate")}
        cells |= {"planned": planned["case"], "fastest": fastest["case"]}
        cells["speed-up"] = format(planned["speed_up"], ".3g") if "speed_up" in planned else ""
        printed.append(cells | {"planned / fastest": f"{planned['median_ms'] / fastest['median_ms']:.3f}"})
    return measure.table(printed) if printed else ""


def accuracy(rows: Sequence[dict[str, Any]]) -> str:
    """How many choices and estimates are as good as they should be, and how far off estimates are."""
    found = _choices(rows)
    good = sum(planned["median_ms"] <= (1 + CHOICE) * fastest["median_ms"] for planned, fastest in found)
    printed = []
    for case in dict.fromkeys(row["case"] for row in rows if "estimate_ms" in row):
        off = [row["estimate_ms"] / row["median_ms"] - 1 for row in rows if row["case"] == case]
        within = f"{sum(abs(each) <= ESTIMATE for each in off)} of {len(off)}"
        cells = {"estimates of": case, f"within {ESTIMATE:.0%}": within}
        printed.append(cells | {"from": f"{min(off):+.0%}", "to": f"{max(off):+.0%}"})
    return f"planned within {CHOICE:.0%} of the fastest: {good} of {len(found)}\n{measure.table(printed)}"


def _choices(rows: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Of each workload, number of hosts and rate, the rows with the lowest estimate and the lowest time."""
    settings: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if "estimate_ms" in row and row["case"] in CONSIDERED:
            settings.setdefault((row["workload"], row["n"], row["rate"]), []).append(row)
    lowest = lambda here, key: min(here, key=itemgetter(key))
    return [(lowest(here, "estimate_ms"), lowest(here, "median_ms")) for here in settings.values()]


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Plots median times as bars with their extremes, one panel for each number of hosts and rate, to a PNG."""
    drawing.save(_draw, rows, path)


def _draw(rows: Sequence[dict[str, Any]], figure: Any) -> None:
    panels = list(dict.fromkeys((row["workload"], row["n"], row["rate"]) for row in rows))
    figure.set_size_inches(5 * len(panels), 4)
    for panel, axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
        here = [row for row in rows if (row["workload"], row["n"], row["rate"]) == panel]
        here.sort(key=lambda row: -row["median_ms"])
        medians = [row["median_ms"] for row in here]
        spread = [[abs(row["median_ms"] - row[end]) for row in here] for end in ("min_ms", "max_ms")]
        axes.barh([row["case"] for row in here], medians, xerr=spread)
        axes.axvline(here[0]["bound_ms"], color="black", linestyle=":", label="lower bound")
        axes.set(xscale="log", xlabel="ms", title="{}, n = {}, {}".format(*panel))
        axes.legend()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="what benchmarks.network wrote with --json")
    rows = read(parser.parse_args().results)
    print(f"{choices(rows)}\n\n{accuracy(rows)}")


if __name__ == "__main__":
    run_main(main)
