"""Cross-entropy against a sample of the vocabulary, so that a step touches few rows of the output embedding."""

import jax
import jax.numpy as jnp
from jax import lax


def sampled_cross_entropy(
    table: jax.Array, features: jax.Array, targets: jax.Array, key: jax.Array, negatives: int
) -> jax.Array:
    """Cross-entropy of each target [...] given features [..., dim], against words drawn once for all of them.

    Only the rows of `table` [vocab, dim] named by the targets and the sample get a gradient. Words are numbered by
    decreasing frequency.
    """
    vocab, dim = table.shape
    features, flat = features.reshape(-1, dim), targets.reshape(-1)
    sample = log_uniform_sample(key, vocab, negatives)
    rows = table[jnp.concatenate([flat, sample])]
    target_rows, sample_rows = rows[: flat.size], rows[flat.size :]
    # Subtracting log(expected count) makes the sampled softmax estimate the full one.
    target_logits = jnp.sum(features * target_rows, axis=-1) - _log_expected_count(flat, vocab, negatives)
    sample_logits = features @ sample_rows.T - _log_expected_count(sample, vocab, negatives)[None, :]
    sample_logits = jnp.where(sample[None, :] == flat[:, None], -jnp.inf, sample_logits)
    logits = jnp.concatenate([target_logits[:, None], sample_logits], axis=-1)
    return (jax.nn.logsumexp(logits, axis=-1) - target_logits).reshape(targets.shape)


def log_uniform_sample(key: jax.Array, vocab: int, count: int) -> jax.Array:
    """`count` word ids, with replacement, P(id) = log((id + 2) / (id + 1)) / log(vocab + 1): Zipf's law for ranks."""
    uniform = jax.random.uniform(key, (count,))
    ids = jnp.exp(uniform * jnp.log(vocab + 1.0)).astype(jnp.int32) - 1
    return lax.clamp(0, ids, vocab - 1)


def _log_expected_count(ids: jax.Array, vocab: int, count: int) -> jax.Array:
    probability = jnp.log1p(1.0 / (ids + 1.0)) / jnp.log(vocab + 1.0)
    return jnp.log(count * probability)
