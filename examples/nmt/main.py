"""Trains a translator, an LSTM with attention, with ZEN and with dense synchronisation, and compares the two."""

import sys

from examples.common.memory import keep_freed_memory

if __name__ == "__main__":
    keep_freed_memory()

from examples.common import app
from examples.nmt.config import Config
from examples.nmt.data import Bitext
from examples.nmt.task import load, translation

EXAMPLE = app.Example("examples.nmt.main", __doc__, Config, Bitext, load, translation, ("vocab", "length"))

if __name__ == "__main__":
    sys.exit(app.main(EXAMPLE, sys.argv[1:]))
