"""Multi-label text classification whose embedding gradients are synchronised by ZEN."""
