"""The paper's Algorithm 1: indices hashed in parallel into a bounded memory, without loss."""

import jax.numpy as jnp
import numpy as np

from zen_jax import errors, hashing
from zen_jax._lowering import custom_call_or
from zen_jax._typing import Array


def hierarchical_hash(
    indices: Array, n: int, r1: int, r2: int, k: int = 3, *, seed: int = 0
) -> tuple[Array, Array, Array]:
    """Partitions indices by MurmurHash into n memories of r1 parallel and r2 serial slots.

    An index goes to partition h_0, and there to the first free slot among h_1 to h_k; if all are taken, it is appended
    to the serial slots. Empty slots hold `zen_jax.hashing.EMPTY_SLOT`. Which index wins a contested slot may differ
    between platforms; the set of indices in a partition does not.

    Args:
      indices: int32 or uint32 [E], all distinct; EMPTY_SLOT entries (-1 as int32) are skipped.
      n: number of partitions.
      r1: slots per partition for parallel writes.
      r2: slots per partition for serial writes.
      k: number of rehashes.
      seed: h_i has the seed `seed + i`.

    Returns:
      memory: uint32 [n, r1 + r2], the indices in their slots.
      counts: int32 [n], how many indices h_0 sends to each partition.
      overflow: int32 [], how many of them found no slot: 0 if nothing was lost, which r2 >= max(counts) guarantees.

    Raises:
      ValueError: for n, r1 or k below 1, r2 below 0, indices of another dtype or rank, or, in pure JAX,
        more than 2**31 - 1 slots.

    >>> import jax.numpy as jnp
    >>> memory, counts, overflow = hierarchical_hash(jnp.array([0, 3, 9]), n=2, r1=4, r2=2)
    >>> sorted(i for i in memory.ravel().tolist() if i != 2**32 - 1), int(counts.sum()), int(overflow)
    ([0, 3, 9], 3, 0)

    Source: ZEN (OSDI 2025), Algorithm 1, with an empty mark that is not an index, compare-and-swap, and a bounded
    serial counter.
    """
    errors.check_integers("indices", indices)
    if jnp.result_type(indices).itemsize != 4:
        raise ValueError(f"indices have dtype {indices.dtype}, but must be int32 or uint32. Convert them with astype.")
    errors.check_rank("indices", jnp.shape(indices), (1,))
    errors.check_workers(n)
    errors.check_seed(seed)
    for name, value, least in (("r1", r1, 1), ("r2", r2, 0), ("k", k, 1)):
        errors.check_at_least(name, value, least)
    return custom_call_or(
        lambda indices: reference(indices, n, r1, r2, k, seed=seed),
        "zen_hierarchical_hash",
        [indices.astype(jnp.int32)],
        [((n, r1 + r2), jnp.uint32), ((n,), jnp.int32), ((), jnp.int32)],
        n=np.int64(n),
        r1=np.int64(r1),
        r2=np.int64(r2),
        k=np.int64(k),
        seed=np.uint32(seed),
    )


def reference(indices: Array, n: int, r1: int, r2: int, k: int, *, seed: int = 0) -> tuple[Array, Array, Array]:
    """The pure-JAX lowering: one round per rehash, in which the smallest index wins a free slot."""
    errors.check_slots(n, r1, r2)
    indices = indices.astype(jnp.uint32)
    empty = hashing.EMPTY_SLOT
    waiting = indices != empty
    partition = hashing.hash_family(indices, 0, n, seed).astype(jnp.int32)
    drop = n * (r1 + r2)
    memory = jnp.full_like(indices, empty, shape=(drop,))
    counts = jnp.zeros_like(indices, jnp.int32, shape=(n,)).at[jnp.where(waiting, partition, n)].add(1, mode="drop")

    for i in range(1, k + 1):
        slot = partition * (r1 + r2) + hashing.hash_family(indices, i, r1, seed).astype(jnp.int32)
        bids = waiting & (memory[slot] == empty)
        memory = memory.at[jnp.where(bids, slot, drop)].min(indices, mode="drop")
        waiting &= ~(bids & (memory[slot] == indices))
    # The serial slots take what is left in index order: each by its rank among those left in its partition.
    order = jnp.argsort(jnp.where(waiting, partition, n), stable=True)
    left = jnp.zeros_like(counts).at[jnp.where(waiting, partition, n)].add(1, mode="drop")
    first = jnp.cumsum(left) - left
    key = partition[order]
    rank = jnp.arange(indices.size, dtype=jnp.int32) - first[key]
    fits = waiting[order] & (rank < r2)
    slot = jnp.where(fits, key * (r1 + r2) + r1 + rank, drop)
    memory = memory.at[slot].set(indices[order], mode="drop")
    overflow = jnp.sum(waiting, dtype=jnp.int32) - jnp.sum(fits, dtype=jnp.int32)
    return memory.reshape(n, r1 + r2), counts, overflow
