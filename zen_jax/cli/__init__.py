"""The `zen-jax` command: a file for each subcommand, and what they share."""
