"""DeepFM, a click-through model, whose embedding gradients are synchronised by ZEN."""
