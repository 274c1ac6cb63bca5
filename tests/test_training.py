"""value_and_grad under jit over a mesh equals jax.value_and_grad of the global loss."""

import harness
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import zen_jax as zen
from zen_jax import training

N = 4
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, 50, (2 * N, 5)).astype(np.int32)
TARGETS = RNG.normal(size=(2 * N,)).astype(np.float32)
PARAMS = {"table": RNG.normal(size=(53, 8)).astype(np.float32), "w": RNG.normal(size=(8,)).astype(np.float32)}


def loss(params, tokens, targets, scale=1.0):
    hidden = jnp.mean(params["table"][tokens], axis=1)
    return scale * jnp.mean((hidden @ params["w"] - targets) ** 2)


def loss_and_aux(params, tokens, targets):
    hidden = jnp.mean(params["table"][tokens], axis=1)
    return jnp.mean((hidden @ params["w"] - targets) ** 2), {"largest": jnp.max(jnp.abs(hidden))}


def mesh_of(axis_type=AxisType.Auto):
    return harness.mesh(N, "data", axis_type)


def assert_close(actual, expected):
    jax.tree.map(lambda a, e: np.testing.assert_allclose(a, e, 1e-5, 1e-6), actual, expected)


@pytest.mark.parametrize(
    ("scheme", "axis_type"),
    [*((scheme, AxisType.Auto) for scheme in zen.schemes.names()), *((s, AxisType.Explicit) for s in ("zen", "auto"))],
)
def test_equals_the_global_mean(scheme, axis_type):
    step = zen.value_and_grad(loss, mesh=mesh_of(axis_type), scheme=scheme, dense_below=0)
    value, gradients = jax.jit(step)(PARAMS, TOKENS, TARGETS)
    expected_value, expected = jax.value_and_grad(loss)(PARAMS, TOKENS, TARGETS)
    assert_close((value, gradients), (expected_value, expected))
    untouched = np.setdiff1d(np.arange(53), TOKENS)
    assert (np.asarray(gradients["table"])[untouched] == 0).all()


def test_outside_jit_and_with_placed_inputs():
    mesh = mesh_of()
    step = zen.value_and_grad(loss, mesh=mesh, dense_below=0)
    expected = jax.value_and_grad(loss)(PARAMS, TOKENS, TARGETS)
    assert_close(step(PARAMS, TOKENS, TARGETS), expected)
    batch = jax.device_put((TOKENS, TARGETS), NamedSharding(mesh, PartitionSpec("data")))
    params = jax.device_put(PARAMS, NamedSharding(mesh, PartitionSpec()))
    assert_close(jax.jit(step)(params, *batch), expected)


def test_options_reach_synchronize(monkeypatch):
    options = {"op": "sum", "scheme": "zen", "unit": 4, "bucket_bytes": 9, "dense_below": 7, "seed": 3}
    given = {}
    monkeypatch.setattr(training, "synchronize", lambda axis, **how: given.update(how) or zen.synchronize(axis, **how))
    zen.value_and_grad(loss, mesh=mesh_of(), **options)
    assert given == options | {"plan": None, "intra_axis": None}


def test_sum():
    value, gradients = jax.jit(zen.value_and_grad(loss, mesh=mesh_of(), op="sum"))(PARAMS, TOKENS, TARGETS)
    expected = jax.tree.map(lambda x: N * x, jax.value_and_grad(loss)(PARAMS, TOKENS, TARGETS))
    assert_close((value, gradients), expected)


def test_has_aux():
    """aux is each worker's own, stacked."""
    step = jax.jit(zen.value_and_grad(loss_and_aux, has_aux=True, mesh=mesh_of()))
    (value, aux), gradients = step(PARAMS, TOKENS, TARGETS)
    (expected_value, _), expected = jax.value_and_grad(loss_and_aux, has_aux=True)(PARAMS, TOKENS, TARGETS)
    assert_close((value, gradients), (expected_value, expected))
    shares = zip(np.split(TOKENS, N), np.split(TARGETS, N), strict=True)
    assert_close(aux["largest"], np.array([loss_and_aux(PARAMS, *share)[1]["largest"] for share in shares]))


def test_argnums():
    def split_loss(table, tokens, w, targets):
        return loss({"table": table, "w": w}, tokens, targets)

    args = (PARAMS["table"], TOKENS, PARAMS["w"], TARGETS)
    for argnums in ((0, 2), (2, 0), (-2, 0)):
        actual = jax.jit(zen.value_and_grad(split_loss, argnums, mesh=mesh_of()))(*args)
        assert_close(actual, jax.value_and_grad(split_loss, argnums)(*args))


def test_argnum_behind_the_batch():
    def loss_last(tokens, targets, params):
        return loss(params, tokens, targets)

    for argnums in (2, -1, np.int64(2)):
        actual = jax.jit(zen.value_and_grad(loss_last, argnums, mesh=mesh_of()))(TOKENS, TARGETS, PARAMS)
        assert_close(actual, jax.value_and_grad(loss_last, argnums)(TOKENS, TARGETS, PARAMS))


def test_keyword_arguments_are_not_split():
    step = jax.jit(zen.value_and_grad(loss, mesh=mesh_of()))
    actual = step(PARAMS, TOKENS, TARGETS, scale=jnp.float32(3))
    assert_close(actual, jax.value_and_grad(loss)(PARAMS, TOKENS, TARGETS, scale=3.0))


def test_scalars_and_keys_are_not_split():
    """A key, too, is the same for all workers."""

    def masked_loss(params, tokens, targets, scale, key):
        kept = jax.random.bernoulli(key, 0.5, (8,))
        return loss(params | {"w": jnp.where(kept, params["w"], 0)}, tokens, targets, scale), kept

    arguments = (PARAMS, TOKENS, TARGETS, jnp.float32(3), jax.random.key(7))
    (value, kept), gradients = jax.jit(zen.value_and_grad(masked_loss, has_aux=True, mesh=mesh_of()))(*arguments)
    (expected_value, mask), expected = jax.value_and_grad(masked_loss, has_aux=True)(*arguments)
    assert_close((value, gradients), (expected_value, expected))
    np.testing.assert_array_equal(kept, np.tile(mask, (N, 1)))


def test_arguments_that_are_no_arrays_stay_what_they_are():
    def loss_of_mode(params, tokens, targets, activation, double, *, train, mode, dtype):
        assert dtype is jnp.float32
        assert activation is jnp.tanh
        return loss(params, tokens, targets, 2.0 if double and train and mode == "double" else 1.0)

    step = zen.value_and_grad(loss_of_mode, mesh=mesh_of())
    others = {"train": True, "mode": "double", "dtype": jnp.float32}
    actual = jax.jit(lambda *args: step(*args, jnp.tanh, True, **others))(PARAMS, TOKENS, TARGETS)
    assert_close(actual, jax.value_and_grad(loss)(PARAMS, TOKENS, TARGETS, scale=2.0))


def test_constant_loss():
    value, gradient = zen.value_and_grad(lambda w, x: 2.0, mesh=mesh_of())(jnp.ones(3), TOKENS)
    assert (float(value), gradient.tolist()) == (2.0, [0.0] * 3)


def test_info():
    step = jax.jit(zen.value_and_grad(loss, mesh=mesh_of(), return_info=True))
    _, _, info = step(PARAMS, TOKENS, TARGETS)
    assert float(zen.total(info).bytes_dense) > 0


def test_plan():
    per_worker = [jax.grad(loss)(PARAMS, t, y) for t, y in zip(np.split(TOKENS, N), np.split(TARGETS, N), strict=True)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *per_worker)
    plan = zen.plan(zen.profile(stacked, unit="row"), zen.Cluster(N, inter_gbps=1e-4, latency_us=0))
    assert plan.leaves["table"].scheme not in ("dense", "dense_ordered")
    actual = jax.jit(zen.value_and_grad(loss, mesh=mesh_of(), plan=plan))(PARAMS, TOKENS, TARGETS)
    assert_close(actual, jax.value_and_grad(loss)(PARAMS, TOKENS, TARGETS))


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_lookups_make_gradients_row_sparse(axis_type):
    """The tables that `lookups` names get the rows of all workers; other leaves, aux and keywords stay as they were."""

    def lookup_loss(params, tokens, targets, scale=1.0):
        hidden = jnp.mean(zen.embedding.lookup(params["table"], tokens, padding_id=-1), axis=1)
        return scale * jnp.mean((hidden @ params["w"] - targets) ** 2), jnp.max(hidden)

    step = zen.value_and_grad(
        lookup_loss,
        has_aux=True,
        mesh=mesh_of(axis_type),
        lookups=lambda tokens, targets: {"table": tokens},
        padding_id=-1,
    )
    padded = np.where(TOKENS == TOKENS[0, 0], -1, TOKENS)
    (value, aux), gradients = jax.jit(step)(PARAMS, padded, TARGETS, scale=jnp.float32(3))
    (expected_value, _), expected = jax.value_and_grad(lookup_loss, has_aux=True)(PARAMS, padded, TARGETS, scale=3.0)
    table = gradients["table"]
    assert isinstance(table, zen.RowSparseGradient) and aux.shape == (N,)
    assert table.ids[table.ids < 53].tolist() == sorted(set(padded.ravel()) - {-1})
    assert_close((value, gradients | {"table": table.to_dense()}), (expected_value, expected))


def test_lookups_are_of_the_first_argument():
    with pytest.raises(ValueError, match=r"argnums=\(0, 1\), but lookups are for argument 0"):
        zen.value_and_grad(loss, (0, 1), mesh=mesh_of(), lookups=lambda *batch: {})


def test_several_axes():
    """As a tuple, which `all_reduce` and `synchronize` also take."""
    axes = ("replica", "data")
    mesh = harness.mesh((2, 2), axes)
    step = zen.value_and_grad(loss, mesh=mesh, axis_name=axes, scheme="zen", dense_below=0)
    assert_close(jax.jit(step)(PARAMS, TOKENS, TARGETS), jax.value_and_grad(loss)(PARAMS, TOKENS, TARGETS))
    with pytest.raises(ValueError, match=r"axis_name='model' is unknown\. Use one of 'replica', 'data'"):
        zen.value_and_grad(loss, mesh=mesh, axis_name=("replica", "model"))


def test_axes_of_several_types():
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto, AxisType.Explicit), devices=jax.devices()[:4])
    for axis_name in ("a", "b", ("a", "b")):
        step = zen.value_and_grad(loss, mesh=mesh, axis_name=axis_name, scheme="zen", dense_below=0)
        assert_close(jax.jit(step)(PARAMS, TOKENS, TARGETS), jax.value_and_grad(loss)(PARAMS, TOKENS, TARGETS))


def test_float16_losses_do_not_overflow():
    step = jax.jit(zen.value_and_grad(lambda w, x: jnp.mean(x @ w), mesh=mesh_of()))
    value, _ = step(jnp.ones(4, jnp.float16), np.full((N, 4), 10_000, np.float16))
    assert (value.dtype, float(value)) == (jnp.float16, 40_000)


def test_one_device():
    step = jax.jit(zen.value_and_grad(loss, mesh=harness.mesh(1, "data")))
    assert_close(step(PARAMS, TOKENS, TARGETS), jax.value_and_grad(loss)(PARAMS, TOKENS, TARGETS))
