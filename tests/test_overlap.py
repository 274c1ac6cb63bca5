"""XLA can start on a leaf before the backward pass is over, because the leaf waits only for its own gradient."""

import harness
import jax
import jax.numpy as jnp
import pytest
from jax.interpreters import partial_eval

import zen_jax as zen

N = 4
SHAPES = {"first": (400, 8), "second": (300, 8), "third": (200, 8), "bias": (7,), "scale": (5,)}
FUSED = {"bias", "scale"}


@pytest.mark.parametrize("scheme", zen.schemes.names())
def test_a_leaf_depends_on_no_other_gradient(scheme):
    """Small leaves depend on all leaves of their bucket, because these travel together."""
    transform = zen.synchronize(harness.AXIS, scheme=scheme, dense_below=1000)
    gradients = {name: jnp.zeros((N, *shape)) for name, shape in SHAPES.items()}
    worker = lambda tree: transform.update(tree, None)[0]
    traced = jax.make_jaxpr(jax.vmap(worker, axis_name=harness.AXIS))(gradients)
    names = sorted(gradients)
    for name in names:
        wanted = [other == name for other in names]
        _, used = partial_eval.dce_jaxpr(traced.jaxpr, wanted)
        waits_for = {other for other, is_used in zip(names, used, strict=True) if is_used}
        assert waits_for == (FUSED if name in FUSED else {name})
