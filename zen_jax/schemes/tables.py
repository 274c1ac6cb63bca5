"""Several tables as one virtual table, so that one exchange reduces the gradients of all."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

import jax.numpy as jnp
import numpy as np
from jax import lax

from zen_jax._search import count_below
from zen_jax._typing import Array
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
        firsts = [0, *count_below(ids, np.array(self.begins[1:], np.int32))]
        parts = []
        for first, room, begin, num_rows in zip(firsts, self.result_rooms, self.begins, self.num_rows, strict=True):
            own_ids, source = (lax.dynamic_slice_in_dim(x, first, room) for x in (ids, order))
            used = own_ids < begin + num_rows
            # Memory beyond what was unpacked stays untouched and unread.
            own_rows = jnp.where(used[:, None], rows[jnp.where(used, source, 0)], jnp.zeros((), rows.dtype))
            parts.append((jnp.where(used, own_ids - begin, num_rows), own_rows))
        return parts
