"""Checks that all processes of `jax.distributed` train the same thing, before anything is synchronised."""

import dataclasses
import enum
import hashlib
import json
import os
from types import SimpleNamespace
from typing import Any

import jax
import jaxlib
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from zen_jax._native import backend_info
from zen_jax._typing import Array, PyTree

_PLAIN = (bool, int, float, complex, str, enum.Enum, bytes, type(None), np.generic, np.dtype, os.PathLike)
_NAMED = 8  # the most processes that a message names for each value, and the most values


def check_agreement(**what: PyTree) -> None:
    """Compares what must be the same on every process, and raises on all of them if anything differs.

    Call it on every process, after `jax.distributed.initialize` and before the first step, with whatever they could
    disagree about: scheme, unit, hash, seed, plan, options, parameters. The versions of jax, jaxlib and zen_jax, and
    whether the kernels are custom calls, are always compared. It sends a few bytes, and reads every array once; with a
    single process it always passes, at no cost.

    Args:
      **what: values by name: numbers, strings, enums, dtypes, None, a `Plan`, `Cluster` or `SparsityProfile`, arrays,
        and trees and dataclasses of these. Arrays are compared bit by bit, but those that are sharded over processes
        only by shape and dtype; anything else by its type.

    Raises:
      ValueError: on every process; it names what differs, each value, and the processes that have it. If a value
        cannot be described, the error takes its place; an error that all processes share is raised unchanged.

    >>> import jax.numpy as jnp
    >>> check_agreement(scheme="auto", seed=0, params={"table": jnp.zeros((1000, 64))})
    """
    from zen_jax import __version__

    if jax.process_count() == 1:
        return
    # Under names that no keyword can have.
    own = {
        "version of jax": jax.__version__,
        "version of jaxlib": jaxlib.__version__,
        "version of zen_jax": __version__,
        "lowering of kernels": SimpleNamespace(to_json=_lowering),  # which may raise, too
    }
    mine, failures = {}, []
    for name, value in (own | what).items():
        try:
            mine |= describe({name: value})
        except Exception as error:  # raising before the collective would leave the other processes waiting
            mine[name] = f"{type(error).__name__}: {error}"
            failures.append(error)
    text = json.dumps(mine, sort_keys=True).encode()
    digests = _gather(hashlib.sha256(text).digest())
    if len(set(digests)) == 1:
        if failures:
            raise failures[0]
        return
    lines = differences([json.loads(other) for other in _gather(text)])
    more = [f"and {len(lines) - _NAMED} more"] if len(lines) > _NAMED else []
    message = "\n  ".join(["the processes disagree. Start them all the same way.", *lines[:_NAMED], *more])
    raise ValueError(message) from next(iter(failures), None)


def describe(tree: PyTree) -> dict[str, str]:
    """The values of a tree as text, by path.

    >>> describe({"seed": 1, "params": {"table": np.zeros((3, 2), np.float32)}})
    {'params/table': 'float32[3, 2] with digest 8691c643', 'seed': '1'}
    """

    def documented(leaf: Any) -> Any:
        if isinstance(leaf, type):
            return leaf.__qualname__  # jnp.float32
        if hasattr(leaf, "to_json"):
            return leaf.to_json()
        if dataclasses.is_dataclass(leaf):
            return all_documented({field.name: getattr(leaf, field.name) for field in dataclasses.fields(leaf)})
        return leaf

    def all_documented(tree: PyTree) -> PyTree:
        # Static fields of a registered dataclass are no children.
        return jax.tree.map(documented, tree, is_leaf=dataclasses.is_dataclass)

    described: dict[str, str] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(all_documented(tree), is_leaf=lambda leaf: leaf is None)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        described[name] = ", ".join(filter(None, [described.get(name), _text(leaf)]))  # "a/b" may also be a key
    return described


def differences(described: list[dict[str, str]]) -> list[str]:
    """A line for each value that differs between processes.

    >>> differences([{"seed": "0"}, {"seed": "1"}, {"seed": "0"}])
    ['seed is 0 on processes 0, 2, but 1 on process 1']
    """
    lines = []
    for name in sorted(set().union(*described)):
        processes: dict[str, list[int]] = {}
        for process, values in enumerate(described):
            processes.setdefault(values.get(name, "missing"), []).append(process)
        if len(processes) > 1:
            lines.append(f"{name} is " + ", but ".join(f"{text} on {_listed(who)}" for text, who in processes.items()))
    return lines


def _lowering() -> str:
    """How the kernels run on this process's devices: "custom calls" or "pure JAX"."""
    backend = jax.default_backend()
    return backend_info().get("cuda" if backend == "gpu" else backend, "pure JAX").split(" (")[0]


def _text(leaf: Any) -> str:
    if isinstance(leaf, _PLAIN):
        return repr(leaf)
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return f"{leaf.dtype}{list(leaf.shape)}" + _digest(leaf)
    return f"a {type(leaf).__qualname__}"


def _digest(array: Any) -> str:
    """Of the content, if this process has it."""
    if isinstance(array, jax.Array) and jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    whole = isinstance(array, jax.Array) and (array.is_fully_addressable or array.is_fully_replicated)
    if not (whole or (isinstance(array, np.ndarray) and not array.dtype.hasobject)):
        return ""
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return f" with digest {hashlib.blake2b(content, digest_size=4).hexdigest()}"


def _listed(processes: list[int]) -> str:
    names = ", ".join(map(str, processes[:_NAMED]))
    more = f" and {len(processes) - _NAMED} more" if len(processes) > _NAMED else ""
    return f"process{'es' if len(processes) > 1 else ''} {names}{more}"


def gather(mine: np.ndarray) -> np.ndarray:
    """[...] of this process to [processes, ...] of all, which may have different numbers of devices."""
    first = {device.process_index: device for device in reversed(jax.devices())}
    mesh = Mesh([first[process] for process in range(jax.process_count())], "processes")
    spread, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["processes"], []))
    rows = jax.make_array_from_process_local_data(spread, mine[None])
    return np.asarray(jax.jit(_same, out_shardings=whole)(rows))


def _same(rows: Array) -> Array:  # one function for all calls, of which each would compile another anew
    return rows


def _gather(text: bytes) -> list[bytes]:
    """What every process passes, in process order."""
    sizes = gather(np.int32([len(text)]))[:, 0]
    rows = gather(np.frombuffer(text.ljust(int(sizes.max()), b" "), np.uint8))
    return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]
