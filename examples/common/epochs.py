"""Which examples of a shuffled data set each worker reads in a step."""

import functools
from collections.abc import Callable, Sequence

import numpy as np

from examples.common.config import Config
from examples.common.errors import BadInput


def shuffled(count: int, config: Config) -> Callable[[int, Sequence[int]], np.ndarray]:
    """chosen(step, workers) -> numbers below `count`, int64 [len(workers), batch].

    No two workers read the same example within an epoch, and each epoch has its own order; a remainder too small for
    a step is left out of that epoch. Raises BadInput if `count` examples are too few for one step.
    """
    whole = config.workers * config.batch
    steps = count // whole
    if not steps:
        raise BadInput(
            f"{count:,} training examples are too few for a step of {config.workers} workers x {config.batch}: "
            "give more data, or lower --workers or --batch"
        )

    @functools.lru_cache(maxsize=1)
    def order(epoch: int) -> np.ndarray:
        return np.random.default_rng((config.seed, epoch)).permutation(count)

    def chosen(step: int, workers: Sequence[int]) -> np.ndarray:
        epoch, within = divmod(step, steps)
        rows = order(epoch)[within * whole : (within + 1) * whole].reshape(config.workers, config.batch)
        return rows[np.asarray(workers)]

    return chosen
