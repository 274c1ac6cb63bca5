"""The translator: LSTM encoder and decoder with Luong's global attention."""

import jax
import jax.numpy as jnp
from flax import nnx

from examples.nmt.data import EOS
from zen_jax.embedding.nnx import Embed


class Translator(nnx.Module):
    """Two tables hold nearly all parameters; that of the target language is both input and output embedding.

    Source: Luong et al., "Effective Approaches to Attention-based Neural Machine Translation" (EMNLP 2015),
    section 3.1, score "general", without input feeding.
    """

    def __init__(self, source_vocab: int, target_vocab: int, dim: int, hidden: int, *, rngs: nnx.Rngs):
        self.source_embedding = Embed(source_vocab, dim, rngs=rngs)
        self.target_embedding = Embed(target_vocab, dim, rngs=rngs)
        self.encoder = nnx.RNN(nnx.OptimizedLSTMCell(dim, hidden, rngs=rngs), return_carry=True, rngs=False)
        self.decoder = nnx.RNN(nnx.OptimizedLSTMCell(dim, hidden, rngs=rngs), rngs=False)
        self.score = nnx.Linear(hidden, hidden, use_bias=False, rngs=rngs)
        self.projection = nnx.Linear(2 * hidden, dim, rngs=rngs)

    def __call__(self, source: jax.Array, target: jax.Array) -> jax.Array:
        """source [batch, length], target [batch, time] so far -> features of what comes next [batch, time, dim]."""
        inside = in_sentence(source)
        rest = jnp.zeros((len(source), self.score.in_features))
        words = self.source_embedding(source)
        carry, states = self.encoder(words, initial_carry=(rest, rest), seq_lengths=jnp.sum(inside, axis=1))
        outputs = self.decoder(self.target_embedding(target), initial_carry=carry)
        scores = jnp.einsum("bth,bsh->bts", self.score(outputs), states)
        weights = jax.nn.softmax(jnp.where(inside[:, None, :], scores, -jnp.inf), axis=-1)
        return self.projection(jnp.concatenate([weights @ states, outputs], axis=-1))


def in_sentence(sentences: jax.Array) -> jax.Array:
    """Marks each sentence [..., length] up to and including its first <eos>."""
    is_eos = sentences == EOS
    return jnp.cumsum(is_eos, axis=-1) - is_eos == 0
