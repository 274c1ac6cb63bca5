"""Groups small leaves into buckets, each of which is sent as one message."""

from collections.abc import Hashable, Sequence

DENSE_BELOW = 1 << 20  # bytes under which a leaf costs latency rather than bandwidth
BUCKET_BYTES = 128 << 20


def buckets(leaves: Sequence[tuple[Hashable, int]], bucket_bytes: int) -> list[list[int]]:
    """Puts leaves of one kind, such as a dtype, into buckets of at most `bucket_bytes` where possible.

    Args:
      leaves: (kind, bytes) of each leaf.

    Returns:
      Indices of the leaves in each bucket, in order.

    >>> buckets([("f32", 40), ("f16", 10), ("f32", 50), ("f32", 20)], 100)
    [[0, 2], [1], [3]]
    """
    found: list[list[int]] = []
    last: dict[Hashable, list[int]] = {}
    used: dict[Hashable, int] = {}
    for i, (kind, nbytes) in enumerate(leaves):
        if kind not in last or used[kind] + nbytes > bucket_bytes:
            last[kind], used[kind] = [], 0
            found.append(last[kind])
        last[kind].append(i)
        used[kind] += nbytes
    return found
