"""zen_jax: sparse gradient synchronisation for JAX with near-optimal communication time."""

from zen_jax import hashing as hashing
from zen_jax import kernels as kernels
from zen_jax._native import backend_info as backend_info
