"""Profiles, plans and clusters as JSON files that say what they are."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
VERSION = 1


def document(kind: str, content: dict[str, Any]) -> dict[str, Any]:
    """A document of one kind; the content holds plain JSON values."""
    return {"zen_jax": kind, "version": VERSION, **content}


def save(path: str | Path, document: dict[str, Any]) -> None:
    """Writes a document."""
    Path(path).write_text(json.dumps(document, indent=1, default=np.generic.item) + "\n", encoding="utf-8")


def load(path: str | Path, kind: str, build: Callable[[dict[str, Any]], T]) -> T:
    """Reads a document of one kind and builds from it what it describes.

    Raises:
      ValueError: for a file that is no such document, is of another version, or that `build` cannot use.
      OSError: for a file that cannot be read.
    """
    again = f"Save the {kind} again."
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no zen_jax {kind}: {error}. {again}") from error
    found = document.get("zen_jax") if isinstance(document, dict) else None
    if found != kind:
        raise ValueError(f"{path} is no zen_jax {kind}" + (f" but a {found}" if found else "") + f". {again}")
    if document.get("version") != VERSION:
        raise ValueError(f"{path} is of version {document.get('version')!r}, but this zen_jax reads {VERSION}. {again}")
    try:
        return build(document)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} holds no usable {kind}: {type(error).__name__}: {error}. {again}") from error
