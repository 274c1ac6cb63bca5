"""Programs that show zen_jax at work."""
