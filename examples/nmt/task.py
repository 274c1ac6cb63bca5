"""Translation as a task: sentence pairs, model and loss."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from examples.common.epochs import shuffled
from examples.common.softmax import log_uniform_sample, sampled_cross_entropy
from examples.common.task import PyTree, Task
from examples.nmt import data
from examples.nmt.config import Config
from examples.nmt.model import Translator, in_sentence

_CLIP_NORM = 1.0  # without it, losses spike at the default learning rate
_VALID = 8, 64  # batches, and pairs in each


def load(config: Config) -> data.Bitext:
    """The sentence pairs; raises BadInput if the files cannot be used."""
    return data.load(config.data, config.vocab, config.length, config.seed)


def translation(config: Config, bitext: data.Bitext) -> Task:
    """Makes the model; raises BadInput if there are too few pairs."""
    chosen = shuffled(len(bitext.train.source), config)
    graph, params = nnx.split(Translator(*bitext.vocab, config.dim, config.hidden, rngs=nnx.Rngs(config.seed)))

    def batch(step: int, workers: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        rows = chosen(step, workers)
        return bitext.train.source[rows], bitext.train.target[rows]

    def loss(params: nnx.State, carry: tuple, pairs: tuple, key: jax.Array) -> tuple[jax.Array, tuple]:
        source, target = pairs
        model = nnx.merge(graph, params)
        features = model(source, _shifted(target))
        table = model.target_embedding.embedding.get_value()
        return _mean(sampled_cross_entropy(table, features, target, key, config.negatives), target), carry

    def lookups(carry: tuple, pairs: tuple, key: jax.Array) -> dict[str, PyTree]:
        source, target = pairs
        sample = log_uniform_sample(key, bitext.vocab[1], config.negatives)
        read = _shifted(target), target, sample
        return {"source_embedding/embedding": source, "target_embedding/embedding": read}

    source, target = (f"{count:,}" for count in bitext.vocab)
    return Task(
        lines=(
            f"text     {bitext.about}: {len(bitext.train.source):,} sentence pairs, {source} and {target} words",
            f"model    {sum(bitext.vocab) * config.dim / 1e6:.2f}M parameters in two embedding tables, "
            f"LSTMs of {config.hidden}",
        ),
        items="pairs",
        items_per_step=config.workers * config.batch,
        params=params,
        batch=batch,
        loss=loss,
        lookups=lookups,
        optimizer=optax.chain(optax.clip_by_global_norm(_CLIP_NORM), optax.adagrad(config.learning_rate)),
        metric="perplexity",
        validate=_perplexity(graph, bitext.valid),
    )


def _shifted(target: jax.Array) -> jax.Array:
    """What the decoder has read when it predicts each word of target [batch, time]."""
    return jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=data.EOS)


def _mean(losses: jax.Array, target: jax.Array) -> jax.Array:
    """The mean over the words of target [batch, time], including <eos>."""
    return jnp.mean(losses, where=in_sentence(target))


def _perplexity(graph: nnx.GraphDef, pairs: data.Pairs) -> Callable[[nnx.State], float]:
    """Full-softmax perplexity on the first held-out pairs."""
    batches, size = _VALID
    size = min(size, len(pairs.source))
    count = min(batches, len(pairs.source) // size)

    @jax.jit
    def loss_fun(params: nnx.State, source: np.ndarray, target: np.ndarray) -> tuple[jax.Array, jax.Array]:
        model = nnx.merge(graph, params)
        logits = model(source, _shifted(target)) @ model.target_embedding.embedding[...].T
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, target)
        return jnp.sum(losses, where=in_sentence(target)), jnp.sum(in_sentence(target))

    def validate(params: nnx.State) -> float:
        cuts = [slice(i * size, (i + 1) * size) for i in range(count)]
        sums = np.sum([loss_fun(params, pairs.source[cut], pairs.target[cut]) for cut in cuts], axis=0)
        return float(np.exp(sums[0] / sums[1]))

    return validate
