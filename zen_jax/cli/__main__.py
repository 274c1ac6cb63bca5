"""`python -m zen_jax.cli`, the same as `zen-jax`."""

import sys

from zen_jax.cli.main import script

if __name__ == "__main__":
    sys.exit(script())
