"""Sparse parameter servers: even contiguous ranges, COO both ways; imbalanced wherever non-zeros cluster."""

from zen_jax import errors
from zen_jax._typing import Array, AxisName
from zen_jax.info import Info
from zen_jax.schemes.options import ReduceOptions
from zen_jax.schemes.partitioning import Contiguous
from zen_jax.schemes.servers import reduce_on_servers


def sparse_ps(x: Array, axis_name: AxisName, options: ReduceOptions) -> tuple[Array, Info]:
    """All-reduces units [U, m] over servers of U/n consecutive units each.

    Source: ZEN (OSDI 2025), section 2.3 and the proof of Lemma 1.
    """
    errors.check_units(x.shape[0], "contiguous servers", "scheme='auto'")
    return reduce_on_servers(x, axis_name, Contiguous, options._replace(push_format="coo", pull_format="coo"))
