"""Loads a native module that Bazel built, and puts it where zen_jax looks for its own."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

RUNFILES = Path(os.environ["TEST_SRCDIR"], os.environ["TEST_WORKSPACE"])


def load(name: str) -> ModuleType:
    """name: "_native_cpu" or "_native_cuda"."""
    spec = importlib.util.spec_from_file_location(f"zen_jax.{name}", RUNFILES / "xla_ffi" / f"{name}.so")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[spec.name] = module
    return module
