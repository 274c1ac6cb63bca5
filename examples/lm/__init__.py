"""A word-level LSTM language model whose embedding gradients are synchronised by ZEN."""
