"""Data sets prepared once, as arrays that a process memory-maps: it reads only what it uses, its own workers' rows.

A data set is a dataclass of arrays, nested data sets, and text and numbers that JSON can represent.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from examples.common.errors import BadInput, may_pass

Dataset = TypeVar("Dataset")

_ABOUT = "prepared.json"  # beside the arrays; written last, so that an incomplete data set does not count as one


def is_prepared(folder: Path | None) -> bool:
    return folder is not None and (folder / _ABOUT).is_file()


def digest(dataset: Any) -> str:
    """The digest of all that a data set holds except strings, which describe it; the same wherever it lies."""
    found = hashlib.sha256()
    for value in _flat(dataset).values():
        if isinstance(value, np.ndarray):
            found.update(np.ascontiguousarray(value))
        elif not isinstance(value, str):
            found.update(json.dumps(value).encode())
    return found.hexdigest()[:16]


def write(folder: Path, dataset: Any, options: Mapping[str, Any]) -> None:
    """Writes a data set that was read with `options`, into a folder that does not yet hold one."""
    if is_prepared(folder):
        raise BadInput(f"{folder} already holds a prepared data set: give another folder, or delete it")
    flat = _flat(dataset)
    arrays = {name: value for name, value in flat.items() if isinstance(value, np.ndarray)}
    about = {
        "kind": _name(type(dataset)),
        "options": dict(options),
        "digest": digest(dataset),
        "arrays": {name: [array.dtype.str, array.shape] for name, array in arrays.items()},
        "values": {name: value for name, value in flat.items() if name not in arrays},
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    (folder / _ABOUT).write_text(json.dumps(about) + "\n")


def opened(folder: Path, kind: type[Dataset], options: Mapping[str, Any]) -> tuple[Dataset, str]:
    """A prepared data set, memory-mapped, and its digest; raises BadInput if it is not one read with `options`."""
    try:
        about = json.loads((folder / _ABOUT).read_text())
        if about["kind"] != _name(kind):
            raise BadInput(f"{folder} was prepared as {about['kind']}, but this example reads {_name(kind)}")
        for name, wanted in options.items():
            if about["options"][name] != wanted:
                option = f"--{name.replace('_', '-')}"
                raise BadInput(
                    f"{folder} was prepared with {option} {about['options'][name]}, but this run has {wanted}: "
                    f"give {option} {about['options'][name]}, or prepare the data again"
                )
        arrays = {name: _mapped(folder / f"{name}.npy", *of_array) for name, of_array in about["arrays"].items()}
        return _built(kind, arrays | about["values"]), about["digest"]
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, BadInput) or may_pass(error):
            raise
        raise BadInput(f"{folder} is damaged: {error}. Prepare the data again.") from error


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _mapped(path: Path, dtype: str, shape: list[int]) -> np.ndarray:
    if 0 in shape:  # an empty array cannot be mapped
        return np.zeros(shape, dtype)
    array = np.load(path, mmap_mode="r")
    if [array.dtype.str, [*array.shape]] != [dtype, shape]:
        raise ValueError(f"{path.name} is {array.dtype.str} {[*array.shape]}, not {dtype} {shape}")
    return array


def _flat(dataset: Any, prefix: str = "") -> dict[str, Any]:
    """The arrays and values of a data set by path, such as "train.rows"."""
    flat = {}
    for field in dataclasses.fields(dataset):
        value, name = getattr(dataset, field.name), prefix + field.name
        flat |= _flat(value, f"{name}.") if dataclasses.is_dataclass(value) else {name: value}
    return flat


def _built(kind: type[Dataset], flat: Mapping[str, Any], prefix: str = "") -> Dataset:
    """Rebuilds what `_flat` took apart."""

    def value(field: dataclasses.Field) -> Any:
        name = prefix + field.name
        if dataclasses.is_dataclass(field.type):
            return _built(field.type, flat, f"{name}.")
        return flat[name] if field.type is np.ndarray else field.type(flat[name])

    return kind(**{field.name: value(field) for field in dataclasses.fields(kind)})
