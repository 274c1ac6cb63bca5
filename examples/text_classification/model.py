"""The classifier: an embedding, attention that weights the words of a comment, and a hidden layer."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from zen_jax.embedding.linen import Embed


class Classifier(nn.Module):
    """The table of `vocab` rows holds nearly all parameters, and a step touches few of its rows."""

    vocab: int
    dim: int
    hidden: int
    labels: int

    @nn.compact
    def __call__(self, words: jax.Array, count: jax.Array) -> jax.Array:
        """words [batch, length], of which the first `count` [batch] are read -> a logit for each label."""
        vectors = Embed(self.vocab, self.dim, embedding_init=nn.initializers.normal(0.1), name="embedding")(words)
        # Padding words have a weight of exactly 0, and a gradient of exactly 0.
        read = jnp.arange(words.shape[1])[None, :] < count[:, None]
        scores = jnp.where(read, nn.Dense(1, name="attention")(vectors)[..., 0], -jnp.inf)
        comment = jnp.einsum("bl,bld->bd", nn.softmax(scores, axis=1), vectors)
        return nn.Dense(self.labels, name="out")(nn.relu(nn.Dense(self.hidden, name="hidden")(comment)))


def log_loss(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Cross-entropy of targets [batch, labels], 0 or 1: summed over the labels, averaged over the comments."""
    return jnp.mean(jnp.sum(nn.softplus(logits) - targets * logits, axis=-1))
