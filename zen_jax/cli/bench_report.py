"""The report of `bench` on its timings: a table, JSON and a figure."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax

import zen_jax as zen
from zen_jax.cli.output import Result
from zen_jax.cli.timing import Timing
from zen_jax.planning.table import table


def result(
    timings: Sequence[Timing], estimate: zen.Estimate, cluster: zen.Cluster, choice: Mapping[str, str], baseline: str
) -> Result:
    """Timings by scheme, fastest first, next to the estimates; speed-ups are over the scheme `baseline`."""
    document = _document(timings, estimate, cluster, choice, baseline)
    return Result(_text(document), document, lambda figure: _draw(document, figure))


def _document(
    timings: Sequence[Timing], estimate: zen.Estimate, cluster: zen.Cluster, choice: Mapping[str, str], baseline: str
) -> dict[str, Any]:
    slow = next(timing.median for timing in timings if timing.name == baseline)
    schemes = [
        {
            "scheme": timing.name,
            "seconds": {
                "median": timing.median,
                "min": min(timing.seconds),
                "max": max(timing.seconds),
                "all": timing.seconds,
            },
            "first_call": timing.first_call,
            "received": timing.received,
            "bytes": timing.info["bytes_pushed"] + timing.info["bytes_pulled"],
            "estimate": estimate.total(timing.name).seconds,
            "speed_up": slow / timing.median,
            "info": timing.info,
        }
        for timing in sorted(timings, key=lambda timing: timing.median)
    ]
    return {
        "n": estimate.n,
        "processes": jax.process_count(),
        "platform": jax.default_backend(),
        "cluster": dataclasses.asdict(cluster),
        "schemes": schemes,
        "lower bound": estimate.bound.to_json(),
        "choice": dict(choice),
    }


def _text(document: Mapping[str, Any]) -> str:
    rows = [("scheme", "ms", "min", "max", "MB", "wire MB", "imbalance", "estimated ms", "speed-up")]
    for row in document["schemes"]:
        times = [f"{row['seconds'][which] * 1e3:.2f}" for which in ("median", "min", "max")]
        ratios = [row["info"][f"imbalance_{way}"] for way in ("push", "pull")]
        imbalance = ", ".join(f"{ratio:.2f}" for ratio in ratios if ratio)
        numbers = (f"{row['estimate'] * 1e3:.2f}", f"{row['speed_up']:.2f}")
        sizes = (f"{row['bytes'] / 1e6:.3f}", "" if row["received"] is None else f"{row['received'] / 1e6:.3f}")
        rows.append((row["scheme"], *times, *sizes, imbalance, *numbers))
    bound = document["lower bound"]
    rows.append(("lower bound", "", "", "", f"{bound['bytes'] / 1e6:.3f}", "", "", f"{bound['seconds'] * 1e3:.2f}", ""))
    several = document["processes"] > 1
    where = f"{document['processes']} processes" if several else "one process: memory, no network"
    what = "median ms, MB pushed and pulled by each, MB received by --interface, imbalance of push and pull"
    lines = [f"{document['n']} {document['platform']} workers, {where}; {what}"]
    lines += [table(rows), f"a plan would choose: {_chosen(document['choice'])}"]
    return "\n".join(lines)


def _chosen(choice: Mapping[str, str]) -> str:
    leaves: dict[str, list[str]] = {}
    for leaf, scheme in choice.items():
        leaves.setdefault(scheme, []).append(leaf)
    return "; ".join(f"{scheme} for {', '.join(some)}" for scheme, some in leaves.items())


def _draw(document: Mapping[str, Any], figure: Any) -> None:
    """Median times as bars with their extremes, and the estimates."""
    rows = document["schemes"][::-1]
    names, medians = [row["scheme"] for row in rows], [row["seconds"]["median"] * 1e3 for row in rows]
    spread = [[abs(row["seconds"][end] - row["seconds"]["median"]) * 1e3 for row in rows] for end in ("min", "max")]
    axes = figure.subplots()
    axes.barh(names, medians, xerr=spread, label="measured")
    axes.plot([row["estimate"] * 1e3 for row in rows], names, "kx", label="estimated")
    axes.axvline(document["lower bound"]["seconds"] * 1e3, color="black", linestyle=":", label="lower bound")
    axes.set(xlabel="ms", title=f"{document['n']} workers, {document['processes']} process(es)")
    axes.legend()
