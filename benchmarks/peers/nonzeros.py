"""Other libraries' ways to find and take a tensor's non-zeros, and to sum messages, each as it is best used.

A peer that this machine lacks is an `Absent` with the reason, so that no table leaves it out silently.
"""

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from zen_jax import hashing

NVCC_PLACES = "/usr/local/cuda/bin"


class Absent(NamedTuple):
    """Why a peer does not run here."""

    reason: str


Peer = Callable[[], Any] | Absent


def find_and_take(x: np.ndarray, n: int) -> Iterator[tuple[str, Peer]]:
    """Name and callable of each way to get the indices and values of the non-zeros of x float32 [U].

    NumPy also goes on to do all that partition does for n servers.
    """
    yield "numpy flatnonzero + take", _numpy(x)
    yield "numpy partition", _numpy_partition(x, n)
    yield "jnp.nonzero + take", _or_absent(_jnp, x)
    yield "torch.nonzero + index_select", _or_absent(_torch, x)
    yield "cupy flatnonzero + take", _or_absent(_cupy, x)


def _on_gpu() -> bool:
    return jax.default_backend() == "gpu"


def _or_absent(peer: Callable[..., Peer], *operands: Any) -> Peer:
    """What `peer` makes of the operands, after one trial call: what a library lacks often shows only then."""
    try:
        run = peer(*operands)
        if not isinstance(run, Absent):
            jax.block_until_ready(run())
        return run
    except Exception as error:  # a library that is installed but does not work counts as absent
        return Absent(f"{type(error).__name__}: {error}")


def _numpy(x: np.ndarray) -> Peer:
    if jax.default_backend() != "cpu":
        return Absent("it runs only on CPUs")

    def run() -> tuple[np.ndarray, np.ndarray]:
        indices = np.flatnonzero(x != 0)
        return indices, x[indices]

    return run


def _numpy_partition(x: np.ndarray, n: int) -> Peer:
    find = _numpy(x)
    if isinstance(find, Absent):
        return find
    narrow = np.min_scalar_type(n - 1)  # for 8 and 16 bits a stable sort is a counting sort

    def run() -> tuple[list[np.ndarray], list[np.ndarray]]:
        indices, values = find()
        servers = hashing.server_of(indices, n)
        order = np.argsort(servers.astype(narrow), kind="stable")
        ends = np.cumsum(np.bincount(servers, minlength=n))[:-1]
        positions = hashing.position_of(indices, n)
        return np.split(positions[order], ends), np.split(values[order], ends)

    return run


def _jnp(x: np.ndarray) -> Peer:
    device, count = jnp.asarray(x), int(np.count_nonzero(x))

    @jax.jit
    def nonzero(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        indices = jnp.nonzero(x, size=count)[0]
        return indices, x[indices]

    return lambda: nonzero(device)


def _torch(x: np.ndarray) -> Peer:
    import torch

    if _on_gpu() and not torch.cuda.is_available():
        return Absent("torch without CUDA")
    tensor = torch.from_numpy(x).to("cuda" if _on_gpu() else "cpu")

    def run() -> tuple[Any, Any]:
        indices = torch.nonzero(tensor).squeeze(1)
        values = torch.index_select(tensor, 0, indices)
        if _on_gpu():
            torch.cuda.synchronize()
        return indices, values

    return run


def _cupy(x: np.ndarray) -> Peer:
    import cupy

    if not _on_gpu():
        return Absent("no GPU")
    device = cupy.asarray(x)

    def run() -> tuple[Any, Any]:
        indices = cupy.flatnonzero(device)
        values = device.take(indices)
        cupy.cuda.Device().synchronize()
        return indices, values

    return run


def cub_seconds(x: np.ndarray, repeats: int, *, flagged: bool) -> list[float] | Absent:
    """Times of CUB's DeviceSelect, ::Flagged or ::If, on x float32 [U], between events on the GPU."""
    if not _on_gpu():
        return Absent("no GPU")
    library = _cub()
    if isinstance(library, Absent):
        return library
    seconds, count = (ctypes.c_double * repeats)(), ctypes.c_int32()
    nonzeros = int(np.count_nonzero(x))
    error = library.cub_select(
        x.ctypes.data, x.size, max(nonzeros, 1), int(flagged), repeats, seconds, ctypes.byref(count)
    )
    if error:
        return Absent(library.cub_error(error).decode())
    if count.value != nonzeros:
        return Absent(f"it selects {count.value} of {nonzeros} non-zeros")
    return list(seconds)


@functools.cache
def _cub() -> ctypes.CDLL | Absent:
    """cub_select.cu, compiled for this machine's GPU."""
    wanted = os.environ.get("CUDACXX") or "nvcc"
    nvcc = shutil.which(wanted, path=f"{os.environ.get('PATH', '')}:{NVCC_PLACES}")
    if nvcc is None:
        return Absent(f"no {wanted}")
    source = Path(__file__).with_name("cub_select.cu")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "cub_select.so"
        command = [nvcc, "-std=c++17", "-O3", "-arch=native", "-shared", "-Xcompiler", "-fPIC", source, "-o", made]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return Absent(f"{source.name} does not compile: {done.stderr.strip()[-500:]}")
        library = ctypes.CDLL(str(made))
    library.cub_error.restype = ctypes.c_char_p
    pointer, integer = ctypes.c_void_p, ctypes.c_int32
    library.cub_select.argtypes = [pointer, integer, integer, ctypes.c_int, ctypes.c_int, pointer, pointer]
    return library


def scatter_add(positions: jax.Array, values: jax.Array, counts: jax.Array, size: int) -> Peer:
    """XLA's scatter-add of what all workers sent to S servers at once, in any order: [S, n, C], [S, n, C, D] and
    [S, n] to [S, size, D]."""
    return _or_absent(_scatter_add, positions, values, counts, size)


def _scatter_add(positions: jax.Array, values: jax.Array, counts: jax.Array, size: int) -> Peer:
    servers, _, capacity, width = values.shape
    end = servers * size

    @jax.jit
    def places(positions: jax.Array, counts: jax.Array) -> jax.Array:
        filled = jnp.arange(capacity)[None, None] < counts[..., None]
        return jnp.where(filled, positions + size * jnp.arange(servers)[:, None, None], end).reshape(-1)

    @jax.jit
    def add(where: jax.Array, addends: jax.Array) -> jax.Array:
        return jnp.zeros((end, width)).at[where].add(addends, mode="drop").reshape(servers, size, width)

    where, addends = places(positions, counts), values.reshape(-1, width)
    return lambda: add(where, addends)
