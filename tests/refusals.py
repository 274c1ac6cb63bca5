"""What every error for bad input must be: a ValueError that names what is wrong and says what to do."""

import re

import pytest

# Either what is required ("must be at least 1"), or another sentence on what to do.
ADVICE = re.compile(r"\b(must|needs|Add|Call|Give|[Mm]ake|Pad|Pass|Take|Use)\b")


def refuses(call, *fragments):
    """`call` raises a ValueError whose message contains every fragment and says what to do."""
    with pytest.raises(ValueError) as error:
        call()
    message = str(error.value)
    for fragment in fragments:
        assert fragment in message, f"{fragment!r} is not in {message!r}"
    assert ADVICE.search(message), f"{message!r} does not say what to do"
