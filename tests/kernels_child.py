"""Checks the CPU's custom calls under ZEN_JAX_CPU_ISA; prints the set in use and the number of checks."""

import conftest  # noqa: F401
import jax
import numpy as np
import test_error_feedback
import test_kernels
from cases import FLOATS, assert_same_bits, sparse

from zen_jax import _native


def main():
    checked = 0
    rng = np.random.default_rng(0)
    for name, dtype in FLOATS.items():
        with jax.enable_x64(dtype == np.float64):
            for shape, n, scarce in [
                ((9_011,), 8, 0),
                ((9_011,), 3, 9),  # capacity 9: most buckets overflow
                ((701, 3), 8, 0),
                ((150, 64), 3, 0),
                ((150, 64), 1, 9),
                ((70, 17), 4, 0),
                ((257,), 130, 0),
            ]:
                capacity = scarce or test_kernels.room(shape, n)
                run = test_kernels.stages("public", n, capacity)
                for density in (0.01, 0.4, 1):
                    stack = sparse(rng, 2, shape, density, dtype, integers=False)
                    stack.reshape(2, -1)[0, -1] = 1  # the last element, wherever the vectors end
                    test_kernels.check_stages(run(stack), stack, n, capacity, same=assert_same_bits)
                    checked += 1
            test_error_feedback.test_every_dtype_and_special_value(name, (1087,))
            test_error_feedback.test_samples_may_mislead("normal", name)
            checked += 2
    print(_native.library("cpu").isa(), checked)


if __name__ == "__main__":
    main()
