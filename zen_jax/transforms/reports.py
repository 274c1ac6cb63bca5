"""What a step of `synchronize` reports: an `Info` under each name that `init` fixed, whatever a plan joins or parts."""

from collections.abc import Collection, Iterable, Mapping

import jax.numpy as jnp

from zen_jax.info import Info, shares, total
from zen_jax.trees import Leaf

FUSED = "(fused)"


def names_of(leaves: Mapping[str, Leaf], dense_below: int) -> list[str]:
    """The names that the state of these leaves has: the same whatever the plan, so that a state fits any."""
    nbytes = {name: leaf.size * jnp.dtype(leaf.dtype).itemsize for name, leaf in leaves.items()}  # also if abstract
    return list(dict.fromkeys(FUSED if nbytes[name] < dense_below else name for name in leaves))


def check_names(names: Collection[str], leaves: Mapping[str, Leaf], dense_below: int) -> None:
    """Raises a ValueError if names are of the state of other leaves."""
    # In the narrowest dtype, too, `names_of` would have named them.
    strangers = [name for name, leaf in leaves.items() if name not in names and leaf.size * 2 >= max(dense_below, 1)]
    if strangers and not set(names) <= {FUSED, *leaves}:
        raise _state_of_others(names, strangers[0])


def shares_by_name(info: Info, sizes: Mapping[str, int], names: Collection[str]) -> list[tuple[str, Info]]:
    """Each leaf's share of the Info of a message; of the leaves that the state does not name, all in one."""
    unnamed = [name for name in sizes if name not in names]
    named = {name: size for name, size in sizes.items() if name in names}
    together = {unnamed[0]: sum(sizes[name] for name in unnamed)} if unnamed else {}
    return list(shares(info, named | together).items())


def total_by_name(infos: Iterable[tuple[str, Info]], names: Iterable[str]) -> dict[str, Info]:
    """Info under the names in the state, from that of leaves."""
    found: dict[str, list[Info]] = {name: [] for name in names}
    for name, info in infos:
        known = name if name in found else FUSED
        if known not in found:
            raise _state_of_others(names, name)
        found[known].append(info)
    return {name: total(infos) for name, infos in found.items()}


def _state_of_others(names: Iterable[str], name: str) -> ValueError:
    return ValueError(
        f"state is for {', '.join(names) or 'no leaves'}, but gradients have {name}. Call init with the parameters "
        "that the gradients belong to."
    )
