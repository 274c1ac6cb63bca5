"""The language model as a task: text, model and loss."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from examples.common import text
from examples.common.softmax import log_uniform_sample, sampled_cross_entropy
from examples.common.task import PyTree, Task
from examples.lm.config import Config
from examples.lm.model import Carry, LanguageModel, initial_carry


def load(config: Config) -> text.Corpus:
    """The text; raises BadInput if it cannot be used."""
    return text.load_corpus(config.data, config.vocab)


def language_modelling(config: Config, corpus: text.Corpus) -> Task:
    """Makes the model; raises BadInput if there is too little text."""
    vocab = len(corpus.words)
    streams = text.streams(corpus.train, config.workers, config.batch, config.unroll)
    graph, params = nnx.split(LanguageModel(vocab, config.dim, config.hidden, rngs=nnx.Rngs(config.seed)))

    def batch(step: int, workers: Sequence[int]) -> np.ndarray:
        return text.window(streams, step, config.unroll)[workers]

    def loss(params: nnx.State, carry: Carry, words: jax.Array, key: jax.Array) -> tuple[jax.Array, Carry]:
        model = nnx.merge(graph, params)
        carry, features = model(words[:, :-1], carry)
        table = model.output_embedding.embedding.get_value()
        return jnp.mean(sampled_cross_entropy(table, features, words[:, 1:], key, config.negatives)), carry

    def lookups(carry: Carry, words: jax.Array, key: jax.Array) -> dict[str, PyTree]:
        sample = log_uniform_sample(key, vocab, config.negatives)
        return {"input_embedding/embedding": words[:, :-1], "output_embedding/embedding": (words[:, 1:], sample)}

    return Task(
        lines=(
            f"text     {corpus.source}: {len(corpus.train):,} words, {vocab:,} distinct",
            f"model    {2 * vocab * config.dim / 1e6:.2f}M parameters in two embedding tables, LSTM of {config.hidden}",
        ),
        items="words",
        items_per_step=config.workers * config.batch * config.unroll,
        params=params,
        carry=initial_carry(config.batch, config.hidden),
        batch=batch,
        loss=loss,
        lookups=lookups,
        optimizer=optax.adagrad(config.learning_rate),
        metric="perplexity",
        validate=_perplexity(graph, corpus.valid, config.hidden),
    )


def _perplexity(graph: nnx.GraphDef, tokens: np.ndarray, hidden: int) -> Callable[[nnx.State], float | None]:
    """Full-softmax perplexity on slices spread over the validation text."""
    streams, length = 20, min(101, len(tokens) // 20)
    words = tokens[: len(tokens) // streams * streams].reshape(streams, -1)[:, :length]

    @jax.jit
    def loss_fun(params: nnx.State, words: np.ndarray) -> jax.Array:
        model = nnx.merge(graph, params)
        _, features = model(words[:, :-1], initial_carry(streams, hidden))
        logits = features @ model.output_embedding.embedding[...].T
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, words[:, 1:]))

    return lambda params: float(jnp.exp(loss_fun(params, words))) if length > 1 else None
