"""How many bytes travel: near exact-sized Balanced Parallelism, and with `auto` never much more than dense."""

import numpy as np
import oracle
import pytest
from cases import sparse, structured
from harness import info_of


def _moved(info):
    return info.bytes_pushed + info.bytes_pulled


@pytest.mark.parametrize("n", [2, 8])
@pytest.mark.parametrize("shape", [(1_000_000,), (60_000, 16)])
def test_bytes_near_exact_messages(shape, n):
    """At most 1.15 times exact-sized Balanced Parallelism with capacities from the data, 1.35 times by default."""
    width = shape[1] if len(shape) > 1 else 1
    options = {"scheme": "zen", "unit": "row"}
    for density in (0.013, 0.05, 0.2):
        stack = sparse(np.random.default_rng(0), n, shape, density)
        exact = oracle.balanced_parallelism_bytes(stack, width)
        default = info_of(stack, **options)
        assert 0.95 * exact <= _moved(default) <= 1.35 * exact, f"density {density}"
        if density == 0.05:
            _, push, pull = oracle.message_counts(stack)
            given = info_of(stack, capacity=(int(push.max()), int(pull.max())), **options)
            assert 0.95 * exact <= _moved(given) <= 1.15 * exact


@pytest.mark.parametrize("n", [2, 8])
def test_small_messages_stay_small(n):
    """By default a message has room for 4 KiB of values, under 9 KiB with their indices; a plan does not need it."""
    stack = sparse(np.random.default_rng(0), n, (20_000,), 0.002)
    exact = oracle.balanced_parallelism_bytes(stack)
    _, push, pull = oracle.message_counts(stack)
    options = {"scheme": "zen", "unit": "row"}
    assert _moved(info_of(stack, **options)) <= exact + (n - 1) * (9 << 10) + (n - 1) * (5 << 10)
    given = info_of(stack, capacity=(int(push.max()), int(pull.max())), **options)
    assert _moved(given) <= 1.15 * exact


@pytest.mark.parametrize(("n", "unit"), [(2, "row"), (2, "element"), (3, "row"), (3, 4)])
def test_auto_gathers_among_few_workers(n, unit):
    """There it is agsparse, which takes one exchange; explicit capacities are those of servers."""
    stack = sparse(np.random.default_rng(0), n, (20_000, 16), 0.05)
    auto, gathered = (info_of(stack, scheme=scheme, unit=unit) for scheme in ("auto", "agsparse"))
    assert auto == gathered
    on_servers = info_of(stack, scheme="zen", unit=unit, capacity=(1000, 1000))
    assert info_of(stack, scheme="auto", unit=unit, capacity=(1000, 1000)) == on_servers
    assert _moved(auto) <= 1.1 * _moved(info_of(stack, scheme="zen", unit=unit))


@pytest.mark.parametrize(("n", "unit"), [(3, "element"), (3, 2), (4, "element")])
def test_auto_does_not_gather_where_push_and_pull_move_less(n, unit):
    stack = sparse(np.random.default_rng(0), n, (20_000, 16), 0.05)
    auto, on_servers, gathered = (info_of(stack, scheme=scheme, unit=unit) for scheme in ("auto", "zen", "agsparse"))
    assert auto == on_servers
    assert _moved(auto) <= _moved(gathered)


def test_dense_is_taken_when_it_is_smaller():
    """`auto` never moves much more than a dense all-reduce; `zen` never takes it."""
    n = 4
    full = structured(n, (509,))["all dense"]
    auto, zen_info = info_of(full, scheme="auto"), info_of(full, scheme="zen")
    assert auto.dense_taken == 1
    # What workers tell each other before going dense: 8 bytes each.
    assert auto.bytes_pushed + auto.bytes_pulled == auto.bytes_dense + (n - 1) * 8
    assert zen_info.dense_taken == 0
    assert zen_info.bytes_pushed + zen_info.bytes_pulled > zen_info.bytes_dense
    thin = structured(n, (509,))["sparse rows"]
    assert info_of(thin, scheme="auto").dense_taken == 0
    for scheme in ("dense", "dense_ordered"):
        info = info_of(thin, scheme=scheme)
        assert info.dense_taken == 1
        assert info.bytes_pushed + info.bytes_pulled == info.bytes_dense
