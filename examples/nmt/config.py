"""The options of the example."""

import dataclasses
from pathlib import Path

from examples.common import config
from examples.common.config import option


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """Defaults: two embedding tables of at most 16,000 x 256 (8.2M parameters) and 8 workers, sized for 2 CPU cores."""

    data: Path | None = option(
        None,
        "folder with train.tsv and valid.tsv (or .tsv.gz), 'source<TAB>target' lines (default: an invented language)",
    )
    vocab: int = option(16_000, "most frequent words kept of each language, including <eos> and <unk>", least=4)
    length: int = option(16, "words in the longest sentence kept", least=1)
    dim: int = option(256, "width of both embedding tables", least=1)
    hidden: int = option(128, "width of the LSTMs", least=1)
    negatives: int = option(256, "words sampled for the softmax, per worker and step", least=1)
    batch: int = option(16, "sentence pairs per worker", least=1)
    learning_rate: float = option(0.1, "learning rate of Adagrad")
    out: Path = option(Path("runs/nmt"), "where results and checkpoints go")
