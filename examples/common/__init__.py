"""What the examples share: options, workers, the training loop, checkpoints and reports."""
