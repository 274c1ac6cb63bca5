"""What one synchronisation did."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from zen_jax import errors
from zen_jax._typing import Array


class Info(NamedTuple):
    """Statistics of one all-reduce, equal on all workers; every field is a float32 scalar.

    Bytes count what one worker sends to others (pushed) and receives from others (pulled), including unused room in
    messages, summed over stages and phases. A dense all-reduce, also one that another scheme falls back to, is half
    pushed, half pulled. agsparse's messages and sparcml's stages are pushed; only what sparcml returns to workers
    beyond a power of two is pull. None of these has an imbalance. omnireduce's units are its blocks.
    """

    density: Array  # mean over workers of non-zero units / units; 0 where nothing was counted
    density_reduced: Array  # the same after the sum
    bytes_pushed: Array
    bytes_pulled: Array
    bytes_dense: Array  # pushed + pulled by a dense all-reduce
    rounds: Array  # messages of the given capacity that the fullest one would fill; 1 while the plan holds
    dense_taken: Array  # 1 if the dense path ran, else 0
    imbalance_push: Array  # Definition 8: max over workers i, servers j of n |I_i^j| / |I_i|
    imbalance_pull: Array  # Definition 8: max over servers j of n |I_j| / |I|


def make_info(**fields: Array | float) -> Info:
    """An Info of the given fields; the others are 0."""
    zeros = dict.fromkeys(Info._fields, 0.0)
    return Info(**{name: jnp.float32(value) for name, value in (zeros | fields).items()})


def density(counts: Array, units: int) -> Array:
    """The mean count of non-zero units, as a share of all `units`."""
    return jnp.mean(counts.astype(jnp.float32)) / np.float32(units)  # JAX accepts no integer of 2**31 or more


def shares(info: Info, sizes: Mapping[str, int]) -> dict[str, Info]:
    """The Info of leaves that travelled as one, by leaf: bytes in proportion to its size, all else that of the whole.

    `total` of the shares is the whole again.

    >>> found = shares(make_info(bytes_pushed=12., density=0.5), {"a": 100, "b": 200})
    >>> {name: (float(share.bytes_pushed), float(share.density)) for name, share in found.items()}
    {'a': (4.0, 0.5), 'b': (8.0, 0.5)}
    """
    if len(sizes) == 1:
        return dict.fromkeys(sizes, info)
    whole = max(1, sum(sizes.values()))
    fields = ("bytes_pushed", "bytes_pulled", "bytes_dense")
    return {
        name: info._replace(**{field: getattr(info, field) * np.float32(size / whole) for field in fields})
        for name, size in sizes.items()
    }


def total(infos: Mapping[str, Info] | Iterable[Info] | Info) -> Info:
    """One Info for several synchronisations: bytes are summed; rounds and imbalance are the worst of all.

    Densities are weighted by dense bytes, where they were counted: leaves that a scheme or plan sends dense count
    nothing. `dense_taken` is the share of dense bytes that went dense.

    Args:
      infos: the Infos, or a mapping to them such as `SynchronizeState.info`. Leading axes, of workers or steps, stay.

    Returns:
      An Info with the same leading axes; of none, one of zeros.

    Raises:
      ValueError: for anything that is no Info.

    >>> one = make_info(bytes_pushed=8., bytes_dense=100., density=0.25, imbalance_push=1.5)
    >>> two = make_info(bytes_pushed=4., bytes_dense=300., density=0.05, imbalance_push=1.1)
    >>> both = total({"embed": one, "head": two})
    >>> float(both.bytes_pushed), round(float(both.density), 3), float(both.imbalance_push)
    (12.0, 0.1, 1.5)
    """
    if isinstance(infos, Info):
        return infos
    infos = infos.values() if isinstance(infos, Mapping) else infos
    infos = list(infos) if isinstance(infos, Iterable) else [infos]
    for info in infos:
        errors.check_instance("infos", info, Info, "Use an Info, or several; those of a state are state.info.")
    if len(infos) < 2:
        return infos[0] if infos else make_info()
    stacked = Info(*(jnp.stack(field) for field in zip(*infos, strict=True)))

    def weighted(field: Array, weights: Array) -> Array:
        # Dividing last makes the share of a whole exactly 1.
        return jnp.sum(weights * field, axis=0) / jnp.maximum(jnp.sum(weights, axis=0), 1.0)

    def counted(field: Array) -> Array:
        # Where units are counted, an all-zero gradient is sent sparse: a dense one with density 0 was not counted.
        return weighted(field, jnp.where((stacked.dense_taken == 1) & (field == 0), 0.0, stacked.bytes_dense))

    return Info(
        density=counted(stacked.density),
        density_reduced=counted(stacked.density_reduced),
        bytes_pushed=jnp.sum(stacked.bytes_pushed, axis=0),
        bytes_pulled=jnp.sum(stacked.bytes_pulled, axis=0),
        bytes_dense=jnp.sum(stacked.bytes_dense, axis=0),
        rounds=jnp.max(stacked.rounds, axis=0),
        dense_taken=weighted(stacked.dense_taken, stacked.bytes_dense),
        imbalance_push=jnp.max(stacked.imbalance_push, axis=0),
        imbalance_pull=jnp.max(stacked.imbalance_pull, axis=0),
    )
