"""A decoder-only transformer whose gradients are compressed."""
