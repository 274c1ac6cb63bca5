"""Text classification as a task: comments, model and loss."""

from collections.abc import Callable, Sequence

import jax
import numpy as np
import optax

from examples.common.epochs import shuffled
from examples.common.task import PyTree, Task
from examples.text_classification import data
from examples.text_classification.config import Config
from examples.text_classification.model import Classifier, log_loss

_THRESHOLD = 0.3  # a label is predicted if its probability exceeds this
_AT_ONCE = 1024  # validation comments classified together


def load(config: Config) -> data.Dataset:
    """The comments; raises BadInput if they cannot be used."""
    return data.load(config.data, config.vocab, config.length, config.seed)


def classification(config: Config, dataset: data.Dataset) -> Task:
    """Makes the model; raises BadInput if there are too few comments."""
    train, labels = dataset.train, dataset.train.targets.shape[1]
    chosen = shuffled(len(train.words), config)
    model = Classifier(dataset.vocab, config.dim, config.hidden, labels)
    params = model.init(jax.random.key(config.seed), train.words[:1], train.count[:1])["params"]

    def batch(step: int, workers: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return train[chosen(step, workers)]

    def loss(params: PyTree, carry: tuple, comments: tuple, key: jax.Array) -> tuple[jax.Array, tuple]:
        words, count, targets = comments
        return log_loss(model.apply({"params": params}, words, count), targets), carry

    def lookups(carry: tuple, comments: tuple, key: jax.Array) -> dict[str, jax.Array]:
        words, _, _ = comments
        return {"embedding/embedding": words}

    return Task(
        lines=(
            f"data     {dataset.source}: {len(train.words):,} comments, {labels} labels",
            f"model    {dataset.vocab * config.dim / 1e6:.2f}M parameters in a table of {dataset.vocab:,} x "
            f"{config.dim}, a hidden layer of {config.hidden}",
        ),
        items="comments",
        items_per_step=config.workers * config.batch,
        params=params,
        batch=batch,
        loss=loss,
        lookups=lookups,
        optimizer=optax.adam(config.learning_rate),
        metric="micro-F1",
        validate=_micro_f1(model, dataset.valid),
    )


def _micro_f1(model: Classifier, valid: data.Comments) -> Callable[[PyTree], float | None]:
    @jax.jit
    def predict(params: PyTree, words: np.ndarray, count: np.ndarray) -> jax.Array:
        return jax.nn.sigmoid(model.apply({"params": params}, words, count)) > _THRESHOLD

    def validate(params: PyTree) -> float | None:
        parts = [slice(i, i + _AT_ONCE) for i in range(0, len(valid.words), _AT_ONCE)]
        predicted = [predict(params, valid.words[part], valid.count[part]) for part in parts]
        return data.micro_f1(np.concatenate(predicted), valid.targets) if parts else None

    return validate
