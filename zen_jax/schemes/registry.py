"""The schemes by name, each with one signature."""

from collections.abc import Callable
from typing import NamedTuple

from zen_jax import _axis
from zen_jax._typing import Array, AxisName
from zen_jax.errors import check_choice
from zen_jax.info import Info
from zen_jax.schemes import dense as dense_module
from zen_jax.schemes.partitioning import partitioning
from zen_jax.schemes.zen import zen


class Request(NamedTuple):
    """What a scheme needs to know beside the units and the axis."""

    op: str = "mean"
    capacity: tuple[int | None, int | None] = (None, None)
    hash: str = "tile"
    seed: int = 0


Scheme = Callable[[Array, AxisName, Request], tuple[Array, Info]]


def _dense(x: Array, axis_name: AxisName, request: Request) -> tuple[Array, Info]:
    info = dense_module.dense_info(x.size, x.dtype, _axis.axis_size(axis_name))
    return dense_module.dense(x, axis_name, op=request.op), info


def _dense_ordered(x: Array, axis_name: AxisName, request: Request) -> tuple[Array, Info]:
    info = dense_module.dense_info(x.size, x.dtype, _axis.axis_size(axis_name))
    return dense_module.dense_ordered(x, axis_name, op=request.op), info


def _balanced(dense_fallback: bool) -> Scheme:
    def scheme(x: Array, axis_name: AxisName, request: Request) -> tuple[Array, Info]:
        hashed = partitioning(request.hash, x.shape[0], _axis.axis_size(axis_name), request.seed)
        return zen(
            x,
            axis_name,
            op=request.op,
            hashed=hashed,
            capacity=request.capacity,
            dense_fallback=dense_fallback,
        )

    return scheme


_SCHEMES: dict[str, Scheme] = {
    "dense": _dense,
    "dense_ordered": _dense_ordered,
    "zen": _balanced(dense_fallback=False),
    "auto": _balanced(dense_fallback=True),
}


def names() -> tuple[str, ...]:
    """The names that `scheme=` takes.

    >>> names()
    ('dense', 'dense_ordered', 'zen', 'auto')
    """
    return tuple(_SCHEMES)


def get(name: str) -> Scheme:
    """The scheme called `name`; a ValueError lists the names where there is none."""
    check_choice("scheme", name, names())
    return _SCHEMES[name]
