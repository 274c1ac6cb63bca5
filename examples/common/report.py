"""The runs side by side: a table, JSON and a plot."""

import dataclasses
import json
from pathlib import Path

import matplotlib
import numpy as np

from examples.common.config import Config
from examples.common.loop import Run
from examples.common.task import Task

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def summarise(runs: list[Run], task: Task) -> list[dict]:
    """One row per run; losses are compared with those of zen, or of the first run if zen is not among them."""
    reference = next((run for run in runs if run.scheme == "zen"), runs[0])
    return [_summary(run, reference, task) for run in runs]


def _summary(run: Run, reference: Run, task: Task) -> dict:
    losses, expected = (np.array([step.loss for step in r.steps]) for r in (run, reference))
    difference = np.abs(losses - expected)
    info = {name: np.array([step.info[name] for step in run.steps]) for name in run.steps[0].info}
    # The first steps compile, and a planned run profiles.
    seconds = float(np.median([step.seconds for step in run.steps[len(run.steps) // 2 :]]))
    moved, dense = float(np.mean(info["bytes_pushed"] + info["bytes_pulled"])), float(np.mean(info["bytes_dense"]))
    return {
        "sync": run.scheme,
        "steps": len(losses),
        "final_loss": float(losses[-1]),
        "metric": task.metric,
        "validation": run.validation,
        "compared_with": reference.scheme,
        "max_loss_difference": float(difference.max()),
        "max_relative_loss_difference": float((difference / np.abs(expected)).max()),
        "steps_bitwise_equal": int(np.sum(losses == expected)),
        "bytes_per_step": moved,
        "bytes_ratio": moved / dense if dense else 0.0,
        "dense_share": float(np.mean(info["dense_taken"])),
        "imbalance_push": float(np.mean(info["imbalance_push"])),
        "imbalance_pull": float(np.mean(info["imbalance_pull"])),
        "step_seconds": seconds,
        "items": task.items,
        "items_per_second": task.items_per_step / seconds,
    }


def table(rows: list[dict]) -> str:
    """The rows as text."""
    metric, items = rows[0]["metric"], rows[0]["items"]
    heads = ["sync", "final loss", f"valid {metric}", "max |diff|", "relative", "equal steps", "MB/step", "of dense"]
    heads += ["push imb.", "pull imb.", "s/step", f"{items}/s"]
    lines = [heads] + [
        [
            row["sync"],
            f"{row['final_loss']:.6f}",
            "-" if row["validation"] is None else f"{row['validation']:.4g}",
            f"{row['max_loss_difference']:.1e}",
            f"{row['max_relative_loss_difference']:.1e}",
            f"{row['steps_bitwise_equal']}/{row['steps']}",
            f"{row['bytes_per_step'] / 1e6:.2f}",
            f"{row['bytes_ratio']:.4f}",
            f"{row['imbalance_push']:.2f}" if row["imbalance_push"] else "-",
            f"{row['imbalance_pull']:.2f}" if row["imbalance_pull"] else "-",
            f"{row['step_seconds']:.3f}",
            f"{row['items_per_second']:,.0f}",
        ]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = "-" * (sum(widths) + 2 * len(widths) - 2)
    aligned = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    return "\n".join([aligned[0], rule, *aligned[1:]])


def write(config: Config, task: Task, runs: list[Run], rows: list[dict]) -> None:
    """Writes summary.json and curves.png into `config.out`."""
    summary = {"config": dataclasses.asdict(config), "about": task.lines, "runs": rows}
    (config.out / "summary.json").write_text(json.dumps(summary, indent=2, default=str) + "\n")
    _plot(config.out / "curves.png", runs)


def _plot(path: Path, runs: list[Run]) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for number, run in enumerate(runs):
        # Curves that coincide stay visible: thick below, thin and dashed above.
        style = {"linewidth": 1 + 2 * (len(runs) - 1 - number), "alpha": 0.8, "linestyle": "-" if number == 0 else "--"}
        steps = range(1, len(run.steps) + 1)
        left.plot(steps, [step.loss for step in run.steps], label=run.scheme, **style)
        moved = np.cumsum([step.info["bytes_pushed"] + step.info["bytes_pulled"] for step in run.steps])
        right.plot(steps, np.maximum(moved, 1) / 1e6, label=run.scheme, **style)
    left.set(xlabel="step", ylabel="training loss", title="Loss")
    right.set(xlabel="step", ylabel="MB pushed and pulled by one worker", title="Bytes synchronised", yscale="log")
    left.legend()
    right.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
