"""Errors that the user can mend, as distinct from those of the program or its machines."""

import contextlib
from collections.abc import Iterator


class BadInput(ValueError):
    """Options, data or a checkpoint that cannot be used: starting again will not help. The message says why.

    A run whose training diverged is one, too: it would diverge again, bit for bit.
    """


@contextlib.contextmanager
def errors_as_bad_input() -> Iterator[None]:
    """Inside, anything that cannot be used or read raises BadInput."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise BadInput(str(error)) from error
