"""The distribution that synthetic data sets are drawn from."""

import numpy as np


def zipf(rng: np.random.Generator, count: int | np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Ids from 0 to count - 1, int32 of the given shape, distributed by Zipf's law: P(id) falls as 1 / (id + 1).

    `count` may be an array that broadcasts against the shape.
    """
    # The logarithm of a rank is uniform.
    ranks = np.exp(rng.random(shape) * np.log(count + 1)).astype(np.int32)
    return (ranks - 1).clip(0, count - 1).astype(np.int32)
