"""Optax gradient transformations."""

from zen_jax.transforms.synchronize import synchronize as synchronize
