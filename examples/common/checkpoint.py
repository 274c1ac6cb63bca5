"""Checkpoints of a run with Orbax: resumed with workers as before, it is bitwise the run that was never stopped.

With a different number of workers, each worker's private state is redistributed: every worker continues with the mean
of the sparsifiers' states, so that what was still to be sent is sent, and with a fresh carry.
"""

import contextlib
import itertools
import secrets
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

import zen_jax as zen
from examples.common.config import Config
from examples.common.errors import BadInput, may_pass
from examples.common.loop import KINDS, State
from examples.common.workers import REPLICATED, Workers

_KEPT = 2  # the last one, and the one before it
_questions = itertools.count(1)


def check_shared(folder: Path) -> None:
    """Raises BadInput on every process unless all of them see what process 0 writes into `folder`."""
    first, token = jax.process_index() == 0, np.uint32(secrets.randbits(32))
    if first:
        (folder / f"shared-{token}").touch()
    mark = folder / f"shared-{multihost_utils.broadcast_one_to_all(token)}"
    seen = multihost_utils.process_allgather(np.bool_(mark.exists())).reshape(-1)
    if first:
        mark.unlink()
    if not seen.all():
        blind = ", ".join(map(str, np.flatnonzero(~seen)))
        raise BadInput(
            f"--out {folder} is not a folder that all hosts share; processes that do not see what process 0 writes "
            f"there: {blind}"
        )


def check_agreed(checkpoints: Iterable["Checkpoints"]) -> None:
    """Raises TimeoutError on every process unless all see the same last checkpoint of each run.

    A network file system may take a minute to show one host what another wrote.
    """
    seen = multihost_utils.process_allgather(np.array([each.last() or 0 for each in checkpoints]))
    differing = np.flatnonzero((seen != seen[0]).any(axis=0))
    if differing.size:
        steps = ", ".join(str(step or "none") for step in seen[:, differing[0]])
        raise TimeoutError(
            f"the processes do not all see the same last checkpoint in --out, but those after steps {steps}: start "
            "again once its file system shows all hosts the same files"
        )


def reached_preemption() -> bool:
    """Whether a process was told to end (SIGTERM) and this is the step after which all must save a checkpoint.

    Call it after every step. Without jax.distributed the signal ends the process directly.
    """
    # JAX lets all processes save where they ask the question after the last one asked so far, so questions must be
    # numbered through: a resumed run starts with a later step, and the next scheme with step 1 again.
    return jax.config.jax_enable_preemption_service and multihost_utils.reached_preemption_sync_point(next(_questions))


class _Manager(ocp.CheckpointManager):
    """Does not ask about preemption in save(): its questions are numbered by step."""

    def reached_preemption(self, step: int) -> bool:
        return False


class Checkpoints:
    """The checkpoints of one run, in their own folder; `data` is the digest of what it trains on."""

    def __init__(self, folder: Path, config: Config, workers: Workers, data: str):
        self._folder, self._workers, self._config, self._data = folder.absolute(), workers, config, data
        options = ocp.CheckpointManagerOptions(max_to_keep=_KEPT, enable_async_checkpointing=False)
        handlers = {"state": ocp.StandardCheckpointHandler(), "about": ocp.JsonCheckpointHandler()}
        self._manager = _Manager(self._folder, options=options, item_handlers=handlers)

    def last(self) -> int | None:
        """How many steps precede the last checkpoint; None if there is none."""
        return self._manager.latest_step()

    def save(self, steps: int, state: State) -> None:
        """Saves the state after `steps` steps; raises BadInput if its parameters are not finite."""
        # The loss of this step is that of the parameters before it.
        if not all(np.isfinite(leaf.addressable_data(0)).all() for leaf in jax.tree.leaves(state.params)):
            raise self.diverged(f"the parameters after step {steps} are NaN or infinite")
        about = {"workers": self._workers.count, **self._about(steps)}
        args = {"state": ocp.args.StandardSave(_named(state)), "about": ocp.args.JsonSave(about)}
        self._manager.save(steps, args=ocp.args.Composite(**args))

    def diverged(self, what: str) -> BadInput:
        """The error of a run whose training cannot go on; checkpoints saved before it are intact."""
        last = self.last()
        kept = (
            "no checkpoint was saved before" if last is None else f"the checkpoint {self._folder / str(last)} is intact"
        )
        return BadInput(f"{what}: check the data, or give a lower --learning-rate and another --out ({kept})")

    def restore(self, fresh: State) -> State:
        """The state of the last checkpoint, laid out like `fresh`; raises ValueError if it does not match this run."""
        count = self.check()
        if count == self._workers.count:
            return self._read(jax.tree.map(_abstract, fresh))
        # While the number of workers changes, every device holds the private state of all old workers.
        whole = self._workers.sharding(REPLICATED)

        def of_old_workers(leaf: jax.Array) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((count, *leaf.shape[1:]), leaf.dtype, sharding=whole)

        wanted = [
            jax.tree.map(_abstract if kind is REPLICATED else of_old_workers, tree)
            for kind, tree in zip(KINDS, fresh, strict=True)
        ]
        saved = self._read(State(*wanted))
        return saved._replace(sparsifier=jax.tree.map(self._share_out, saved.sparsifier), carry=fresh.carry)

    def close(self) -> None:
        """Waits for pending writes."""
        self._manager.close()

    def check(self) -> int:
        """How many workers made the last checkpoint; raises ValueError if this run cannot resume from it."""
        with self._reading():
            args = ocp.args.Composite(about=ocp.args.JsonRestore())
            about = self._manager.restore(self.last(), args=args)["about"]
            count = about.pop("workers")
        own = self._about(self.last())
        differing = [name for name in sorted(about.keys() | own.keys()) if about.get(name) != own.get(name)]
        if differing:
            each = (f"{name}={about.get(name)}, but this run has {name}={own.get(name)}" for name in differing)
            raise ValueError(
                f"the checkpoint in {self._folder} was made with {'; '.join(each)}: "
                "resume with what it was made with, or give another --out"
            )
        if self.last() > self._config.steps:
            raise ValueError(
                f"the checkpoint in {self._folder} was made after step {self.last()}, but --steps is "
                f"{self._config.steps}: give more steps, or another --out"
            )
        return count

    def _about(self, steps: int) -> dict[str, str]:
        """What must be the same in a run that resumes after `steps` steps."""
        fixed = {name: str(value) for name, value in self._config.fixed(steps).items()}
        return {"zen_jax": zen.__version__, "training_data": self._data, **fixed}

    def _read(self, wanted: State) -> State:
        """The arrays of the last checkpoint, with the shapes and shardings in `wanted`."""
        names = _named(wanted)
        with self._reading():
            saved = {name: leaf.shape for name, leaf in self._manager.item_metadata(self.last())["state"].items()}
        for name in sorted(names.keys() | saved.keys()):
            shapes = [saved.get(name), names[name].shape if name in names else None]
            if shapes[0] != shapes[1]:
                raise ValueError(
                    f"the checkpoint in {self._folder} has {name} of shape {shapes[0]}, but this run has {shapes[1]}: "
                    "it belongs to another model; give another --out"
                )
        with self._reading():
            state = self._manager.restore(self.last(), args=ocp.args.Composite(state=ocp.args.StandardRestore(names)))
        return jax.tree.unflatten(jax.tree.structure(wanted), [state["state"][name] for name in names])

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Inside, any missing or damaged part of the last checkpoint raises ValueError."""
        try:
            yield
        except (ValueError, OSError, KeyError, AttributeError) as error:
            if may_pass(error):
                raise
            raise ValueError(
                f"the checkpoint {self._folder / str(self.last())} is damaged: remove it to continue from the one "
                f"before, or give another --out ({textwrap.shorten(repr(error), 200)})"
            ) from error

    def _share_out(self, leaf: jax.Array) -> jax.Array:
        """Gives each present worker the mean of the old workers' rows."""
        rows = np.asarray(leaf.addressable_data(0))
        mean = rows.mean(axis=0).astype(rows.dtype)
        return self._workers.shard(np.stack([mean] * len(self._workers.local)))


def _named(state: State) -> dict[str, Any]:
    """The leaves in order, keyed by path, so that no container class is part of a checkpoint."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]}


def _abstract(leaf: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
