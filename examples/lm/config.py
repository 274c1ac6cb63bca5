"""What a run of the example depends on."""

import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Config:
    """Defaults: two embedding tables of 20,000 x 256 (10.24M parameters) and 8 workers, sized for 2 CPU cores."""

    # Text
    data: Path | None = None  # directory or file; None reads Python's own standard library
    vocab: int = 20_000  # most frequent words kept, <eos> and <unk> among them

    # Model
    dim: int = 256  # width of both embedding tables
    hidden: int = 128  # width of the LSTM
    negatives: int = 256  # words sampled for the softmax, per worker and step

    # Training
    workers: int = 8
    batch: int = 8  # text streams per worker
    unroll: int = 20  # words per stream and step (truncated back-propagation through time)
    steps: int = 200
    learning_rate: float = 0.1  # at 0.2 training amplifies last-bit differences by 1e5 and more
    seed: int = 0
    sync: tuple[str, ...] = ("zen", "dense_ordered", "dense")  # one training run each

    # Output
    out: Path = Path("runs/lm")

    @property
    def tokens_per_step(self) -> int:
        """Words that all workers together read in one step."""
        return self.workers * self.batch * self.unroll
