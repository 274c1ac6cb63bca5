"""Rows, table and plot of what benchmarks.network measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import group, measure
from benchmarks.emulated_hosts import rate_in_bits
from benchmarks.figures import drawing

DENSE = "dense"


def rows(records: Sequence[dict[str, Any]], workload: str, bound: float) -> list[dict[str, Any]]:
    """One row for each case and rate of one number of hosts.

    Args:
      records: what rank 0 of each group printed, including the rate `group.UNLIMITED` where there is one.
      workload: its name.
      bound: least bytes that a worker receives.

    Returns:
      Rows with times in ms and bytes in MB (10^6). "compute_share" is the time on an unlimited link over the time at
      the rate: kernels, packing and the operating system's copies. "speed_up" is over dense, and "of_bytes" its share
      of what the bytes on the wire would allow.
    """
    unlimited = {record["case"]: record["seconds"]["median"] for record in records if record["rate"] == group.UNLIMITED}
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
        if record["case"] in unlimited:
            row["compute_share"] = min(1.0, unlimited[record["case"]] / seconds["median"])
        if record["rate"] in dense:
            slow = dense[record["rate"]]
            row["speed_up"] = slow["seconds"]["median"] / seconds["median"]
            row["of_bytes"] = row["speed_up"] / (slow["received"] / record["received"])
        if "estimate" in record:
            row |= {"estimate_ms": record["estimate"] * 1e3, "planned": record["planned"]}
        found.append(row)
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as text; `*` marks what the planner would choose."""
    printed = []
    for row in rows:
        cells = {key: row[key] for key in ("workload", "n", "rate")}
        cells["case"] = row["case"] + " *" * row.get("planned", False)
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
    """For each workload, number of hosts and rate: what the planner would choose, and the fastest that it knows."""
    printed = []
    known = [row for row in rows if "planned" in row]
    for where in dict.fromkeys((row["workload"], row["n"], row["rate"]) for row in known):
        here = [row for row in known if (row["workload"], row["n"], row["rate"]) == where]
        chosen, fastest = next(row for row in here if row["planned"]), min(here, key=lambda row: row["median_ms"])
        cells = dict(zip(("workload", "n", "rate"), where, strict=True))
        cells |= {"planned": chosen["case"], "fastest": fastest["case"]}
        printed.append(cells | {"planned / fastest": f"{chosen['median_ms'] / fastest['median_ms']:.2f}"})
    return measure.table(printed) if printed else ""


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
