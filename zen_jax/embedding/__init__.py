"""Embedding tables whose gradients are the size of the batch, not of the table.

`zen_jax.embedding.nnx` and `zen_jax.embedding.linen` hold Flax modules; they import Flax, when they are first used.
"""

import importlib
from types import ModuleType

from zen_jax.embedding.gradient import value_and_grad as value_and_grad
from zen_jax.embedding.lookup import TakenRows as TakenRows
from zen_jax.embedding.lookup import bag as bag
from zen_jax.embedding.lookup import lookup as lookup
from zen_jax.embedding.lookup import take_rows as take_rows
from zen_jax.embedding.optimizers import densify as densify
from zen_jax.embedding.optimizers import lazy as lazy


def __getattr__(name: str) -> ModuleType:
    if name in ("linen", "nnx"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
