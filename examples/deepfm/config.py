"""The options of the example."""

import dataclasses
from pathlib import Path

from examples.common import config
from examples.common.config import option


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """Defaults: with the flights, a table of 130,819 x 32 (4.2M parameters) and 8 workers, sized for 2 CPU cores."""

    data: Path | None = option(None, "folder of nycflights_ctr, with data.npz (default: a synthetic set)")
    dim: int = option(32, "width of the embedding table", least=1)
    hidden: int = option(64, "width of both hidden layers", least=1)
    batch: int = option(128, "examples per worker and step", least=1)
    learning_rate: float = option(0.1, "learning rate of Adagrad")
    out: Path = option(Path("runs/deepfm"), "where results and checkpoints go")
