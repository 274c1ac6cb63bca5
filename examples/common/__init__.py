"""Code shared by the examples: options, workers, the training loop, checkpoints and reports."""
