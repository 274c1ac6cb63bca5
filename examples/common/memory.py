"""Keeps the memory that a step frees in the process for the next step."""

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # from glibc's malloc.h


def keep_freed_memory() -> None:
    """Tells glibc's malloc to reuse memory rather than return it; does nothing without glibc.

    On a CPU, each step allocates the gradients of all emulated workers anew: hundreds of megabytes. By default they
    go back to the kernel, and faulting them in again takes about as long as the arithmetic. Call this before jax is
    imported: threads that already exist keep their old behaviour.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    for option, value in ((_TRIM_THRESHOLD, -1), (_MMAP_MAX, 0), (_ARENA_MAX, 1)):
        mallopt(option, value)
