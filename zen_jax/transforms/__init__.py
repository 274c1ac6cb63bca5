"""Optax gradient transformations."""
