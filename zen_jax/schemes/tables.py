"""Several tables as one virtual table, so that one exchange reduces the gradients of all."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf, prod

import jax.numpy as jnp
import numpy as np
from jax import lax

from zen_jax import _axis
from zen_jax._typing import Array
from zen_jax.errors import MAX_UNITS
from zen_jax.kernels import unique_ids
from zen_jax.row_sparse import RowSparseGradient


@dataclass(frozen=True)
class Tables:
    """Tables of one dtype and row shape laid end to end, each from the start of a tile.

    So every server owns as many rows of each as if that table were alone, and no message needs more room than theirs
    together. Tiles that a table does not fill leave virtual rows that nothing names.

    Attributes:
      num_rows: V, the rows of each table.
      entries: K, the rows of each that a worker may list, at most V.
      n: number of servers.
    """

    num_rows: tuple[int, ...]
    entries: tuple[int, ...]
    n: int

    @property
    def owned(self) -> tuple[int, ...]:
        """The rows of each table that one server owns."""
        return tuple(-(-rows // self.n) for rows in self.num_rows)

    @property
    def begins(self) -> tuple[int, ...]:
        """The virtual row at which each table begins."""
        return tuple(self.n * tiles for tiles in accumulate(self.owned[:-1], initial=0))

    @property
    def end(self) -> int:
        """The id past all virtual rows, which unused entries have."""
        return self.begins[-1] + self.num_rows[-1]

    @property
    def push_room(self) -> int:
        """The most rows that a worker sends to one server."""
        return sum(map(min, self.entries, self.owned))

    @property
    def shard_room(self) -> int:
        """The most rows that one server receives, each counted once."""
        return sum(min(self.n * entries, owned) for entries, owned in zip(self.entries, self.owned, strict=True))

    @property
    def result_rooms(self) -> tuple[int, ...]:
        """The most rows of each table that all workers together list."""
        return tuple(min(self.n * entries, rows) for entries, rows in zip(self.entries, self.num_rows, strict=True))

    def join(self, gradients: Sequence[RowSparseGradient]) -> tuple[Array, Array]:
        """Virtual ids int32 [K] and rows [K, D] of all gradients; used ids ascend, with unused ones between them."""
        ids = [
            jnp.where(gradient.ids < gradient.num_rows, gradient.ids + begin, self.end)
            for gradient, begin in zip(gradients, self.begins, strict=True)
        ]
        width = prod(gradients[0].shape[1:])
        return jnp.concatenate(ids), jnp.concatenate([g.rows.reshape(g.ids.size, width) for g in gradients])

    def split(self, ids: Array, rows: Array) -> list[tuple[Array, Array]]:
        """Ids and rows of each table, ids ascending, from virtual ids in any order and their rows.

        Args:
          ids: int32 [R], distinct but for the unused ones, which are `end`; R is the sum of `result_rooms`.
          rows: [R, D], unspecified where unused.
        """
        # On CPUs XLA's sort takes twenty times as long; unused ids share a slot, which is never read.
        ids, slots, _ = unique_ids(ids, self.end)
        order = jnp.zeros_like(slots).at[slots].set(jnp.arange(slots.size, dtype=jnp.int32))
        # The tables before one use no more than their room, so its own room follows its first entry.
        firsts = [0, *jnp.searchsorted(ids, np.array(self.begins[1:], np.int32))]
        parts = []
        for first, room, begin, num_rows in zip(firsts, self.result_rooms, self.begins, self.num_rows, strict=True):
            own_ids, source = (lax.dynamic_slice_in_dim(x, first, room) for x in (ids, order))
            used = own_ids < begin + num_rows
            # Memory beyond what was unpacked stays untouched and unread.
            own_rows = jnp.where(used[:, None], rows[jnp.where(used, source, 0)], jnp.zeros((), rows.dtype))
            parts.append((jnp.where(used, own_ids - begin, num_rows), own_rows))
        return parts


def together(gradients: Sequence[RowSparseGradient], n: int, bucket_bytes: int) -> list[list[int]]:
    """Groups gradients that `reduce_rows` can reduce at once among n workers.

    Those of a group have one dtype and row shape, name fewer than 2**31 virtual rows, and list at most `bucket_bytes`
    of rows where possible. Shards of a model axis are kept apart: joined with them, gradients that are equal along that
    axis would no longer be known to be.

    Returns:
      Indices of the gradients in each group, in order.

    >>> import jax.numpy as jnp
    >>> a, b = (RowSparseGradient(jnp.arange(2, dtype=jnp.int32), jnp.ones((2, columns)), 9) for columns in (3, 4))
    >>> together([a, b, a, a], n=4, bucket_bytes=50)
    [[0, 2], [1], [3]]
    """
    groups: list[list[int]] = []
    last: dict[Hashable, list[int]] = {}
    used: dict[Hashable, tuple[float, int]] = {}
    for i, gradient in enumerate(gradients):
        varying = _axis.varying(gradient.ids) | _axis.varying(gradient.rows)
        kind = gradient.dtype, gradient.shape[1:], varying
        own_bytes, own_rows = gradient.rows.nbytes, n * -(-gradient.num_rows // n)
        nbytes, virtual_rows = used.get(kind, (inf, 0))  # no group is as good as a full one
        if nbytes + own_bytes > bucket_bytes or virtual_rows + own_rows > MAX_UNITS:
            last[kind], nbytes, virtual_rows = [], 0, 0
            groups.append(last[kind])
        last[kind].append(i)
        used[kind] = nbytes + own_bytes, virtual_rows + own_rows
    return groups
