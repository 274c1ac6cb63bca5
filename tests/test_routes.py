"""Which kernels a program calls: a fast path that turned into a slow one would give the same bits."""

import re

import harness
import jax
import jax.numpy as jnp
import pytest

import zen_jax as zen

NATIVE = zen.backend_info()["cpu"]
pytestmark = [
    pytest.mark.skipif(not NATIVE.startswith("custom calls"), reason=f"no native module: {NATIVE}"),
    pytest.mark.usefixtures("coarse_ladder"),
]

N, SHAPE = 4, (100, 64)
KERNELS = {  # apart from those that pack and unpack messages
    "partition",
    "partition_coo",
    "hierarchical_hash",
    "aggregate",
    "aggregate_encode",
    "aggregate_for_others",
    "hash_bitmap_encode",
    "hash_bitmap_decode",
    "place_own",
}
ROUTES = {
    "servers write no shard": ({}, {"aggregate_encode", "hash_bitmap_decode"}),
    "nor for others": ({"pull_format": "others"}, {"aggregate_for_others", "hash_bitmap_decode", "place_own"}),
    "COO pull": ({"pull_format": "coo"}, {"aggregate", "partition"}),
    "bitmap push": ({"push_format": "bitmap"}, {"hash_bitmap_encode", "hash_bitmap_decode"}),
    "agsparse": ({"scheme": "agsparse"}, {"aggregate"}),
}


def called(gradient, **options):
    """The kernels of a reduction among N workers."""
    worker = lambda gradient: zen.all_reduce(gradient, harness.AXIS, **{"scheme": "zen"} | options)
    stacked = jax.tree.map(lambda x: jax.ShapeDtypeStruct((N, *x.shape), x.dtype), gradient)
    program = jax.jit(jax.vmap(worker, axis_name=harness.AXIS)).lower(stacked).as_text()
    return KERNELS & set(re.findall(r"@zen_(\w+)\(", program))


@pytest.mark.parametrize(("options", "kernels"), ROUTES.values(), ids=ROUTES.keys())
def test_arrays(options, kernels):
    assert called(jnp.zeros(SHAPE), **options) == kernels | {"partition"}


@pytest.mark.parametrize(("options", "kernels"), ROUTES.values(), ids=ROUTES.keys())
def test_lists(options, kernels):
    """With room for few elements, so that no dense branch is needed: the list is never made an array."""
    gradient = zen.SparseGradient(jnp.zeros(30, jnp.int32), jnp.ones(30), jnp.int32(30), SHAPE)
    sorted_by_server = set() if options.get("scheme") == "agsparse" else {"partition_coo"}
    assert called(gradient, **options) == kernels | sorted_by_server
