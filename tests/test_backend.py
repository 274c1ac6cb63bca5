"""Which lowering runs: what backend_info says, what the switch does, and every instruction set of the CPU."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import harness
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import zen_jax as zen
from zen_jax import _native
from zen_jax._lowering import custom_call_or

ROOT = Path(__file__).parents[1]
TIMEOUT = 300


def child(script, *arguments, **environment):
    """Runs a script of this folder, or code, in a fresh interpreter."""
    command = [sys.executable, *(["-c", script] if "\n" in script else [str(ROOT / "tests" / script)]), *arguments]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("ZEN_JAX_")}
    path = os.pathsep.join(filter(None, [str(ROOT / "tests"), os.environ.get("PYTHONPATH"), *sys.path]))
    environment = inherited | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": path} | environment
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


REPORT = """
import jax, jax.numpy as jnp, zen_jax as zen
print(zen.backend_info()["cpu"])
step = jax.jit(jax.vmap(lambda x: zen.all_reduce(x, "w", scheme="zen", op="sum"), axis_name="w"))
stack = jnp.zeros((3, 50, 4)).at[:, 7].set(2.0)
print(step.lower(stack).as_text().count("zen_partition"))
print(float(step(stack)[0, 7, 0]))
"""


def native():
    return zen.backend_info()["cpu"].startswith("custom calls")


needs_native = pytest.mark.skipif(not native(), reason=f"no native module: {zen.backend_info()['cpu']}")


def test_backend_info_names_every_platform():
    info = zen.backend_info()
    assert set(info) == {"cpu", "cuda", "tpu"}
    for line in info.values():
        assert line.startswith(("custom calls (", "pure JAX ("))


def test_switched_off():
    """With ZEN_JAX_KERNELS=xla no custom call is left, the reason is given, and the result is the same."""
    line, calls, value = child(REPORT, ZEN_JAX_KERNELS="xla").splitlines()
    assert line == "pure JAX (ZEN_JAX_KERNELS=xla turns custom calls off)"
    assert (int(calls), float(value)) == (0, 6)


def test_switched_off_it_can_be_exported():
    export = """
import jax.export
print(float(jax.export.export(step)(stack).call(stack)[0, 7, 0]))
"""
    assert float(child(REPORT + export, ZEN_JAX_KERNELS="xla").splitlines()[-1]) == 6


@needs_native
def test_switched_on():
    line, calls, value = child(REPORT).splitlines()
    assert line.startswith("custom calls (")
    assert int(calls) > 0
    assert float(value) == 6


def test_without_the_native_module():
    """If nothing was built, everything runs in pure JAX; backend_info says why, and so does one warning."""
    hide = """
import importlib.abc, sys, warnings
warnings.showwarning = lambda message, *_: print(message)
class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.startswith("zen_jax._native_"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hide())
"""
    line, warning, calls, value = child(hide + REPORT).splitlines()
    reason = "zen_jax._native_cpu is not there: no working C++ compiler"
    assert line.startswith(f"pure JAX ({reason}")
    assert reason in warning and "ZEN_JAX_NATIVE=1" in warning and "ZEN_JAX_KERNELS=xla" in warning
    assert (int(calls), float(value)) == (0, 6)


@pytest.mark.parametrize(("switch", "known"), [("ZEN_JAX_KERNELS", "xla"), ("ZEN_JAX_CPU_ISA", "scalar")])
def test_unknown_switch(switch, known):
    code = """
import zen_jax as zen
try:
    zen.backend_info()
except ValueError as error:
    print(error)
"""
    message = child(code, **{switch: "fast"})
    assert f"{switch}='fast'" in message and repr(known) in message


ISA = """
from zen_jax import _native
print(_native.library("cpu").isa())
"""


@needs_native
@pytest.mark.parametrize("isa", ["avx512", "avx2", "scalar"])
def test_every_instruction_set(isa):
    """Kernels against NumPy, and error feedback against pure JAX. A set that this processor lacks is replaced."""
    best = child(ISA).strip()
    order = ["scalar", "avx2", "avx512"]
    if order.index(best) < order.index(isa):
        assert child(ISA, ZEN_JAX_CPU_ISA=isa).strip() == best
        pytest.skip(f"this processor lacks {isa}")
    used, checked = child("kernels_child.py", ZEN_JAX_CPU_ISA=isa).split()
    assert (used, int(checked)) == (isa, 92)


SAVE = """
import pickle, sys
import jax, jax.numpy as jnp, zen_jax as zen
from jax.experimental import serialize_executable
step = jax.jit(jax.vmap(lambda x: zen.all_reduce(x, "w", scheme="zen", op="sum"), axis_name="w"))
compiled = step.lower(jnp.zeros((3, 50, 4))).compile()
with open(sys.argv[1], "wb") as file:
    pickle.dump(serialize_executable.serialize(compiled), file)
"""

LOAD = """
import pickle, sys
import jax, jax.numpy as jnp, zen_jax as zen
from jax.experimental import serialize_executable
zen.backend_info()
with open(sys.argv[1], "rb") as file:
    step = serialize_executable.deserialize_and_load(*pickle.load(file), execution_devices=jax.devices()[:1])
print(float(step(jnp.zeros((3, 50, 4)).at[:, 7].set(2.0))[0, 7, 0]))
"""


@needs_native
def test_a_compiled_step_that_another_process_loads(tmp_path):
    """The process that loads the step has traced nothing: backend_info registers the custom calls."""
    path = str(tmp_path / "step.pickle")
    # On CPUs a program from the compilation cache cannot be serialised again.
    child(SAVE, path, JAX_ENABLE_COMPILATION_CACHE="0")
    assert float(child(LOAD, path)) == 6


@needs_native
def test_what_a_library_lacks_runs_in_pure_jax(monkeypatch):
    """Not every platform has a custom call for every kernel."""
    library, targets, reason = _native._load("cpu")
    loaded = {"cpu": (library, targets - {"zen_send_reaching"}, reason), "cuda": (None, frozenset(), "left out")}
    monkeypatch.setattr("zen_jax._native._load", loaded.get)
    send = jax.jit(lambda x: (zen.kernels.send_reaching(x, x, 1.0), zen.kernels.partition(x, 2, 5)))
    text = send.lower(jnp.ones(5)).as_text()
    assert "zen_partition" in text
    assert "zen_send_reaching" not in text


@needs_native
def test_built_with_a_jaxlib_that_is_another_now(monkeypatch):
    """As after a downgrade: XLA refuses handlers of a newer FFI."""

    def refuse(*_, **__):
        raise jax.errors.JaxRuntimeError("the handler's API version (9.9) is incompatible")

    monkeypatch.setattr("jax.ffi.register_ffi_target", refuse)
    library, targets, reason = _native._load.__wrapped__("cpu")
    assert library is None
    assert not targets
    assert "was built with a jaxlib of XLA FFI" in reason
    assert "API version (9.9)" in reason


@needs_native
def test_only_the_lowering_that_runs_is_traced():
    """Tracing the reference for every message size would take longer than all other tracing."""

    def reference(*_):
        raise AssertionError("traced")

    results = [((2, 5), jnp.int32), ((2, 5, 1), jnp.float32), ((2,), jnp.int32)]
    call = partial(custom_call_or, reference, "zen_partition", results=results, seed=np.uint32(0))
    x = jnp.zeros((3, 8, 1)).at[:, 4].set(1.0)
    assert "zen_partition" in jax.jit(jax.vmap(lambda x: call([x]))).lower(x).as_text()
    assert int(jnp.sum(call([x[0]])[2])) == 1


either_lowering = pytest.mark.parametrize("library", [_native.library, lambda *_: None], ids=["native", "reference"])


@either_lowering
def test_results_vary_where_any_operand_does(library, monkeypatch):
    """Positions that all workers share do not make a shard of one worker's values count as replicated."""
    monkeypatch.setattr("zen_jax._native.library", library)
    positions, counts = jnp.array([[0, 2], [1, 2]]), jnp.array([2, 2])
    values = jnp.arange(8.0).reshape(2, 2, 2)
    seen = []

    def worker(values):
        shard = zen.kernels.aggregate(positions, values[0], counts, 4)
        seen.append(jax.typeof(shard).manual_axis_type.varying)
        return shard[None]

    axis = PartitionSpec(harness.AXIS)
    run = jax.jit(jax.shard_map(worker, mesh=harness.mesh(2), in_specs=axis, out_specs=axis))
    assert run(values).tolist() == [[0, 2, 4, 0], [4, 6, 12, 0]]
    assert seen == [frozenset({harness.AXIS})]


@either_lowering
def test_numpy_operands(library, monkeypatch):
    """Both lowerings take arrays that are not JAX's."""
    monkeypatch.setattr("zen_jax._native.library", library)
    positions, values = np.array([[0, 2], [2, 0]], np.int32), np.array([[1, 2], [3, 0]], np.float32)
    shard = zen.kernels.aggregate(positions, values, np.array([2, 1], np.int32), 4)
    assert shard.tolist() == [1.0, 0.0, 5.0, 0.0]
