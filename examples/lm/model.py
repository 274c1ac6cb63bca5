"""The language model: embedding, LSTM, projection and a sampled softmax over an untied output embedding."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

Carry = tuple[jax.Array, jax.Array]


class LanguageModel(nnx.Module):
    """Two tables of `vocab` rows hold nearly all parameters, and a step touches few rows of either."""

    def __init__(self, vocab: int, dim: int, hidden: int, *, rngs: nnx.Rngs):
        self.input_embedding = nnx.Embed(vocab, dim, rngs=rngs)
        self.lstm = nnx.RNN(nnx.OptimizedLSTMCell(dim, hidden, rngs=rngs), return_carry=True, rngs=False)
        self.projection = nnx.Linear(hidden, dim, rngs=rngs)
        self.output_embedding = nnx.Embed(vocab, dim, rngs=rngs)

    def __call__(self, tokens: jax.Array, carry: Carry) -> tuple[Carry, jax.Array]:
        """tokens [batch, time] -> the carry at the end and features [batch, time, dim]."""
        carry, outputs = self.lstm(self.input_embedding(tokens), initial_carry=carry)
        return carry, self.projection(outputs)


def initial_carry(batch: int, hidden: int) -> Carry:
    """The LSTM's state before the first word."""
    return jnp.zeros((batch, hidden)), jnp.zeros((batch, hidden))


def sampled_softmax_loss(
    table: jax.Array, features: jax.Array, targets: jax.Array, key: jax.Array, negatives: int
) -> jax.Array:
    """Mean cross-entropy of targets [...] given features [..., dim], against words drawn once for all of them.

    Only the rows of `table` [vocab, dim] named by the targets and the sample get a gradient.
    """
    vocab, dim = table.shape
    features, targets = features.reshape(-1, dim), targets.reshape(-1)
    sample = log_uniform_sample(key, vocab, negatives)
    rows = table[jnp.concatenate([targets, sample])]
    target_rows, sample_rows = rows[: targets.size], rows[targets.size :]
    # Subtracting log(expected count) makes the sampled softmax estimate the full one.
    target_logits = jnp.sum(features * target_rows, axis=-1) - _log_expected_count(targets, vocab, negatives)
    sample_logits = features @ sample_rows.T - _log_expected_count(sample, vocab, negatives)[None, :]
    sample_logits = jnp.where(sample[None, :] == targets[:, None], -jnp.inf, sample_logits)
    logits = jnp.concatenate([target_logits[:, None], sample_logits], axis=-1)
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - target_logits)


def full_softmax_loss(table: jax.Array, features: jax.Array, targets: jax.Array) -> jax.Array:
    """Mean cross-entropy over the whole vocabulary; its exponential is the perplexity."""
    log_probabilities = jax.nn.log_softmax(features @ table.T, axis=-1)
    return -jnp.mean(jnp.take_along_axis(log_probabilities, targets[..., None], axis=-1))


def log_uniform_sample(key: jax.Array, vocab: int, count: int) -> jax.Array:
    """`count` word ids, with replacement, P(id) = log((id + 2) / (id + 1)) / log(vocab + 1): Zipf's law for ranks."""
    uniform = jax.random.uniform(key, (count,))
    ids = jnp.exp(uniform * jnp.log(vocab + 1.0)).astype(jnp.int32) - 1
    return lax.clamp(0, ids, vocab - 1)


def _log_expected_count(ids: jax.Array, vocab: int, count: int) -> jax.Array:
    probability = jnp.log1p(1.0 / (ids + 1.0)) / jnp.log(vocab + 1.0)
    return jnp.log(count * probability)
