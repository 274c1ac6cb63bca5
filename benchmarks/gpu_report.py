"""The report on a GPU's measurements: a table of targets and peers, and a roofline, from the JSON of `gpu.sh`'s parts.

    python -m benchmarks.gpu_report build/gpu-results

Writes report.md and, with matplotlib, roofline.png beside the JSON. The report names what was not measured.
"""

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import drawing
from benchmarks.figures.drawing import Row
from benchmarks.processes import run_main

KERNEL_RESULTS = ("kernels", "kernels-dense", "kernels-n128", "kernels-rows")
RESULTS = (*KERNEL_RESULTS, "algorithm_1", "sparsifiers", "all_reduce", "all_reduce-pure-jax")
SANITIZERS = ("memcheck", "racecheck", "initcheck")
# Least share of the floor's speed, up to a density: (density, share).
TARGETS = {
    "partition": [(0.052, 0.8), (0.4, 0.7)],
    "hash_bitmap_decode": [(1, 0.85)],
    "aggregate_encode": [(1, 0.6)],
}
# Most time for many servers as a multiple of the time for few, on as many elements.
MANY_SERVERS = {"partition": 1.1}
# Least time as a multiple of partition's.
PEERS = {"CUB DeviceSelect::Flagged": 1 / 1.1, "torch.nonzero + index_select": 3, "jnp.nonzero + take": 10}
# Only for those that write what the floor counts: a list, and besides the residual no array of the gradient's size.
FEEDBACK_TARGETS = {"dgc, compact": 0.8, "top_k, compact": 0.8, "top_k and partition, fused": 0.8}


def target_of(row: Row) -> float | None:
    """The share that a kernel's row should reach, if it has a target.

    >>> target_of({"kernel": "partition", "density": 0.2}), target_of({"kernel": "aggregate", "density": 0.2})
    (0.7, None)
    """
    return next((least for up_to, least in TARGETS.get(row["kernel"], []) if row["density"] <= up_to), None)


def kernel_lines(result: Row) -> list[Row]:
    """Each kernel of a result of benchmarks.kernels: time, bytes, share of the ceiling, target."""
    lines = []
    for row in result["results"]:
        if "bytes" not in row:
            continue
        target = target_of(row)
        line = {key: row[key] for key in ("kernel", "density", "median_ms", "min_ms", "max_ms")}
        line |= {"GB": round(row["bytes"] / 1e9, 3), "of ceiling": row["of_ceiling"], "of copy": row["of_copy"]}
        lines.append(line | verdict(row["of_ceiling"], target))
    return lines


def peer_lines(result: Row) -> list[Row]:
    """Each peer: its time, and how many times as long as zen_jax's kernel it takes."""
    lines = []
    for row in result["results"]:
        if "bytes" in row:
            continue
        line = {"peer": row["kernel"], "density": row["density"]}
        if "absent" in row:
            reason = " ".join(row["absent"].split())  # compilers spread it over many lines
            lines.append(line | {"median_ms": "absent", "times ours": reason})
            continue
        times = row.get("times_partition", row.get("times_aggregate"))
        line |= {"median_ms": row["median_ms"], "times ours": times}
        lines.append(line | verdict(times, PEERS.get(row["kernel"])))
    return lines


def many_lines(results: Sequence[Row]) -> list[Row]:
    """Kernels for more servers than in the first result, over the same kernel's time there."""
    measured = {
        (result["n"], result["elements"], result["width"], row["density"], row["kernel"]): (row["median_ms"], result)
        for result in results
        for row in result["results"]
        if row["kernel"] in MANY_SERVERS and "median_ms" in row
    }
    few = results[0]["n"] if results else 0
    lines = []
    for (n, *setting, kernel), (ms, result) in measured.items():
        if n > few and (few, *setting, kernel) in measured:
            few_ms, few_result = measured[few, *setting, kernel]
            line = {"kernel": kernel, "density": setting[-1], f"n = {few}, ms": few_ms, f"n = {n}, ms": ms}
            if reason := not_comparable(few_result, result):
                lines.append(line | {"times": reason, "target": "", "met": ""})
                continue
            target, slower = MANY_SERVERS[kernel], round(ms / few_ms, 3)
            met = "yes" if slower <= target else "no"
            lines.append(line | {"times": slower, "target": f"<= {target:.2f}", "met": met})
    return lines


def feedback_lines(result: Row) -> list[Row]:
    """The sparsifiers' error feedback and selection."""
    lines = []
    for row in result["results"]:
        # Results from before it was kept have only its inverse, with two decimals.
        share = row.get("of_ceiling", round(1 / row.get("of 20|G|", row["times_floor"]), 3))
        line = {key: row[key] for key in ("sparsifier", "density", "median_ms")}
        lines.append(line | {"of ceiling": share} | verdict(share, FEEDBACK_TARGETS.get(row["sparsifier"])))
    return lines


def all_reduce_lines(ours: Row, pure_jax: Row) -> list[Row]:
    """A whole emulated all-reduce with the kernels and without them."""
    lines, reason = [], not_comparable(ours, pure_jax)
    for name, ms in ours["whole_ms"].items():
        pure = pure_jax["whole_ms"][name]
        line = {"all-reduce": name, "ms": round(ms, 3), "pure JAX ms": round(pure, 3)}
        lines.append(line | {"times ours": reason or round(pure / ms, 2)})
    return lines


def verdict(reached: float, target: float | None) -> Row:
    if target is None:
        return {"target": "", "met": ""}
    return {"target": f">= {target:.2f}", "met": "yes" if reached >= target else "no"}


def facts(result: Row) -> list[str]:
    """What a result was measured on and with; only results that agree in all of it are compared."""
    environment = result["environment"]
    versions = [f"{package} {version}" for package, version in environment["versions"].items() if version]
    commit = [f"commit {environment['commit']}"] * bool(environment["commit"])
    return [environment["device"], f"driver {environment['driver']}", *versions, *commit]


def not_comparable(one: Row, other: Row) -> str:
    """Why the times of two results are not compared; empty if they are."""
    differing = sorted({*facts(one)} ^ {*facts(other)})
    return f"not compared, as these differ: {', '.join(differing)}" if differing else ""


def environment_lines(results: dict[str, Row]) -> list[str]:
    """What the results were measured on and with: a line for all, or one for each set of results that differs."""
    files: dict[str, list[str]] = {}
    for name, result in results.items():
        files.setdefault(", ".join(facts(result)), []).append(name)
    if len(files) == 1:
        return [f"{said}." for said in files]
    return [f"{', '.join(names)}: {said}." for said, names in files.items()]


def ceilings_line(name: str, result: Row) -> str:
    rates = [f"{way} {rate['median'] / 1e12:.2f}" for way, rate in result["ceilings"].items()]
    return f"Ceilings of {name} in TB/s: {', '.join(rates)}."


def sanitizer_lines(folder: Path) -> list[Row]:
    """The summaries of compute-sanitizer's tools in the parts' logs."""
    lines = []
    for tool in SANITIZERS:
        log = folder / f"{tool}.log"
        found = re.findall(r"^=+ (\w+ SUMMARY: .*)$", log.read_text(), re.MULTILINE) if log.exists() else []
        lines += [{"tool": tool, "summary": summary} for summary in found]
    return lines


def draw_roofline(results: Sequence[Row], figure: Any) -> None:
    """For each device, number of servers and width, the rates at which kernels move their bytes, and the ceilings."""
    settings: dict[tuple[str, int, int], list[Row]] = {}
    for result in results:
        settings.setdefault((result["environment"]["device"], result["n"], result["width"]), []).append(result)
    figure.set_size_inches(5 * len(settings) + 1, 5)
    panels = figure.subplots(1, len(settings), sharey=True, squeeze=False)[0]
    for axes, ((device, n, width), members) in zip(panels, settings.items(), strict=True):
        rows = [row for result in members for row in result["results"] if "bytes" in row]
        rows = [row | {"rate": row["bytes"] / row["median_ms"] / 1e6} for row in rows]
        rows.sort(key=lambda row: (row["kernel"], row["density"]))
        drawing.lines(axes, rows, "density", "rate", "kernel")
        for (way, rate), style in zip(members[0]["ceilings"].items(), ("-", "--", ":"), strict=True):
            axes.axhline(rate["median"] / 1e9, color="black", linestyle=style, linewidth=1, label=f"{way} ceiling")
        axes.set_xlabel("density")
        axes.set_title(f"{device}, n = {n}, units of {width}", fontsize="small")
    panels[0].set_ylabel("GB/s moved at least")
    panels[0].set_ylim(bottom=0)
    panels[-1].legend(fontsize="x-small")


def write_report(folder: Path) -> None:
    """Writes report.md and roofline.png to `folder`, from the JSON there."""
    paths = {name: folder / f"{name}.json" for name in RESULTS}
    found = {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}
    kernels = {name: found[name] for name in KERNEL_RESULTS if name in found}
    sections: list[tuple[str, list[Row]]] = []
    for result in kernels.values():
        size = f"{result['elements']:.4g} float32, n = {result['n']}, width {result['width']}"
        aggregates = f"aggregates of {result['servers_at_once']} servers at once"
        sections += [(f"Kernels: {size}, {aggregates}", kernel_lines(result)), (f"Peers: {size}", peer_lines(result))]
    algorithm, feedback = found.get("algorithm_1"), found.get("sparsifiers")
    ours, pure_jax = found.get("all_reduce"), found.get("all_reduce-pure-jax")
    sanitizers = sanitizer_lines(folder / "parts")
    sections += [
        ("Many servers", many_lines([*kernels.values()])),
        ("Algorithm 1", algorithm["results"] if algorithm else []),
        ("Error feedback and selection", feedback_lines(feedback) if feedback else []),
        ("A whole all-reduce, emulated", all_reduce_lines(ours, pure_jax) if ours and pure_jax else []),
        ("compute-sanitizer", sanitizers),
    ]
    text = ["# Measurements on a GPU"]
    present = {*found, *(line["tool"] for line in sanitizers)}
    if absent := [name for name in (*RESULTS, *SANITIZERS) if name not in present]:
        text.append(f"Not measured: {', '.join(absent)}.")
    parts = [json.loads(path.read_text()) for path in sorted((folder / "parts").glob("*.json"))]
    if undone := [part["part"] for part in parts if part["status"] and part["part"] != "report"]:
        text.append(f"Failed or out of time, so rows may be missing: {', '.join(undone)}.")
    text += environment_lines(found)
    if kernels:
        text += [ceilings_line(name, result) for name, result in kernels.items()]
        try:
            drawing.save(draw_roofline, [*kernels.values()], folder / "roofline.png")
            text.append("![Rates under the measured ceilings](roofline.png)")
        except ImportError as error:
            text.append(f"No roofline: {error}.")
    for heading, rows in sections:
        if rows:
            text += [f"## {heading}", drawing.markdown(rows).rstrip()]
    (folder / "report.md").write_text("\n\n".join(text) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    write_report(parser.parse_args().folder)


if __name__ == "__main__":
    run_main(main)
