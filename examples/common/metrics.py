"""metrics.jsonl: one line per step of a run, written as the step ends."""

import dataclasses
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from examples.common.errors import may_pass
from examples.common.loop import State, Step


def read(path: Path, steps: int) -> list[Step]:
    """The first `steps` steps of the run being resumed."""
    try:
        with path.open() as lines:
            rows = [json.loads(line) for line, _ in zip(lines, range(steps), strict=False)]
        done = [Step(**{field.name: row[field.name] for field in dataclasses.fields(Step)}) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        if may_pass(error):
            raise
        raise ValueError(f"{path} is damaged ({error!r}): give another --out") from error
    if len(done) < steps:
        raise ValueError(f"{path} has {len(done)} steps, but the checkpoint beside it has {steps}: give another --out")
    return done


def record(path: Path, before: list[Step], steps: Iterable[tuple[Step, State]]) -> Iterator[tuple[Step, State]]:
    """Passes `steps` through and writes each one, after those in `before`."""
    # Whenever this run is stopped, no line of those before is lost.
    kept = path.with_suffix(".kept")
    kept.write_text("".join(itertools.starmap(_line, enumerate(before))))
    secure(kept)
    kept.replace(path)
    with path.open("a") as lines:
        for number, (step, state) in enumerate(steps, len(before)):
            lines.write(_line(number, step))
            lines.flush()
            yield step, state


def secure(path: Path) -> None:
    """Has all that was recorded survive a loss of power. A checkpoint saved later finds the lines of its steps."""
    with path.open("a") as lines:
        os.fsync(lines.fileno())


def _line(number: int, step: Step) -> str:
    return json.dumps({"step": number, **dataclasses.asdict(step)}) + "\n"
