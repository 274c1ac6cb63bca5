"""Errors that the user can mend, as distinct from those of the program or its machines."""

import contextlib
import errno
from collections.abc import Iterator

# Of storage that comes back, or a machine that is busy.
_PASSING = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM}


class BadInput(ValueError):
    """Options, data or a checkpoint that cannot be used: starting again will not help. The message says why.

    A run whose training diverged is one, too: it would diverge again, bit for bit.
    """


def may_pass(error: Exception) -> bool:
    """Whether starting again may help, with everything as it is."""
    return isinstance(error, OSError) and error.errno in _PASSING


@contextlib.contextmanager
def errors_as_bad_input() -> Iterator[None]:
    """Inside, anything that cannot be used or read raises BadInput, unless that may pass."""
    try:
        yield
    except (ValueError, OSError) as error:
        if may_pass(error):
            raise
        named = isinstance(error, OSError) and error.filename
        raise BadInput(f"{error.filename}: {error.strerror}: check the path" if named else str(error)) from error
