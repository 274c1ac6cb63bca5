"""A Flax NNX embedding whose gradient can be row-sparse."""

import jax
import jax.numpy as jnp
from flax import nnx

from zen_jax._typing import Array
from zen_jax.embedding.lookup import looked_up


class Embed(nnx.Module):
    """Like `flax.nnx.Embed`, for `zen_jax.embedding.value_and_grad`; supports bags and padding.

    It has no `attend`, which reads the whole table and so needs its dense gradient.

    Args:
      num_embeddings: rows V of the table.
      features: elements D of a row.
      combiner: None to look up single ids; "sum" or "mean" over bags of ids, along their last axis.
      padding_id: as in `zen_jax.embedding.lookup`.
      dtype: dtype of the output, by default the table's.
      param_dtype: dtype of the table.
      embedding_init: initialises the table.
      rngs: supplies the "params" key.

    >>> import jax, optax
    >>> from zen_jax.embedding import value_and_grad
    >>> graph, params = nnx.split(Embed(1000, 4, rngs=nnx.Rngs(0)), nnx.Param)
    >>> loss = lambda params, ids: jnp.sum(nnx.merge(graph, params)(ids))
    >>> step = value_and_grad(loss, lambda ids: {"embedding": ids})
    >>> value, gradients = step(params, jnp.array([7, 3, 7]))
    >>> gradients["embedding"].get_value().ids.tolist()
    [3, 7, 1000]
    """

    def __init__(
        self,
        num_embeddings: int,
        features: int,
        *,
        combiner: str | None = None,
        padding_id: int | None = None,
        dtype: jnp.dtype | None = None,
        param_dtype: jnp.dtype = jnp.float32,
        embedding_init: jax.nn.initializers.Initializer = nnx.nn.linear.default_embed_init,
        rngs: nnx.Rngs,
    ) -> None:
        self.embedding = nnx.Param(embedding_init(rngs.params(), (num_embeddings, features), param_dtype))
        self.num_embeddings, self.features = num_embeddings, features
        self.combiner, self.padding_id, self.dtype, self.param_dtype = combiner, padding_id, dtype, param_dtype

    def __call__(self, ids: Array) -> Array:
        """[*ids.shape, D], or [*ids.shape[:-1], D] with a combiner."""
        table = self.embedding.get_value()
        return looked_up(table, ids, self.combiner, self.padding_id, self.dtype)
