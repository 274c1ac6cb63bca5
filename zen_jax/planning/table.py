"""Rows of text in aligned columns."""

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as lines of text with aligned cells; every row has the same number of cells.

    >>> print(table([("leaf", "unit"), ("embedding", "16")]))
    leaf       unit
    embedding  16
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
