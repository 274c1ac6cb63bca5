"""The unit: what one index names. Cuts a tensor's rows into blocks of m columns."""

import math

from zen_jax import errors
from zen_jax._typing import Unit

SMALLEST_AUTO_WIDTH = 16
WIDEST_SUGGESTED = 1 << 16  # finding all divisors of the columns that a damaged plan states could take minutes


def unit_width(shape: tuple[int, ...], unit: Unit, n: int) -> int:
    """Elements m in one unit of a tensor.

    Args:
      shape: the tensor's shape; its rows are the slices along the first axis, of D elements.
      unit: "element" (m = 1), "row" (m = D), an integer m that divides D, or "auto": the widest m = D/k with k >= n
        blocks per row, which balances the servers, but at least 16 elements, which keeps the indices few.
        Tensors of fewer than two dimensions have rows of one element.
      n: number of workers.

    Raises:
      ValueError: for a unit that is none of these, or m that does not divide D.

    >>> unit_width((1000, 256), "auto", n=8), unit_width((1000, 256), "row", n=8), unit_width((5,), "auto", n=8)
    (32, 256, 1)
    >>> unit_width((1000, 64), "auto", n=16), unit_width((1000, 8), "auto", n=4)
    (16, 8)
    """
    check_unit(unit)
    columns = math.prod(shape[1:])
    if errors.is_integer(unit):
        if columns % unit:
            fitting = [m for m in range(1, min(columns, WIDEST_SUGGESTED) + 1) if columns % m == 0]
            raise ValueError(
                f"unit={unit} must divide the {columns} columns of a gradient of shape {tuple(shape)}. "
                f"Use one of {fitting}, or 'row'."
            )
        return int(unit)
    if unit == "element" or columns == 0:
        return 1
    if unit == "row":
        return columns
    narrow = [m for m in _divisors(columns) if m >= min(SMALLEST_AUTO_WIDTH, columns)]
    balanced = [m for m in narrow if columns // m >= n]
    return max(balanced) if balanced else min(narrow)


def check_unit(unit: Unit) -> None:
    """Raises a ValueError for a unit that is valid for no tensor."""
    if not (unit >= 1 if errors.is_integer(unit) else unit in ("element", "row", "auto")):
        raise ValueError(f"unit={unit!r} is unknown. Use 'element', 'row', 'auto' or a positive number of columns.")


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
