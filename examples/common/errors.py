"""Errors of whoever starts an example, apart from those that training runs into."""

import contextlib
from collections.abc import Iterator


class BadInput(ValueError):
    """Options, data or a checkpoint that cannot be used: starting again will not help. The message says why."""


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Inside, whatever cannot be used, or read, is a BadInput."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise BadInput(str(error)) from error
