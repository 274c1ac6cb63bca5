"""The options of a run, each with its default, its meaning and its permitted values."""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import zen_jax as zen
from zen_jax.cli.options import at_least, positive


def option(default: Any, meaning: str, **checks: Any) -> Any:
    """A configuration field that the command line can set; `least=` is the lower bound of an integer."""
    return dataclasses.field(default=default, metadata={"meaning": meaning, **checks})


PLANNED = "planned"
"""Used in place of a scheme: the first steps are profiled, then a plan chooses a scheme for each leaf."""

ROW_SPARSE = "row_sparse"
"""Used in place of a scheme: table gradients hold only the rows looked up, from backward pass to optimizer."""

_CHOICES = (*zen.schemes.names(), PLANNED, ROW_SPARSE)

SYNC = f"schemes to train with, comma-separated, from {', '.join(_CHOICES)} (guide: zen.autotune, zen.embedding)"
"""The meaning of --sync, for examples that set their own default."""


@dataclasses.dataclass(frozen=True)
class Config:
    """The options that every example has."""

    data: Path | None = option(None, "where the data is")
    sync: tuple[str, ...] = option(("zen", "dense_ordered", "dense"), SYNC)
    workers: int = option(
        8,
        "workers: one on each device if there are several, whose number is then the default, else emulated on one",
        least=1,
    )
    machines: int = option(
        1,
        "number of machines that share the devices evenly; those of a machine first sum among themselves, dense",
        least=1,
    )
    batch: int = option(8, "examples per worker and step", least=1)
    steps: int = option(200, "training steps", least=1)
    learning_rate: float = option(0.1, "learning rate")
    seed: int = option(0, "seed of the weights and of everything drawn at random", least=0)
    out: Path = option(Path("runs"), "where results and checkpoints go")
    checkpoint_every: int = option(0, "steps between checkpoints, 0 for none", least=0)
    resume: bool = option(False, "continue from the last checkpoint in --out, if there is one")

    def fixed(self, steps: int) -> dict[str, Any]:
        """The options that must be the same when a run is resumed after `steps` steps."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in _RESUMABLE}


_RESUMABLE = ("data", "sync", "workers", "machines", "steps", "out", "checkpoint_every", "resume")


def add_options(parser: argparse.ArgumentParser, config: type[Config]) -> None:
    """Adds an option for each field of a configuration."""
    for field in dataclasses.fields(config):
        name, meaning = "--" + field.name.replace("_", "-"), field.metadata["meaning"]
        if field.type is bool:
            parser.add_argument(name, action="store_true", help=meaning)
            continue
        shown = ",".join(field.default) if isinstance(field.default, tuple) else field.default
        help_text = meaning if field.default is None else f"{meaning} (default: {shown})"
        # The number of workers has no fixed default: if there are several devices, their number decides.
        default = None if field.name == "workers" else field.default
        parse, metavar = _reader(field)
        parser.add_argument(name, type=parse, default=default, metavar=metavar, help=help_text)


def _reader(field: dataclasses.Field) -> tuple[Any, str]:
    if field.type is int:
        return at_least(field.metadata["least"]), "N"
    if field.type is float:
        return positive, "X"
    if field.type == tuple[str, ...]:
        return _schemes, "NAMES"
    return Path, "PATH"


def _schemes(word: str) -> tuple[str, ...]:
    names = tuple(word.split(","))
    for name in names:
        if name not in _CHOICES:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(_CHOICES)}")
    if len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{word!r} names a scheme twice")
    return names
