"""The native libraries: which were built, which custom calls they hold, and which lowering each platform uses."""

import importlib
import os
import warnings
from functools import cache
from types import ModuleType

import jax
import jaxlib

from zen_jax import errors

_PLATFORMS = {"cpu": ("_native_cpu", "cpu"), "cuda": ("_native_cuda", "CUDA")}
_INSTALL = {"cpu": "ZEN_JAX_NATIVE=1", "cuda": "ZEN_JAX_CUDA=1"}
_SWITCH = "ZEN_JAX_KERNELS"
_ISA = "ZEN_JAX_CPU_ISA"
_ISAS = ("avx512", "avx2", "scalar")


@cache
def _load(platform: str) -> tuple[ModuleType | None, frozenset[str], str]:
    """The platform's library or None, the custom calls registered from it, and the reason."""
    choice = os.environ.get(_SWITCH, "native")
    errors.check_choice(_SWITCH, choice, ("native", "xla"))
    errors.check_choice(_ISA, os.environ.get(_ISA, _ISAS[0]), _ISAS)
    if choice == "xla":
        return None, frozenset(), f"{_SWITCH}=xla turns custom calls off"
    module, ffi_platform = _PLATFORMS[platform]
    try:
        library = importlib.import_module(f"zen_jax.{module}")
    except ModuleNotFoundError:
        compiler = "nvcc (ZEN_JAX_CUDA=1 brings PyPI's)" if platform == "cuda" else "C++ compiler"
        cause = f"no working {compiler} at installation, or these sources hide the package that was installed"
        return None, frozenset(), f"zen_jax.{module} is not there: {cause}"
    except ImportError as error:
        return None, frozenset(), f"zen_jax.{module} does not load: {error}"
    targets = library.registrations()
    try:
        for target, capsule in targets.items():
            jax.ffi.register_ffi_target(target, capsule, platform=ffi_platform)
    except jax.errors.JaxRuntimeError as error:
        major, minor = library.ffi_api_version()
        cause = f"was built with a jaxlib of XLA FFI {major}.{minor}, which jaxlib {jaxlib.__version__} does not take"
        return None, frozenset(), f"zen_jax.{module} {cause}: {error}"
    return library, frozenset(targets), "custom calls registered"


def library(platform: str, target: str | None = None) -> ModuleType | None:
    """The native library of "cpu" or "cuda" with its custom calls registered; None where pure JAX is used.

    With a target: also None if the target has no custom call on this platform.
    """
    module, targets, _ = _load(platform)
    return module if target is None or target in targets else None


@cache
def warn_of_pure_jax(platform: str) -> None:
    """Warns, once, that this process computes without a library that it could have."""
    module, _, reason = _load(platform)
    backend = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
    if module is None and platform == backend and os.environ.get(_SWITCH) != "xla":
        warnings.warn(
            f"zen_jax computes in pure JAX on {platform}, many times slower than its kernels: {reason}. Install it "
            f"again with {_INSTALL[platform]}, which fails with the cause, or set {_SWITCH}=xla to accept this.",
            stacklevel=2,
        )


def backend_info() -> dict[str, str]:
    """Which lowering of the kernels each platform uses, and why.

    Returns:
      A line for each of "cpu", "cuda" and "tpu": "custom calls (...)" or "pure JAX (...)".

    >>> import zen_jax as zen
    >>> print(zen.backend_info()["tpu"])
    pure JAX (there are no custom calls for TPU)
    """
    info = {}
    for platform in _PLATFORMS:
        module, _, reason = _load(platform)
        if module is None:
            info[platform] = f"pure JAX ({reason})"
        else:
            major, minor = module.ffi_api_version()
            isa = f"{module.isa()}, " if hasattr(module, "isa") else ""
            info[platform] = f"custom calls ({isa}built for XLA FFI {major}.{minor})"
    return info | {"tpu": "pure JAX (there are no custom calls for TPU)"}
