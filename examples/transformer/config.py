"""The options of the example."""

import dataclasses
from pathlib import Path
from typing import Any

from examples.common import config, text
from examples.common.config import option


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """Defaults: 0.9M parameters, all of them compressed, and 8 workers, sized for 2 CPU cores."""

    data: Path | None = option(None, text.DATA)
    sync: tuple[str, ...] = option(("zen", "agsparse", "dense_ordered"), config.SYNC)
    density: float = option(0.05, "share of each gradient that DGC sends; 1 trains without DGC")
    warmup: int = option(0, "steps over which DGC lowers the share from a much larger one to --density", least=0)
    compact: bool = option(False, "keep what DGC sends of the large gradients as a list, never an array")
    vocab: int = option(4_000, "most frequent words kept, including <eos> and <unk>", least=4)
    layers: int = option(2, "transformer blocks", least=1)
    dim: int = option(128, "width of the model", least=1)
    heads: int = option(4, "attention heads; a divisor of --dim", least=1)
    batch: int = option(4, "text streams per worker", least=1)
    length: int = option(32, "words per stream and step, all of which the model sees", least=1)
    learning_rate: float = option(0.3, "learning rate of SGD")
    out: Path = option(Path("runs/transformer"), "where results and checkpoints go")

    def fixed(self, steps: int) -> dict[str, Any]:
        """Not how long a warm-up was that is over, nor whether lists are used, which change no bit.

        Shares of a schedule are float32: after it, a number may send one element fewer of some large array.
        """
        fixed = super().fixed(steps) | {"warmup": self.warmup if steps < self.warmup else 0}
        del fixed["compact"]
        return fixed
