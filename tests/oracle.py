"""NumPy oracles: what every kernel and scheme must compute, written as plainly as possible.

Nothing here imports zen_jax, so an error in the library cannot hide in its own oracle.
"""

import itertools

import numpy as np

EMPTY_SLOT = 0xFFFFFFFF


# --- hashing ----------------------------------------------------------------------------------------------------


def murmur3(key, seed=0):
    """MurmurHash3_x86_32 of the four little-endian bytes of each key, in 64-bit integers cut to 32 bits by hand."""

    def low(x):
        return x & np.uint64(0xFFFFFFFF)

    def rotate(x, by):
        return low(x << np.uint64(by) | x >> np.uint64(32 - by))

    k = low(np.asarray(key).astype(np.uint64)[..., None])  # one more axis, so that scalars wrap like arrays
    k = low(rotate(low(k * np.uint64(0xCC9E2D51)), 15) * np.uint64(0x1B873593))
    h = low(rotate(k ^ np.uint64(seed & 0xFFFFFFFF), 13) * np.uint64(5) + np.uint64(0xE6546B64))
    h = h ^ np.uint64(4)
    h = low((h ^ h >> np.uint64(16)) * np.uint64(0x85EBCA6B))
    h = low((h ^ h >> np.uint64(13)) * np.uint64(0xC2B2AE35))
    return (h ^ h >> np.uint64(16))[..., 0]


def reduce_to_range(hashed, size):
    return (np.asarray(hashed, np.uint64) * np.uint64(size) >> np.uint64(32)).astype(np.int64)


def tile_rotation(tile, n, seed=0):
    return reduce_to_range(murmur3(tile, seed), n)


def server_of(index, n, seed=0):
    index = np.asarray(index, np.int64)
    return (index % n + tile_rotation(index // n, n, seed)) % n


def index_of(server, position, n, seed=0):
    position = np.asarray(position, np.int64)
    return position * n + (server - tile_rotation(position, n, seed)) % n


def tiles(units, n):
    return -(-units // n)


# --- kernels ----------------------------------------------------------------------------------------------------


def is_nonzero(x):
    """Per unit of x [U(, D)]. NaN and subnormals are non-zero, -0.0 is zero."""
    nonzero = np.asarray(x) != 0
    return nonzero if nonzero.ndim == 1 else nonzero.any(axis=1)


def partition(x, n, seed=0):
    """x [U(, D)] -> for each server its (positions ascending, values), without a capacity limit."""
    index = np.flatnonzero(is_nonzero(x))
    server = server_of(index, n, seed)
    return [(index[server == s] // n, x[index[server == s]]) for s in range(n)]


def accumulator(dtype):
    return np.float64 if dtype == np.float64 else np.float32


def ordered_sum(stack, divisor=1):
    """Sum over axis 0 in order, from +0, in float64 for float64 and float32 for the rest; rounded once.

    The mean multiplies by the reciprocal, as XLA compiles `pmean`'s division.
    """
    kind = accumulator(stack.dtype)
    total = np.zeros(stack.shape[1:], kind)
    with np.errstate(all="ignore"):
        for part in stack:
            total = total + np.where(part == 0, 0, part.astype(kind)).astype(kind)
        if divisor != 1:
            total = total * (kind(1) / kind(divisor))
        return total.astype(stack.dtype)


def recursive_doubling(stack, divisor=1):
    """As `ordered_sum`, in SparCML's order: workers beyond a power of two join the first ones, then neighbours pair up.

    On both sides, the lower worker's partial sum comes first.
    """
    kind = accumulator(stack.dtype)
    parts = [np.where(part == 0, 0, part.astype(kind)).astype(kind) for part in stack]
    power = 1 << (len(parts).bit_length() - 1)
    with np.errstate(all="ignore"):
        joined = [a + b for a, b in zip(parts, parts[power:], strict=False)] + parts[len(parts) - power : power]
        while len(joined) > 1:
            joined = [a + b for a, b in zip(joined[::2], joined[1::2], strict=True)]
        total = np.where(joined[0] == 0, 0, joined[0]).astype(kind)
        return (total * (kind(1) / kind(divisor)) if divisor != 1 else total).astype(stack.dtype)


def aggregate(messages, size, width, dtype, divisor=1):
    """messages: (positions, values) of worker 0, 1, ... -> shard [size, *width]."""
    dense = np.zeros((len(messages), size, *width), dtype)
    for row, (positions, values) in zip(dense, messages, strict=True):
        row[positions] = values
    return ordered_sum(dense, divisor)


def bitmap(nonzero):
    """Booleans [T] -> words uint32 [ceil(T / 32)], bit t % 32 of word t // 32."""
    padded = np.zeros(tiles(len(nonzero), 32) * 32, bool)
    padded[: len(nonzero)] = nonzero
    return np.packbits(padded, bitorder="little").view("<u4")


def hash_bitmap_encode(shard):
    nonzero = is_nonzero(shard)
    return bitmap(nonzero), shard[nonzero]


def hash_bitmap_decode(words, values, size, seed=0):
    """words [n, W] and one array of values for each server -> [size(, D)]."""
    n = len(words)
    out = np.zeros((size, *values[0].shape[1:]), values[0].dtype)
    for server in range(n):
        bits = np.unpackbits(np.ascontiguousarray(words[server]).view(np.uint8), bitorder="little")
        index = index_of(server, np.flatnonzero(bits), n, seed)
        kept = index < size
        out[index[kept]] = values[server][: len(index)][kept]
    return out


def hierarchical_hash(indices, n, r1, r2, k, seed=0):
    """Algorithm 1, in index order. -> memory [n, r1 + r2], counts [n], lost."""
    memory = np.full((n, r1 + r2), EMPTY_SLOT, np.uint64)
    counts, serial, lost = np.zeros(n, np.int64), np.zeros(n, np.int64), 0
    for index in np.asarray(indices, np.int64) & 0xFFFFFFFF:
        if index == EMPTY_SLOT:
            continue
        p = int(reduce_to_range(murmur3(index, seed), n))
        counts[p] += 1
        for i in range(1, k + 1):
            q = int(reduce_to_range(murmur3(index, (seed + i) & 0xFFFFFFFF), r1))
            if memory[p, q] == EMPTY_SLOT:
                memory[p, q] = index
                break
        else:
            if serial[p] < r2:
                memory[p, r1 + serial[p]] = index
                serial[p] += 1
            else:
                lost += 1
    return memory, counts, lost


# --- bytes ------------------------------------------------------------------------------------------------------


def balanced_parallelism_bytes(stack, unit_width=1, seed=0):
    """Pushed plus pulled bytes of one worker if every message has exactly the fullest one's size.

    stack [n, U, D]: push sends a 4-byte index and a unit to each other server, pull receives a hash bitmap
    and the non-zero units of each other server.
    """
    n, units = stack.shape[:2]
    itemsize = stack.dtype.itemsize * unit_width
    _, pushed, pulled = message_counts(stack, seed)
    push = (n - 1) * int(pushed.max()) * (4 + itemsize)
    pull = (n - 1) * (int(pulled.max()) * itemsize + 4 * tiles(tiles(units, n), 32))
    return push + pull


def largest(x, k):
    """The k largest magnitudes of x, ties broken by lowest index, by a stable sort."""
    mask = np.zeros(x.size, bool)
    mask[np.argsort(-np.abs(x), kind="stable")[:k]] = True
    return mask


def message_counts(stack, seed=0):
    """The non-zero units, bool [n, U], and zen's message sizes by counting: push [worker, server] and pull [server]."""
    n, units = stack.shape[:2]
    owner = server_of(np.arange(units), n, seed)
    nonzero = np.stack([is_nonzero(x) for x in stack])
    push = np.array([[nonzero[w][owner == s].sum() for s in range(n)] for w in range(n)])
    pull = np.array([nonzero.any(axis=0)[owner == s].sum() for s in range(n)])
    return nonzero, push, pull


# --- profiles ---------------------------------------------------------------------------------------------------


def sparsity(stack, width, parts, seed=0):
    """Section 2.1's characteristics of gradients [n, ...] in units of `width` elements, in float64, set by set.

    The skewness is that of each number of partitions in `parts`.
    """
    n, flat = len(stack), stack.reshape(len(stack), -1)
    flat = np.pad(flat, ((0, 0), (0, -flat.shape[1] % width)))
    masks = np.stack([is_nonzero(x.reshape(-1, width)) for x in flat])
    sets, units = [set(np.flatnonzero(mask)) for mask in masks], masks.shape[1]
    subsets = {k: list(itertools.combinations(sets, k)) for k in range(1, n + 1)}
    pairs = [len(a & b) / min(len(a), len(b)) for a, b in itertools.combinations(sets, 2) if a and b]
    power = 1 << (n.bit_length() - 1)
    stages = [sets]
    if power < n:
        stages.append([a | b for a, b in zip(sets, sets[power:] + [set()] * (2 * power - n), strict=False)])
    while len(stages[-1]) > 1:
        stages.append([a | b for a, b in zip(stages[-1][0::2], stages[-1][1::2], strict=True)])

    def segments(mask, p):
        size = -(-units // p)
        return [mask[i * size : (i + 1) * size].sum() for i in range(p)]

    def hashed(mask):
        return np.bincount(server_of(np.flatnonzero(mask), n, seed), minlength=n).max(initial=0)

    def skewness(p):
        each = [p * max(segments(mask, p)) / mask.sum() for mask in masks if mask.any()]
        return np.mean(each) if each else 1.0

    union = masks.any(axis=0)
    return {
        "units": units,
        "unions": [np.mean([len(set.union(*each)) for each in subsets[k]]) for k in subsets],
        "overlap": np.mean(pairs) if pairs else 0.0,
        "partition_skewness": {p: skewness(p) for p in parts},
        "partial_sums": [max(map(len, stage)) for stage in stages],
        "push": max(hashed(mask) for mask in masks),
        "pull": hashed(union),
        "contiguous_push": max(max(segments(mask, n)) for mask in masks),
        "contiguous_pull": max(segments(union, n)),
    }
