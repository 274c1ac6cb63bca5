"""DeepFM as a task: data, model and loss."""

from collections.abc import Callable, Sequence

import jax
import numpy as np
import optax
from flax import nnx

from examples.common.epochs import shuffled
from examples.common.task import Task
from examples.deepfm import data
from examples.deepfm.config import Config
from examples.deepfm.model import DeepFM, log_loss

_AT_ONCE = 4096  # validation examples scored together


def load(config: Config) -> data.Dataset:
    """The examples; raises BadInput if they cannot be used."""
    return data.load(config.data, config.seed)


def click_through(config: Config, dataset: data.Dataset) -> Task:
    """Makes the model; raises BadInput if there are too few examples."""
    train, fields = dataset.train, dataset.train.rows.shape[1]
    chosen = shuffled(len(train.labels), config)
    model = DeepFM(dataset.rows, fields, config.dim, config.hidden, rngs=nnx.Rngs(config.seed))
    graph, params = nnx.split(model)

    def batch(step: int, workers: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        examples = chosen(step, workers)
        return train.rows[examples], train.labels[examples]

    def loss(params: nnx.State, carry: tuple, examples: tuple, key: jax.Array) -> tuple[jax.Array, tuple]:
        rows, labels = examples
        return log_loss(nnx.merge(graph, params)(rows), labels), carry

    def lookups(carry: tuple, examples: tuple, key: jax.Array) -> dict[str, jax.Array]:
        rows, _ = examples
        return {"embedding/embedding": rows, "weights/embedding": rows}

    return Task(
        lines=(
            f"data     {dataset.source}: {len(train.labels):,} examples of {fields} fields",
            f"model    {dataset.rows * (config.dim + 1) / 1e6:.2f}M parameters in a table of {dataset.rows:,} x "
            f"{config.dim} and its first-order weights, two layers of {config.hidden}",
        ),
        items="examples",
        items_per_step=config.workers * config.batch,
        params=params,
        batch=batch,
        loss=loss,
        lookups=lookups,
        optimizer=optax.adagrad(config.learning_rate),
        metric="AUC",
        validate=_auc(graph, dataset.valid),
        # The first-order weights take few bytes but are as sparse as the table: only smaller leaves are sent dense.
        synchronize={"dense_below": params["weights"]["embedding"].get_value().nbytes},
    )


def _auc(graph: nnx.GraphDef, valid: data.Examples) -> Callable[[nnx.State], float | None]:
    @jax.jit
    def score(params: nnx.State, rows: np.ndarray) -> jax.Array:
        return nnx.merge(graph, params)(rows)

    def validate(params: nnx.State) -> float | None:
        parts = [score(params, valid.rows[i : i + _AT_ONCE]) for i in range(0, len(valid.labels), _AT_ONCE)]
        return data.auc(np.concatenate(parts), valid.labels) if parts else None

    return validate
