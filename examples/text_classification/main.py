"""Trains a classifier of comments with ZEN and with dense synchronisation, and compares the two."""

import sys

from examples.common.memory import keep_freed_memory

if __name__ == "__main__":
    keep_freed_memory()

from examples.common import app
from examples.text_classification.config import Config
from examples.text_classification.data import Dataset
from examples.text_classification.task import classification, load

EXAMPLE = app.Example(
    "examples.text_classification.main", __doc__, Config, Dataset, load, classification, ("vocab", "length")
)

if __name__ == "__main__":
    sys.exit(app.main(EXAMPLE, sys.argv[1:]))
