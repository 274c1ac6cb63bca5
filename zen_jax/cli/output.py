"""The result of a subcommand as text, JSON and a figure; and its progress messages."""

import argparse
import contextlib
import errno
import json
import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

FIGURES = (".png", ".pdf", ".svg")
STDOUT = "-"
_RANKS = ("OMPI_COMM_WORLD_RANK", "SLURM_PROCID")  # as launchers give them


class Result(NamedTuple):
    """The result of a subcommand."""

    text: str
    document: dict[str, Any]  # plain values for JSON
    draw: Callable[[Any], None] | None = None  # onto a matplotlib figure


def add_json(parser: argparse.ArgumentParser, *aliases: str) -> None:
    """Adds --json, with other names for it where other subcommands read the file."""
    meaning = "write the result as JSON; - for standard output, with nothing else there"
    how = {"dest": "json", "action": "append", "default": [], "metavar": "FILE"}
    parser.add_argument(*aliases, "--json", **how, help=meaning)


def add_plot(parser: argparse.ArgumentParser) -> None:
    """Adds --plot."""
    parser.add_argument("--plot", type=_figure_file, metavar="FILE", help="draw the result as .png, .pdf or .svg")


def check_files(options: argparse.Namespace) -> None:
    """Raises a ValueError if a file to be written cannot be, is also to be read, or would be written twice.

    At once rather than after long work. Of several processes only the first writes: others need no folder for it.
    """

    def files(*names: str) -> list[str | Path]:
        given = (getattr(options, name, None) for name in names)
        return [file for some in given if some for file in (some if isinstance(some, list) else [some])]

    taken = dict.fromkeys((Path(file).resolve() for file in files("gradients", "profile", "cluster")), "also an input")
    ranks = (*(getattr(options, name, None) for name in ("launch_index", "process_id")), *map(os.environ.get, _RANKS))
    is_first = all(rank in (None, 0, "0") for rank in ranks)
    for file in files("json", "plot", "save_cluster"):
        if file == STDOUT:
            continue
        if is_first:
            _check_writable(Path(file))
        path = Path(file).resolve()
        if path in taken:
            raise ValueError(f"{file} is {taken[path]}, and writing would replace it. Give another file.")
        taken[path] = "already an output"
    if is_first and files("plot") and find_spec("matplotlib") is None:
        raise ValueError("figures need matplotlib, which is not installed: pip install matplotlib")


def show(result: Result | None, options: argparse.Namespace) -> None:
    """Prints and writes what the options ask for; None is the result of a process that leaves this to another."""
    if result is None:
        return
    text = json.dumps(result.document, indent=1)
    # Whatever becomes of the files, the measurement is shown.
    try:
        for file in options.json:
            if file != STDOUT:
                with writing(file):
                    Path(file).write_text(text + "\n", encoding="utf-8")
        if getattr(options, "plot", None):
            with writing(options.plot):
                _draw(result, options.plot)
    finally:
        _print(text if STDOUT in options.json else result.text)


@contextlib.contextmanager
def writing(file: str | Path) -> Iterator[None]:
    """Makes the error of a full disk, and others that name no file, one that does and is not of bad input."""
    try:
        yield
    except OSError as error:
        if error.filename and error.errno != errno.ENOSPC:
            raise
        raise RuntimeError(f"{file}: {error.strerror or error}. Free space, or give another file.") from error


@contextlib.contextmanager
def chatter_to_stderr() -> Iterator[None]:
    """Redirects what libraries print on standard output to standard error, so that --json - stays JSON."""
    if sys.stdout is None:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def say(line: str) -> None:
    """Reports progress, or an error, if anyone reads standard error."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def drawn(name: str) -> str:
    """A name as matplotlib draws it letter by letter: between dollar signs it would read a formula."""
    return name.replace("$", r"\$")


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _draw(result: Result, path: Path) -> None:
    from matplotlib.figure import Figure  # only figures need it, and it is an extra

    figure = Figure(figsize=(9, 4), layout="constrained")
    result.draw(figure)
    figure.savefig(path, dpi=120)


def _figure_file(word: str) -> Path:
    path = Path(word)
    if path.suffix.lower() not in FIGURES:
        raise argparse.ArgumentTypeError(f"{word!r} must end in one of {', '.join(FIGURES)}")
    return path


def _check_writable(path: Path) -> None:
    try:
        if path.is_dir():
            raise ValueError(f"{str(path)!r} is a folder. Give a file.")
        if not path.parent.is_dir():
            raise ValueError(f"{path} cannot be written: there is no folder {str(path.parent)!r}. Make it first.")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ValueError(f"{path} cannot be written: permission denied. Give another file.")
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}. Give another file.") from error
