"""A Flax linen embedding whose gradient can be row-sparse."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from zen_jax._typing import Array
from zen_jax.embedding.lookup import is_taken, looked_up


class Embed(nn.Module):
    """Like `flax.linen.Embed`, for `zen_jax.embedding.value_and_grad`; supports bags and padding.

    It has no `attend`, which reads the whole table and so needs its dense gradient.

    Attributes:
      num_embeddings: rows V of the table.
      features: elements D of a row.
      combiner: None to look up single ids; "sum" or "mean" over bags of ids, along their last axis.
      padding_id: as in `zen_jax.embedding.lookup`.
      dtype: dtype of the output, by default the table's.
      param_dtype: dtype of the table.
      embedding_init: initialises the table.

    >>> from zen_jax.embedding import value_and_grad
    >>> model, ids = Embed(1000, 4), jnp.array([7, 3, 7])
    >>> params = model.init(jax.random.key(0), ids)
    >>> step = value_and_grad(lambda params, ids: model.apply(params, ids).sum(), lambda ids: {"params/embedding": ids})
    >>> value, gradients = step(params, ids)
    >>> gradients["params"]["embedding"].ids.tolist()
    [3, 7, 1000]
    """

    num_embeddings: int
    features: int
    combiner: str | None = None
    padding_id: int | None = None
    dtype: jnp.dtype | None = None
    param_dtype: jnp.dtype = jnp.float32
    embedding_init: jax.nn.initializers.Initializer = nn.linear.default_embed_init

    @nn.compact
    def __call__(self, ids: Array) -> Array:
        """[*ids.shape, D], or [*ids.shape[:-1], D] with a combiner."""
        shape = (self.num_embeddings, self.features)
        # In value_and_grad a TakenRows stands for the table: self.param refuses it, and a box would shard it.
        held = self.get_variable("params", "embedding")
        taken = [leaf for leaf in jax.tree.leaves(held, is_leaf=is_taken) if is_taken(leaf)]
        table = taken[0] if taken else self.param("embedding", self.embedding_init, shape, self.param_dtype)
        return looked_up(table, ids, self.combiner, self.padding_id, self.dtype)
