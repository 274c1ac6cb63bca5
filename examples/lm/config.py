"""The options of the example."""

import dataclasses
from pathlib import Path

from examples.common import config, text
from examples.common.config import option


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """Defaults: two embedding tables of 20,000 x 256 (10.24M parameters) and 8 workers, sized for 2 CPU cores."""

    data: Path | None = option(None, text.DATA)
    vocab: int = option(20_000, "most frequent words kept, including <eos> and <unk>", least=4)
    dim: int = option(256, "width of both embedding tables", least=1)
    hidden: int = option(128, "width of the LSTM", least=1)
    negatives: int = option(256, "words sampled for the softmax, per worker and step", least=1)
    batch: int = option(8, "text streams per worker", least=1)
    unroll: int = option(20, "words per stream and step (truncated back-propagation through time)", least=1)
    # At 0.2, training amplifies last-bit differences by 1e5 or more.
    learning_rate: float = option(0.1, "learning rate of Adagrad")
    out: Path = option(Path("runs/lm"), "where results and checkpoints go")
