"""The kernels' tests against NumPy oracles, on the native module that Bazel built."""

import sys

import native_module
import pytest

module = native_module.load("_native_cpu")

import zen_jax  # noqa: E402

assert zen_jax.backend_info()["cpu"].startswith("custom calls"), zen_jax.backend_info()
assert zen_jax._native.library("cpu") is module
sys.exit(
    pytest.main(
        [
            "-p",
            "no:cacheprovider",
            "-q",
            "-k",
            "not reference",
            "--rootdir",
            str(native_module.RUNFILES),
            str(native_module.RUNFILES / "tests" / "test_kernels.py"),
        ]
    )
)
