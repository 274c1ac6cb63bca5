"""Profiles, plans and clusters as self-describing JSON files."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

VERSION = 1
Entry = TypeVar("Entry")

# What reading a document raises that is not valid.
_INVALID = (KeyError, TypeError, AttributeError, ValueError, ArithmeticError)


class JsonDocument:
    """A frozen dataclass that is saved as a JSON document of its `kind`.

    Its mappings are left out of its hash, so that it can be a static argument of `jax.jit`.
    """

    kind: ClassVar[str]

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        """What a document describes; any of `_INVALID` if it is not valid."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """The document that `save` writes, as plain JSON values."""
        return {"zen_jax": self.kind, "version": VERSION, **asdict(self)}

    def save(self, path: str | Path) -> None:
        """Writes the document as JSON."""
        text = json.dumps(self.to_json(), indent=1, default=np.generic.item)
        try:
            Path(path).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            error.filename = error.filename or str(path)  # of which the error of a full disk says nothing
            raise

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads what `save` wrote.

        Raises:
          ValueError: if the file is not such a document, has another version, or describes something impossible.
          OSError: if the file cannot be read.
        """
        kind, again = cls.kind, f"Save the {cls.kind} again."
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is not a zen_jax {kind}: {error}. {again}") from error
        found = document.get("zen_jax") if isinstance(document, dict) else None
        if found != kind:
            but = f" but a {found}" if isinstance(found, str) else ""
            raise ValueError(f"{path} is not a zen_jax {kind}{but}. {again}")
        version = document.get("version")
        if version != VERSION:
            raise ValueError(f"{path} has version {version!r}, but this zen_jax reads version {VERSION}. {again}")
        try:
            return cls._from_json(document)
        except _INVALID as error:
            raise ValueError(f"{path} holds no usable {kind}: {_reason(error)}. {again}") from error


def each_entry(name: str, entries: Any, read: Callable[[Any], Entry]) -> dict[str, Entry]:
    """What `read` makes of every entry of a JSON object called `name`.

    Raises:
      ValueError: if it is no object, or one that names the entry that is not valid.
    """
    found = {}
    for key, entry in as_object(name, entries).items():
        try:
            found[key] = read(entry)
        except _INVALID as error:
            raise ValueError(f"{name}[{key!r}]: {_reason(error)}") from error
    return found


def as_object(name: str, value: Any) -> dict[str, Any]:
    """A JSON object called `name`; a ValueError if it is none."""
    if not isinstance(value, dict):
        raise ValueError(f"{name}={value!r} must be a JSON object")
    return value


def as_tuple(name: str, values: Any) -> tuple[Any, ...]:
    """A JSON list called `name`; a ValueError if it is none."""
    if not isinstance(values, list):
        raise ValueError(f"{name}={values!r} must be a JSON list")
    return tuple(values)


def _reason(error: Exception) -> str:
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error).removesuffix(".")
