"""DeepFM: first-order weights, a factorisation machine and a perceptron over one embedding table.

Source: Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction" (IJCAI 2017).
"""

import jax
import jax.numpy as jnp
from flax import nnx

from zen_jax.embedding.nnx import Embed


class DeepFM(nnx.Module):
    """One table of `rows` rows, field after field, holds nearly all parameters."""

    def __init__(self, rows: int, fields: int, dim: int, hidden: int, *, rngs: nnx.Rngs):
        small = nnx.initializers.normal(0.01)
        self.weights = Embed(rows, 1, embedding_init=small, rngs=rngs)
        self.embedding = Embed(rows, dim, embedding_init=small, rngs=rngs)
        self.first = nnx.Linear(fields * dim, hidden, rngs=rngs)
        self.second = nnx.Linear(hidden, hidden, rngs=rngs)
        self.out = nnx.Linear(hidden, 1, rngs=rngs)

    def __call__(self, rows: jax.Array) -> jax.Array:
        """rows [batch, fields], one for each field -> logits [batch]."""
        vectors = self.embedding(rows)
        deep = nnx.relu(self.first(vectors.reshape(len(rows), -1)))
        deep = nnx.relu(self.second(deep))
        return self.weights(rows).sum(axis=(1, 2)) + pairwise(vectors) + self.out(deep)[:, 0]


def pairwise(vectors: jax.Array) -> jax.Array:
    """The sum of the inner products of all pairs of fields: [batch, fields, dim] -> [batch]."""
    squared_sum, sum_of_squares = vectors.sum(axis=1) ** 2, (vectors**2).sum(axis=1)
    return 0.5 * (squared_sum - sum_of_squares).sum(axis=1)


def log_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross-entropy of labels [batch], 0 or 1, given their logits."""
    return jnp.mean(nnx.softplus(logits) - labels * logits)
