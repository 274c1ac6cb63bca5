"""The CUDA module that Bazel built loads and registers, even with a CPU-only jaxlib."""

import native_module

module = native_module.load("_native_cuda")

import zen_jax  # noqa: E402

assert zen_jax.backend_info()["cuda"].startswith("custom calls"), zen_jax.backend_info()
assert module.partition_scratch_bytes(1 << 20, 1, 4, 8, 1 << 14) > 0
