"""Stacked gradients for `profile` and `bench`: read from .npz files, or made up."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from zen_jax.cli.output import say

SAVE = "Save one array for each leaf with numpy.savez(FILE, **gradients)."


def read(paths: Sequence[Path]) -> list[dict[str, np.ndarray]]:
    """Gradients of one step from each file: for each leaf float [n, ...], one slice per worker.

    Raises:
      ValueError: for files that are not .npz, that NumPy cannot read without pickle, or whose arrays are not stacks of
        the same number of slices, at least one.
      OSError: for files that cannot be read.
      MemoryError: for files larger than the memory.
    """
    steps = []
    for number, path in enumerate(paths, 1):
        if len(paths) > 1:
            say(f"reading {path} ({number} of {len(paths)})")
        steps.append(_read(path))
        held, first = workers(steps[-1]), workers(steps[0])
        if held != first:
            raise ValueError(
                f"{path} holds gradients of {held} workers, but {paths[0]} of {first}. Give steps of one run."
            )
    return steps


def _read(path: Path) -> dict[str, np.ndarray]:
    path.open("rb").close()  # a missing file is not a bad one
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not a .npz file, or is damaged. {SAVE}")
    try:
        with np.load(path) as saved:
            leaves = {name: saved[name] for name in saved.files}
    except MemoryError:
        raise
    except Exception as error:  # a damaged file raises anything from zlib.error to tokenize.TokenError
        raise ValueError(f"{path} cannot be read: {error}. {SAVE}") from error
    if not leaves:
        raise ValueError(f"{path} holds no arrays. {SAVE}")
    for name, leaf in leaves.items():
        if not name or not isinstance(leaf, np.ndarray):
            raise ValueError(f"{path}: {name!r} is not an array with a name. {SAVE}")
        if leaf.dtype.kind == "V":  # what NumPy makes of bfloat16
            raise ValueError(
                f"{path}: {name} has a type that NumPy does not keep, such as bfloat16. Save it as float32, or save "
                "the profile in Python, zen_jax.profile(gradients).save(FILE): a plan is for the dtype of its profile."
            )
        if leaf.dtype.kind != "f":
            raise ValueError(
                f"{path}: {name} has dtype {leaf.dtype}, but gradients must be float32, float64 or float16. Save those."
            )
    slices = {leaf.shape[:1] for leaf in leaves.values()}
    if len(slices) > 1 or slices & {(), (0,)}:
        shapes = ", ".join(f"{name} {leaf.shape}" for name, leaf in leaves.items())
        raise ValueError(f"{path}: arrays do not stack as [n, ...], one slice for each of n workers: {shapes}. {SAVE}")
    return leaves


def workers(step: Mapping[str, np.ndarray]) -> int:
    """How many workers' slices a step's leaves hold."""
    return len(next(iter(step.values())))


def synthetic(n: int, rows: int, columns: int, density: float) -> dict[str, np.ndarray]:
    """One embedding's gradient: float32 [n, rows, columns], the same for the same arguments.

    Every worker touches round(density * rows) rows, at least one, drawn by Zipf's law: the first are the most likely.
    """
    touched = max(1, round(density * rows))
    stack = np.zeros((n, rows, columns), np.float32)
    for worker, gradient in enumerate(stack):
        rng = np.random.default_rng((0, worker))
        gradient[zipf_rows(rng, rows, touched)] = rng.standard_normal((touched, columns), np.float32)
    return {"embedding": stack}


def zipf_rows(rng: np.random.Generator, rows: int, count: int) -> np.ndarray:
    """`count` distinct rows drawn by Zipf's law, under which the first rows are the most likely.

    Source: Efraimidis and Spirakis (2006): the largest of log(u) / weight are a sample without replacement.
    """
    keys = np.log(rng.random(rows)) * np.arange(1, rows + 1)
    return np.argpartition(keys, -count)[-count:]
