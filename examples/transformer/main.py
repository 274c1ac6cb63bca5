"""Trains a decoder-only transformer with gradients compressed by DGC, and compares schemes for synchronising them."""

import sys

from examples.common.memory import keep_freed_memory

if __name__ == "__main__":
    keep_freed_memory()

from examples.common import app
from examples.common.text import Corpus
from examples.transformer.config import Config
from examples.transformer.task import compressed_language_modelling, load

EXAMPLE = app.Example(
    "examples.transformer.main", __doc__, Config, Corpus, load, compressed_language_modelling, ("vocab",)
)

if __name__ == "__main__":
    sys.exit(app.main(EXAMPLE, sys.argv[1:]))
