"""What the figures share: panels, lines by group, saving, tables."""

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def lines(axes: Any, rows: Sequence[Row], x: str, y: str, group: str) -> None:
    """One line for each value of `group`, from rows that are in order."""
    for label, members in groupby(rows, key=lambda row: row[group]):
        points = list(members)
        axes.plot([row[x] for row in points], [row[y] for row in points], marker=".", label=label)


def by_powers_of_two(axes: Any) -> None:
    """Makes both axes logarithmic, with the workers (or partitions) along x at powers of two."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:g}")


def bars(axes: Any, rows: Sequence[Row], x: str, y: str, group: str) -> None:
    """Bars for each value of `x`, side by side for each value of `group`."""
    import matplotlib

    places, groups = (list(dict.fromkeys(row[key] for row in rows)) for key in (x, group))
    width = 0.8 / len(groups)
    colours = matplotlib.colormaps["tab20" if len(groups) > 10 else "tab10"]
    for i, label in enumerate(groups):
        members = [row for row in rows if row[group] == label]
        at = [places.index(row[x]) + (i - (len(groups) - 1) / 2) * width for row in members]
        axes.bar(at, [row[y] for row in members], width, label=label, color=colours(i))
    axes.set_xticks(range(len(places)), places)


def save(draw: Callable[[Sequence[Row], Any], None], rows: Sequence[Row], path: Path) -> None:
    """Draws rows on a new figure and saves it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = pyplot.figure(layout="constrained")
    draw(rows, figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def markdown(rows: Sequence[Row]) -> str:
    """Rows as a table for the documentation, a column for every key.

    >>> print(markdown([{"n": 2, "ratio": 1.0625}, {"n": 4, "ratio": 120.0}]))
    | n | ratio |
    | --- | --- |
    | 2 | 1.062 |
    | 4 | 120 |
    <BLANKLINE>
    """
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [columns, ["---"] * len(columns), *([_cell(row.get(column, "")) for column in columns] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
