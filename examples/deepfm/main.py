"""Trains DeepFM on categorical fields with ZEN and with dense synchronisation, and compares the two."""

import sys

from examples.common.memory import keep_freed_memory

if __name__ == "__main__":
    keep_freed_memory()

from examples.common import app
from examples.deepfm.config import Config
from examples.deepfm.data import Dataset
from examples.deepfm.task import click_through, load

EXAMPLE = app.Example("examples.deepfm.main", __doc__, Config, Dataset, load, click_through)

if __name__ == "__main__":
    sys.exit(app.main(EXAMPLE, sys.argv[1:]))
