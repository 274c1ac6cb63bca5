"""Argument checks: each raises a ValueError that names the argument, the value and what to do."""

import math
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

FLOATS = ("float32", "float64", "float16", "bfloat16")
"""The names of the dtypes that gradients may have."""

MAX_WORKERS = 65535
MAX_UNITS = 2**31 - 1


def is_integer(value: Any) -> bool:
    """Whether a value is a Python or NumPy integer, and not a boolean."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a Python or NumPy real number, and not a boolean."""
    return isinstance(value, Real) and not isinstance(value, bool)


def static_hint(value: Any) -> str:
    """What to do about an array where a Python number is expected; nothing for other values."""
    if not isinstance(value, jax.Array):
        return ""
    return " It is a JAX array, but must be a Python number: optax.inject_hyperparams takes its name in static_args."


def is_traced(*values: Any) -> bool:
    """Whether a call with these values is part of a larger trace: theirs or, under jit and scan, even of new arrays."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in (jnp.arange(1), *jax.tree.leaves(values)))


def check_instance(name: str, value: Any, kind: type, instead: str) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{name} is a {type(value).__name__}, but must be a {kind.__name__}. {instead}")


def check_entries(name: str, value: Any, kind: type) -> None:
    """Refuses what is not a dict of instances of a kind."""
    check_instance(name, value, dict, f"Give each {kind.__name__} by name.")
    for key, entry in value.items():
        check_instance(f"{name}[{key!r}]", entry, kind, f"Give each {kind.__name__} by name.")


def check_choice(name: str, value: Any, choices: Collection[Any]) -> None:
    if value not in tuple(choices):  # which, unlike a set or dict, takes values without a hash
        raise ValueError(f"{name}={value!r} is unknown. Use one of {', '.join(map(repr, choices))}.")


def check_at_least(name: str, value: Any, least: int) -> None:
    if not is_integer(value) or value < least:
        raise ValueError(f"{name}={value!r} must be an integer of at least {least}.{static_hint(value)}")


def check_seed(value: Any) -> None:
    if not is_integer(value) or not 0 <= value < 2**32:
        raise ValueError(f"seed={value!r} must be an integer from 0 to 2**32 - 1.{static_hint(value)}")


def check_workers(value: Any, name: str = "n") -> None:
    check_at_least(name, value, 1)
    if value > MAX_WORKERS:
        raise ValueError(f"{name}={value} must be at most {MAX_WORKERS}. Reduce over fewer workers at a time.")


def check_array_shape(shape: tuple[Any, ...]) -> None:
    """Refuses a shape that no array can have."""
    for size in shape:
        check_at_least("shape", size, 0)
    elements = math.prod(shape)
    if elements >= 2**63:
        raise ValueError(f"shape={shape} has {elements} elements, but no array has 2**63. Give the leaf's shape.")


def check_units(
    units: int,
    who: str = "pure JAX",
    instead: str = "scheme='dense_ordered', or install zen_jax where a compiler can build its kernels",
) -> None:
    if units > MAX_UNITS:
        raise ValueError(
            f"{units} units are more than the 2**31 - 1 that {who} can index. Use wider units, or {instead}."
        )


def check_slots(n: int, r1: int, r2: int) -> None:
    if n * (r1 + r2) > MAX_UNITS:
        raise ValueError(
            f"n * (r1 + r2) = {n} * ({r1} + {r2}) slots are more than the 2**31 - 1 that pure JAX can index. Use fewer "
            "(a scheme with hash='murmur': hash='tile'), or install zen_jax where a compiler can build its kernels."
        )


def check_capacity(value: Any, least: int = 1) -> None:
    check_at_least("capacity", value, least)
    if value > MAX_UNITS:
        raise ValueError(f"capacity={value} must be at most 2**31 - 1 units. Give the number expected, or None.")


def check_message_rows(name: str, shape: tuple[int, ...]) -> None:
    """Refuses messages [n, C, ...] of no workers or of too many, or that have no room."""
    if not 1 <= shape[0] <= MAX_WORKERS or not 1 <= shape[1] <= MAX_UNITS:
        raise ValueError(
            f"{name} has shape {tuple(shape)}, but must have one row for each of 1 to {MAX_WORKERS} workers, each with "
            "room for 1 to 2**31 - 1 units."
        )


def check_integers(name: str, value: Any) -> None:
    if not is_integer(value) and not hasattr(value, "dtype"):
        raise ValueError(f"{name} are a {type(value).__name__}, but they must be one array. Use jnp.asarray.")
    if not jnp.issubdtype(jnp.result_type(value), jnp.integer):
        raise ValueError(f"{name} have dtype {jnp.result_type(value)}, but they must be integers.")


def check_float(name: str, dtype: Any) -> None:
    if isinstance(dtype, np.dtype) and not dtype.isnative:
        raise ValueError(f"{name} has dtype {dtype}, another byte order than this machine's. Convert it with astype.")
    if dtype not in map(jnp.dtype, FLOATS):
        raise ValueError(
            f"{name} has dtype {dtype}, but gradients must be float32, float64, float16 or bfloat16. "
            "Leave other leaves out (optax.masked) or reduce them with jax.lax.psum."
        )


def check_dtype(name: str, dtype: Any, wanted: Any) -> None:
    if dtype != wanted:
        raise ValueError(f"{name} has dtype {dtype}, but must be {jnp.dtype(wanted)}. Convert it with astype.")


def check_rank(name: str, shape: tuple[int, ...], ranks: Collection[int]) -> None:
    if len(shape) not in ranks:
        raise ValueError(f"{name} has shape {tuple(shape)}, but must have rank {' or '.join(map(str, ranks))}.")


def check_shape(name: str, shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> None:
    """`wanted` holds None where any size is allowed."""
    if len(shape) != len(wanted) or any(w is not None and s != w for s, w in zip(shape, wanted, strict=True)):
        text = ", ".join("any" if w is None else str(w) for w in wanted) + "," * (len(wanted) == 1)
        raise ValueError(f"{name} has shape {tuple(shape)}, but must have shape ({text}).")


def check_positive(name: str, value: Any) -> None:
    if not _is_finite(value) or value <= 0:
        raise ValueError(f"{name}={value!r} must be a finite number above 0.{static_hint(value)}")


def check_between(name: str, value: Any, least: float, most: float) -> None:
    if not is_number(value) or not least <= value <= most:
        raise ValueError(f"{name}={value!r} must be a number from {least:g} to {most:g}.{static_hint(value)}")


def check_not_negative(name: str, value: Any) -> None:
    if not _is_finite(value) or value < 0:
        raise ValueError(f"{name}={value!r} must be a finite number of at least 0.{static_hint(value)}")


def _is_finite(value: Any) -> bool:
    try:
        return is_number(value) and math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False
