"""Profiles, plans and clusters as self-describing JSON files."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

VERSION = 1


class JsonDocument:
    """A frozen dataclass that is saved as a JSON document of its `kind`.

    Its mappings are left out of its hash, so that it can be a static argument of `jax.jit`.
    """

    kind: ClassVar[str]

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        """What a document describes; a KeyError, TypeError, AttributeError or ValueError if it is not valid."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """The document that `save` writes, as plain JSON values."""
        return {"zen_jax": self.kind, "version": VERSION, **asdict(self)}

    def save(self, path: str | Path) -> None:
        """Writes the document as JSON."""
        text = json.dumps(self.to_json(), indent=1, default=np.generic.item)
        Path(path).write_text(text + "\n", encoding="utf-8")

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
        except ValueError as error:
            raise ValueError(f"{path} is not a zen_jax {kind}: {error}. {again}") from error
        found = document.get("zen_jax") if isinstance(document, dict) else None
        if found != kind:
            raise ValueError(f"{path} is not a zen_jax {kind}" + (f" but a {found}" if found else "") + f". {again}")
        version = document.get("version")
        if version != VERSION:
            raise ValueError(f"{path} has version {version!r}, but this zen_jax reads version {VERSION}. {again}")
        try:
            return cls._from_json(document)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{path} holds no usable {kind}: {type(error).__name__}: {error}. {again}") from error
