"""The transformer: a scan over decoder blocks in the style of OPT."""

import jax
from flax import nnx
from jax import lax


class Block(nnx.Module):
    """Causal self-attention and a ReLU network, each after a layer norm and with a residual connection."""

    def __init__(self, dim: int, heads: int, *, rngs: nnx.Rngs):
        self.heads = heads
        self.attention_norm = nnx.LayerNorm(dim, use_bias=False, rngs=rngs)
        self.query_key_value = nnx.Linear(dim, 3 * dim, use_bias=False, rngs=rngs)
        self.output = nnx.Linear(dim, dim, use_bias=False, rngs=rngs)
        self.network_norm = nnx.LayerNorm(dim, use_bias=False, rngs=rngs)
        self.up = nnx.Linear(dim, 4 * dim, use_bias=False, rngs=rngs)
        self.down = nnx.Linear(4 * dim, dim, use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, length, dim] -> the same."""
        projected = self.query_key_value(self.attention_norm(x)).reshape(*x.shape[:2], 3, self.heads, -1)
        query, key, value = (projected[:, :, i] for i in range(3))
        attended = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(attended.reshape(x.shape))
        return x + self.down(jax.nn.relu(self.up(self.network_norm(x))))


class Transformer(nnx.Module):
    """Learned positions, blocks without biases, a final norm; one table is both input and output embedding.

    The parameters of all blocks are stacked, so that the block compiles once and the leaves are few and large.

    Source: Zhang et al., "OPT: Open Pre-trained Transformer Language Models" (2022), section 2.
    """

    def __init__(self, vocab: int, length: int, layers: int, dim: int, heads: int, *, rngs: nnx.Rngs):
        self.embedding = nnx.Embed(vocab, dim, rngs=rngs)
        self.positions = nnx.Param(0.02 * jax.random.normal(rngs.params(), (length, dim)))
        self.blocks = nnx.vmap(lambda rngs: Block(dim, heads, rngs=rngs))(rngs.split(layers))
        self.norm = nnx.LayerNorm(dim, use_bias=False, rngs=rngs)

    def __call__(self, words: jax.Array) -> jax.Array:
        """words [batch, length] -> logits of each word's successor [batch, length, vocab]."""
        graph, blocks = nnx.split(self.blocks)
        x = self.embedding(words) + self.positions[...][None]
        x, _ = lax.scan(lambda x, block: (nnx.merge(graph, block)(x), None), x, blocks)
        return self.embedding.attend(self.norm(x))
