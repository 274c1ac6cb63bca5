"""The language model: embedding, LSTM, projection and a sampled softmax over an untied output embedding."""

import jax
import jax.numpy as jnp
from flax import nnx

from zen_jax.embedding.nnx import Embed

Carry = tuple[jax.Array, jax.Array]


class LanguageModel(nnx.Module):
    """Two tables of `vocab` rows hold nearly all parameters, and a step touches few rows of either."""

    def __init__(self, vocab: int, dim: int, hidden: int, *, rngs: nnx.Rngs):
        self.input_embedding = Embed(vocab, dim, rngs=rngs)
        self.lstm = nnx.RNN(nnx.OptimizedLSTMCell(dim, hidden, rngs=rngs), return_carry=True, rngs=False)
        self.projection = nnx.Linear(hidden, dim, rngs=rngs)
        self.output_embedding = Embed(vocab, dim, rngs=rngs)

    def __call__(self, tokens: jax.Array, carry: Carry) -> tuple[Carry, jax.Array]:
        """tokens [batch, time] -> the final carry and features [batch, time, dim]."""
        carry, outputs = self.lstm(self.input_embedding(tokens), initial_carry=carry)
        return carry, self.projection(outputs)


def initial_carry(batch: int, hidden: int) -> Carry:
    """The LSTM's state before the first word."""
    return jnp.zeros((batch, hidden)), jnp.zeros((batch, hidden))
