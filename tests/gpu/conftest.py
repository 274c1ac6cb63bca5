"""These tests need an NVIDIA GPU and the module _native_cuda: `benchmarks/gpu.sh` builds it and runs them.

`ZEN_JAX_REHEARSE_GPU=1` runs them on the CPU's kernels instead, which shows whether the tests themselves work.
"""

import os

import jax
import pytest

import zen_jax as zen


@pytest.fixture(autouse=True)
def float64_is_float64():
    """All tests here run with 64-bit types, so that float64 is among the dtypes."""
    with jax.enable_x64(True):
        yield


def missing() -> str | None:
    """Why the tests cannot run here."""
    if os.environ.get("ZEN_JAX_REHEARSE_GPU"):
        return None
    try:
        jax.devices("cuda")
    except RuntimeError:
        return f"no CUDA device (JAX_PLATFORMS is {jax.config.jax_platforms!r})"
    cuda = zen.backend_info()["cuda"]
    return None if cuda.startswith("custom calls") else f"no CUDA kernels: {cuda}"


def pytest_collection_modifyitems(config, items):
    here = [item for item in items if config.rootpath / "tests" / "gpu" in item.path.parents]
    reason = missing() if here else None
    if reason and os.environ.get("ZEN_JAX_REQUIRE_GPU"):
        raise pytest.UsageError(reason)
    for item in here:
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
