"""Gradients that a scheme must survive: stacks [n, *shape], one entry per worker."""

import math

import ml_dtypes
import numpy as np
import oracle

FLOATS = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
SHAPES = [(), (0,), (0, 3), (3, 0), (1,), (13,), (127,), (1, 1), (5, 3, 2)]
WORKERS = [1, 2, 3, 4, 5, 7, 8]


def bits(x):
    """The bits of an array of floats, so that comparisons see the signs of zeros and NaNs."""
    x = np.asarray(x)
    return x.view(f"u{x.dtype.itemsize}")


def assert_same_bits(actual, expected, message=""):
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype, f"{message}: {actual.dtype} is not {expected.dtype}"
    assert actual.shape == expected.shape, f"{message}: {actual.shape} is not {expected.shape}"
    np.testing.assert_array_equal(bits(actual), bits(expected), err_msg=message)


def assert_same_values(actual, expected, message=""):
    """Bitwise equal, except for NaN payloads and the signs of zeros."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype, f"{message}: {actual.dtype} is not {expected.dtype}"
    np.testing.assert_array_equal(actual.astype(np.float64), expected.astype(np.float64), err_msg=message)


def held(counts, capacity):
    """The index of the entries that messages [..., capacity] hold, by counts [...]; the rest is unspecified."""
    return np.nonzero(np.arange(capacity) < np.asarray(counts)[..., None])


def listed(x, room):
    """The non-zero elements of x as a list with `room`, the rest filled with what must not be read."""
    found = np.flatnonzero(x)
    indices, values = np.full(room, -7, np.int32), np.full(room, np.nan, x.dtype)
    indices[: found.size], values[: found.size] = found[:room], x[found[:room]]
    return indices, values, np.int32(found.size)


def _numbers(shape, by_row=True):
    """The number of each row or element of a gradient, in a shape that broadcasts against it."""
    shape = shape[:1] + (1,) * (len(shape) - 1) if by_row else shape
    return np.arange(math.prod(shape)).reshape(shape)


def _keep(stack, where):
    return np.where(where, stack, np.zeros_like(stack))


def sparse(rng, n, shape, density, dtype=np.float32, integers=True, by_row=True):
    """Random rows (or elements) of the given density, different ones for each worker."""
    values = (
        rng.integers(1, 9, (n, *shape)) * rng.choice([-1, 1], (n, *shape)) if integers else rng.normal(size=(n, *shape))
    )
    stack = np.asarray(values).astype(dtype)
    return _keep(stack, rng.random((n, *_numbers(shape, by_row).shape)) < density)


def structured(n, shape, dtype=np.float32, integers=True, *, servers=None, seed=0):
    """Name -> stack, for every structure of zeros: empty, full, skewed over workers, skewed over servers.

    By default there are as many servers as workers.
    """
    servers = servers or n
    rng = np.random.default_rng([n, *shape])
    full = sparse(rng, n, shape, 1.0, dtype, integers)
    rows, elements = _numbers(shape), _numbers(shape, by_row=False)
    empty_worker, lone_worker = full.copy(), np.zeros_like(full)
    empty_worker[n // 2] = 0
    lone_worker[-1] = full[-1]
    return {
        "all zero": np.zeros_like(full),
        "all dense": full,
        "one worker empty": empty_worker,
        "one worker alone": lone_worker,
        "the same on every worker": np.repeat(full[:1], n, axis=0),
        "one hot row": _keep(full, rows == rows.size // 2),
        "one hot element": _keep(full, elements == elements.size // 2),
        "every n-th row": _keep(full, rows % servers == 0),
        "every n-th element": _keep(full, elements % servers == 0),
        "the rows of one server": _keep(full, oracle.server_of(rows, servers, seed) == servers - 1),
        "the elements of one server": _keep(full, oracle.server_of(elements, servers, seed) == servers - 1),
        "sparse rows": sparse(rng, n, shape, 0.1, dtype, integers),
        "sparse elements": sparse(rng, n, shape, 0.1, dtype, integers, by_row=False),
        "half of the elements": sparse(rng, n, shape, 0.5, dtype, integers, by_row=False),
    }


def special(n, shape, dtype=np.float32):
    """Name -> stack, with values that arithmetic treats specially."""
    rng = np.random.default_rng([n, *shape])
    tiny, largest = (kind(dtype) for kind in (_tiny, _largest))

    def planted(*values):
        stack = sparse(rng, n, shape, 0.2, dtype, integers=False)
        flat = stack.reshape(n, -1)
        for i, value in enumerate(values):
            flat[i % n, (7 * i) % flat.shape[1]] = value
        return stack

    return {
        "NaN": planted(np.nan),
        "infinities": planted(np.inf, -np.inf, np.inf),
        "opposite infinities": np.where(np.arange(n) % 2 == 0, np.inf, -np.inf)
        .astype(dtype)
        .reshape(n, *[1] * len(shape))
        * np.ones((n, *shape), dtype),
        "-0.0": planted(-0.0, -0.0, -0.0),
        "only -0.0": np.full((n, *shape), -0.0, dtype),
        "subnormals": sparse(rng, n, shape, 0.1, dtype) * tiny,
        "overflow": np.full((n, *shape), largest, dtype),
    }


def _tiny(dtype):
    return ml_dtypes.finfo(dtype).smallest_subnormal


def _largest(dtype):
    return ml_dtypes.finfo(dtype).max


def normal(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)
