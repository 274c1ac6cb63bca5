"""zen_jax: sparse gradient synchronisation for JAX with near-optimal communication time."""

from zen_jax import hashing as hashing
from zen_jax import kernels as kernels
from zen_jax import schemes as schemes
from zen_jax._native import backend_info as backend_info
from zen_jax.collective import all_reduce as all_reduce
from zen_jax.info import Info as Info
from zen_jax.info import total as total
