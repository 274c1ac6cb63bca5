"""Trains a word-level LSTM language model with ZEN and with dense synchronisation, and compares the two."""

import sys

from examples.common.memory import keep_freed_memory

if __name__ == "__main__":
    keep_freed_memory()

from examples.common import app
from examples.common.text import Corpus
from examples.lm.config import Config
from examples.lm.task import language_modelling, load

EXAMPLE = app.Example("examples.lm.main", __doc__, Config, Corpus, load, language_modelling, ("vocab",))

if __name__ == "__main__":
    sys.exit(app.main(EXAMPLE, sys.argv[1:]))
