"""The options of the example."""

import dataclasses
from pathlib import Path

from examples.common import config
from examples.common.config import option


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """Defaults: a table of 20,000 x 256 (5.1M parameters) and 8 workers, sized for 2 CPU cores."""

    data: Path | None = option(
        None, "folder of goemotions, with labels.txt, train.tsv.gz and valid.tsv.gz (default: a synthetic set)"
    )
    vocab: int = option(20_000, "most frequent words kept, including <eos> and <unk>", least=3)
    dim: int = option(256, "width of the embedding table", least=1)
    hidden: int = option(128, "width of the hidden layer", least=1)
    length: int = option(32, "words read from each comment", least=1)
    batch: int = option(32, "comments per worker and step", least=1)
    learning_rate: float = option(0.005, "learning rate of Adam")
    out: Path = option(Path("runs/text_classification"), "where results and checkpoints go")
