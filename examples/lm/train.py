"""Training with one synchronisation scheme, from the same start and on the same batches as any other."""

import dataclasses
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax

import zen_jax as zen
from examples.lm import text
from examples.lm.config import Config
from examples.lm.model import LanguageModel, full_softmax_loss, initial_carry, sampled_softmax_loss
from examples.lm.workers import AXIS, EACH, SAME, Devices, Emulated


@dataclasses.dataclass(frozen=True)
class Step:
    """What one step did."""

    loss: float
    seconds: float
    info: dict[str, float]  # the fields of zen.Info


@dataclasses.dataclass
class Run:
    """One training run: its steps so far and, at the end, the perplexity on the validation slice."""

    scheme: str
    steps: list[Step] = dataclasses.field(default_factory=list)
    perplexity: float | None = None


def train(config: Config, corpus: text.Corpus, workers: Emulated | Devices, run: Run) -> Iterator[Step]:
    """Trains for `config.steps` steps, yields each one, and leaves its findings in `run`."""
    model = LanguageModel(len(corpus.words), config.dim, config.hidden, rngs=nnx.Rngs(config.seed))
    graph, params = nnx.split(model)
    optimizer = optax.chain(zen.synchronize(AXIS, scheme=run.scheme), optax.adagrad(config.learning_rate))
    params, optimizer_state = workers.share(params), workers.share(optimizer.init(params))
    carry = workers.spread(
        jax.tree.map(lambda x: np.zeros((workers.count, *x.shape), x.dtype), initial_carry(config.batch, config.hidden))
    )
    streams = text.streams(corpus.train, workers.count * config.batch, config.unroll)

    step_fun = workers.run(
        worker_step(graph, optimizer, config),
        inputs=(SAME, SAME, EACH, EACH, SAME),
        outputs=(SAME, SAME, EACH, SAME, SAME),
    )
    step_fun = jax.jit(step_fun, donate_argnums=(0, 1, 2))
    for step in range(config.steps):
        start = time.perf_counter()
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            words = text.window(streams, step, config.unroll).reshape(workers.count, config.batch, -1)
            params, optimizer_state, carry, loss, info = step_fun(
                params, optimizer_state, carry, workers.spread(words), np.int32(step)
            )
            info = {name: float(value) for name, value in jax.device_get(info)._asdict().items()}
            run.steps.append(Step(float(loss), time.perf_counter() - start, info))
        yield run.steps[-1]
    run.perplexity = perplexity(graph, params, corpus.valid, config)


def worker_step(graph: nnx.GraphDef, optimizer: optax.GradientTransformation, config: Config):
    """What each worker does in a step: its own words and sample, one loss, one synchronised update."""

    def loss_fun(params, carry, words, key):
        model = nnx.merge(graph, params)
        carry, features = model(words[:, :-1], carry)
        table = model.output_embedding.embedding[...]
        return sampled_softmax_loss(table, features, words[:, 1:], key, config.negatives), carry

    def step_fun(params, optimizer_state, carry, words, step):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(config.seed), step), lax.axis_index(AXIS))
        (loss, carry), grads = jax.value_and_grad(loss_fun, has_aux=True)(params, carry, words, key)
        updates, optimizer_state = optimizer.update(grads, optimizer_state, params)
        info = zen.total(list(optax.tree.get(optimizer_state, "info").values()))
        return optax.apply_updates(params, updates), optimizer_state, carry, lax.pmean(loss, AXIS), info

    return step_fun


def perplexity(graph: nnx.GraphDef, params: nnx.State, tokens: np.ndarray, config: Config) -> float | None:
    """Full-softmax perplexity on slices spread over the validation text; None where there is too little of it."""
    streams, length = 20, min(101, len(tokens) // 20)
    if length < 2:
        return None
    words = tokens[: len(tokens) // streams * streams].reshape(streams, -1)[:, :length]

    @jax.jit
    def loss_fun(params, words):
        model = nnx.merge(graph, params)
        _, features = model(words[:, :-1], initial_carry(streams, config.hidden))
        return full_softmax_loss(model.output_embedding.embedding[...], features, words[:, 1:])

    return float(jnp.exp(loss_fun(params, words)))
