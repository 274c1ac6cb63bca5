"""Synchronisation schemes: pure functions over a named axis."""

from zen_jax.schemes.registry import names as names
