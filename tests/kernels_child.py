"""Checks the CPU's custom calls against NumPy under this process's ZEN_JAX_CPU_ISA; prints the set and how many runs."""

import conftest  # noqa: F401
import jax
import numpy as np
import test_kernels
from cases import FLOATS, assert_same_bits, sparse

from zen_jax import _native


def main():
    checked = 0
    rng = np.random.default_rng(0)
    for dtype in FLOATS.values():
        with jax.enable_x64(dtype == np.float64):
            for n in (1, 3, 8, 130):
                for shape in [(20_011,), (2_003, 3), (300, 64), (70, 17)]:
                    for capacity in (test_kernels.room(shape, n), 9):
                        run = test_kernels.stages("public", n, capacity)
                        for density in (0, 0.01, 0.4, 1):
                            stack = sparse(rng, 2, shape, density, dtype, integers=False)
                            # Random bits in the zeros' places would hide a missed unit, so one lone value is planted.
                            stack.reshape(2, -1)[0, -1] = 1
                            test_kernels.check_stages(run(stack), stack, n, capacity, same=assert_same_bits)
                            checked += 1
    print(_native.library("cpu").isa(), checked)


if __name__ == "__main__":
    main()
