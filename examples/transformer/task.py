"""The transformer as a task: text, model, loss and compression."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import zen_jax as zen
from examples.common import text
from examples.common.task import Task
from examples.transformer.config import Config
from examples.transformer.model import Transformer

_MOMENTUM, _CLIP_NORM = 0.9, 1.0


def load(config: Config) -> text.Corpus:
    """The text; raises BadInput if it cannot be used."""
    return text.load_corpus(config.data, config.vocab)


def compressed_language_modelling(config: Config, corpus: text.Corpus) -> Task:
    """Makes the model; raises ValueError if an option is invalid or there is too little text."""
    if config.dim % config.heads:
        raise ValueError(f"--dim {config.dim} must be a multiple of --heads {config.heads}")
    if config.density > 1:
        raise ValueError(f"--density {config.density} must be at most 1")
    if config.density == 1 and (config.compact or config.warmup):
        raise ValueError("--density 1 trains without DGC: leave out --compact and --warmup, or give a lower density")
    if config.compact and config.warmup:
        raise ValueError(
            f"--compact has room only for --density; leave it out with --warmup {config.warmup}, and add it when you "
            "resume after that"
        )
    vocab = len(corpus.words)
    streams = text.streams(corpus.train, config.workers, config.batch, config.length)
    model = Transformer(vocab, config.length, config.layers, config.dim, config.heads, rngs=nnx.Rngs(config.seed))
    graph, params = nnx.split(model)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    sparsifier, sent = optax.clip_by_global_norm(_CLIP_NORM), "whole gradients"
    if config.density < 1:
        share = zen.warmup_density(config.density, config.warmup) if config.warmup else config.density
        # With or without DGC, momentum comes after synchronisation: inside DGC, what is sent would lose its momentum.
        sparsifier = optax.chain(sparsifier, zen.dgc(share, momentum=0, compact=config.compact))
        sent = f"{config.density:.3g} of each gradient, chosen by DGC"
        sent += f" (more in the first {config.warmup} steps)" if config.warmup else ""

    def batch(step: int, workers: Sequence[int]) -> np.ndarray:
        return text.window(streams, step, config.length)[workers]

    def loss(params: nnx.State, carry: tuple, words: jax.Array, key: jax.Array) -> tuple[jax.Array, tuple]:
        return _cross_entropy(nnx.merge(graph, params), words), carry

    return Task(
        lines=(
            f"text     {corpus.source}: {len(corpus.train):,} words, {vocab:,} distinct",
            f"model    {count / 1e6:.2f}M parameters, {config.layers} blocks of width {config.dim}",
            f"sends    {sent}",
        ),
        items="words",
        items_per_step=config.workers * config.batch * config.length,
        params=params,
        batch=batch,
        loss=loss,
        optimizer=optax.sgd(config.learning_rate, _MOMENTUM),
        sparsifier=sparsifier,
        # Here every matrix of every block is sparse, far below the size from which matrices usually are.
        synchronize={"unit": "element", "dense_below": 1 << 16},
        metric="loss",
        validate=_validation_loss(graph, corpus.valid, config.length),
    )


def _cross_entropy(model: Transformer, words: jax.Array) -> jax.Array:
    """Mean over words [batch, length + 1] except the first of each row."""
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(model(words[:, :-1]), words[:, 1:]))


def _validation_loss(graph: nnx.GraphDef, tokens: np.ndarray, length: int) -> Callable[[nnx.State], float | None]:
    """Cross-entropy on windows spread over the validation text."""
    windows = min(256, len(tokens) // (length + 1))
    if not windows:
        return lambda params: None
    words = tokens[: len(tokens) // windows * windows].reshape(windows, -1)[:, : length + 1]
    loss_fun = jax.jit(lambda params, words: _cross_entropy(nnx.merge(graph, params), words))
    return lambda params: float(loss_fun(params, words))
