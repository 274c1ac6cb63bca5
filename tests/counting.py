"""A very small example that the tests train, stop, kill and resume. `python -m tests.counting` runs it."""

import dataclasses
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import zen_jax as zen
from examples.common import app, config
from examples.common.checkpoint import Checkpoints
from examples.common.config import option
from examples.common.task import Task


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    rows: int = option(40, "rows of the table", least=1)
    workers: int = option(4, "workers", least=1)
    steps: int = option(8, "steps", least=1)


@dataclasses.dataclass(frozen=True)
class Data:
    """Batches are drawn at random; only the name of the data matters."""

    name: np.ndarray


def load(config: Config) -> Data:
    if (config.out / f"blind-{jax.process_index()}").exists():  # for tests of a file system that shows files late
        Checkpoints.last = lambda self: None
    return Data(np.array(str(config.data)))


def counting(config: Config, data: Data) -> Task:
    """Table rows that learn a number, with sparsified gradients and a count that each worker carries along."""

    def batch(step, workers):
        while (config.out / f"hold-{jax.process_index()}").exists():  # for tests of a process whose input hangs
            (config.out / f"held-{jax.process_index()}").touch()
            time.sleep(0.05)
        return np.stack([np.random.default_rng((step, worker)).integers(0, config.rows, 6) for worker in workers])

    def loss(params, carry, ids, key):
        noise = jax.random.normal(key, ids.shape)
        return jnp.mean((params["table"][ids, 0] - 1 + 0.1 * noise) ** 2) + 0.01 * jnp.sin(carry), carry + 1

    return Task(
        lines=(f"table    {config.rows} rows",),
        items="rows",
        items_per_step=6 * config.workers,
        params={"table": jnp.zeros((config.rows, 2))},
        batch=batch,
        loss=loss,
        optimizer=optax.adam(config.learning_rate),
        metric="mean",
        validate=lambda params: float(jnp.mean(params["table"])),
        carry=jnp.zeros(()),
        sparsifier=zen.top_k(0.05),  # fewer than the elements that a batch touches, so that some remain
        synchronize={"unit": "element", "dense_below": 0},
    )


EXAMPLE = app.Example("tests.counting", "Counts.", Config, Data, load, counting)

if __name__ == "__main__":
    sys.exit(app.main(EXAMPLE, sys.argv[1:]))
