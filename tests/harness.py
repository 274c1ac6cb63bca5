"""Runs a function of one worker's gradient as n workers, in the ways that JAX offers."""

import contextlib
import functools
import importlib
import math
import os
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from examples.common.launch import free_ports

AXIS = "workers"
TIMEOUT = 240  # seconds until processes count as deadlocked; they take a few
MODES = ["vmap", "pmap", "shard_map", "shard_map_unchecked"]


def mesh(sizes, axes=AXIS, kind=AxisType.Auto):
    """A mesh of the first devices, with one axis or several, all of one kind."""
    sizes, axes = (each if isinstance(each, tuple) else (each,) for each in (sizes, axes))
    return jax.make_mesh(sizes, axes, axis_types=(kind,) * len(axes), devices=jax.devices()[: math.prod(sizes)])


def spmd(worker, mode, n):
    """worker: gradient of one worker -> tree of its results. Returns stack [n, ...] -> tree of stacks [n, ...].

    mode: one of MODES, or "shard_map_of_some_axes", which leaves another axis of the mesh to the compiler.
    """
    if mode == "vmap":
        return jax.jit(jax.vmap(worker, axis_name=AXIS))
    if mode == "pmap":
        return jax.pmap(worker, AXIS, devices=jax.devices()[:n])
    one = lambda tree: jax.tree.map(lambda x: x[0], tree)
    stacked = lambda tree: jax.tree.map(lambda x: x[None], tree)
    per_worker = PartitionSpec(AXIS)
    mapped = jax.shard_map(
        lambda tree: stacked(worker(one(tree))),
        mesh=mesh((n, 2), (AXIS, "model")) if mode == "shard_map_of_some_axes" else mesh(n),
        in_specs=per_worker,
        out_specs=per_worker,
        axis_names={AXIS},
        check_vma=mode != "shard_map_unchecked",
    )
    return jax.jit(mapped)


@functools.cache
def all_reduce(mode, n, **options):
    """zen.all_reduce of a stack, compiled once per mode, n, options and shape within a module and process."""
    import zen_jax as zen

    return spmd(lambda x: zen.all_reduce(x, AXIS, **options), mode, n)


@functools.cache
def psum(mode, n, op="sum"):
    reduce = {"sum": jax.lax.psum, "mean": jax.lax.pmean}[op]
    return spmd(lambda x: reduce(x, AXIS), mode, n)


@contextlib.contextmanager
def coarse_ladder():
    """Few message sizes, which compile faster, for tests of other things; as a decorator, for one such test."""
    ladder = importlib.import_module("zen_jax.schemes.ladder")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ladder, "DEFAULT_RATIO", 2.0)
        patch.setattr(ladder, "PLANNED_RATIOS", (1.0,))
        patch.setattr(ladder, "OUTGROWN_RATIO", 1e9)
        yield


def outputs_of_processes(count, *program, arguments=()):
    """What processes print that run a Python program (a file, or -c and code) with a coordinator's address, their
    count, each its rank, and the arguments. Fails unless all end well."""
    address = f"localhost:{free_ports()}"
    processes = [
        subprocess.Popen(
            [sys.executable, *program, address, str(count), str(rank), *arguments],
            env=os.environ | {"XLA_FLAGS": "", "JAX_ENABLE_COMPILATION_CACHE": "false"},  # one device a process
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]
    deadline = time.monotonic() + TIMEOUT
    try:
        outputs = [process.communicate(timeout=max(1, deadline - time.monotonic()))[0] for process in processes]
    except subprocess.TimeoutExpired:
        pytest.fail(f"{count} processes did not end within {TIMEOUT} s: a collective waits for ever")
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()
    for rank, (process, output) in enumerate(zip(processes, outputs, strict=True)):
        assert process.returncode == 0, f"process {rank} of {count} failed:\n{output}"
    return outputs


def to_numpy(tree):
    return jax.tree.map(np.asarray, tree)


@functools.cache
def _with_info(n, **options):
    return all_reduce("vmap", n, return_info=True, op="sum", **options)


def info_of(stack, **options):
    """Info of a reduction among emulated workers, as floats."""
    _, info = _with_info(len(stack), **options)(stack)
    for name, field in info._asdict().items():
        assert (np.asarray(field) == np.asarray(field)[0]).all(), f"{name} differs between workers"
    return jax.tree.map(lambda field: float(field[0]), info)
