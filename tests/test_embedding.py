"""Embedding lookups: values, bags, gradients and whole models are those of dense tables."""

import copy
import subprocess
import sys

import flax.errors
import flax.linen as nn
import harness
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given
from jax.extend.core import ClosedJaxpr
from lookups import RNG, TABLE, D, K, N, V, assert_well_formed, ids_in_range, integers

import zen_jax as zen
import zen_jax.embedding.linen
import zen_jax.embedding.nnx
from zen_jax import embedding

pytestmark = pytest.mark.promoting  # optax's and Flax's own arithmetic relies on promotion


# --- lookups ----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["table", "taken rows"])
def table_for(request):
    """Maps ids to what they are looked up in: the table itself, or the rows that they name."""
    if request.param == "table":
        return lambda ids, padding_id=None: jnp.asarray(TABLE)
    return lambda ids, padding_id=None: embedding.take_rows(jnp.asarray(TABLE), ids, padding_id=padding_id)


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3)])
@pytest.mark.parametrize("padding_id", [None, 4, -1])
def test_lookup(table_for, shape, padding_id):
    ids = RNG.integers(0, V, shape).astype(np.int32)
    if ids.size and padding_id is not None:
        ids.reshape(-1)[0] = padding_id
    expected = np.where((ids == padding_id)[..., None], 0, TABLE[ids]) if padding_id is not None else TABLE[ids]
    actual = embedding.lookup(table_for(ids, padding_id), ids, padding_id=padding_id)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("combiner", ["sum", "mean"])
@pytest.mark.parametrize("padding_id", [None, 0, -7])
def test_bag(table_for, combiner, padding_id):
    ids = RNG.integers(1, V, (4, 5)).astype(np.int32)
    if padding_id is not None:
        ids[0, 3:], ids[1] = padding_id, padding_id
    kept = [bag[bag != padding_id] for bag in ids]
    sums = np.stack([TABLE[bag].sum(axis=0) for bag in kept])
    counts = np.array([max(1, len(bag)) for bag in kept])
    expected = sums / counts[:, None] if combiner == "mean" else sums
    actual = embedding.bag(table_for(ids, padding_id), ids, combiner=combiner, padding_id=padding_id)
    np.testing.assert_allclose(actual, expected, 1e-6)


@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_bags_of_16_bits_round_once(combiner):
    """A sum may exceed float16 on the way to a mean, or to a sum that fits."""
    table = jnp.array([[6e4], [6e4], [-6e4]], jnp.float16)
    ids = jnp.array([[0, 1, 1]]) if combiner == "mean" else jnp.array([[0, 1, 2]])
    actual = embedding.bag(table, ids, combiner=combiner)
    assert actual.dtype == jnp.float16 and actual[0, 0] == table[0, 0]


def test_more_lookups_than_the_table_has_rows():
    loss = lambda table, ids: jnp.sum(embedding.lookup(table, ids) ** 2)
    ids = np.arange(1000) % 2
    _, gradient = embedding.value_and_grad(loss, lambda ids: {"(array)": ids})(jnp.asarray(TABLE[:3]), ids)
    assert gradient.rows.shape == (3, D)
    np.testing.assert_array_equal(gradient.to_dense(), jax.grad(loss)(jnp.asarray(TABLE[:3]), ids))


def test_looking_up_again_compiles_nothing(caplog):
    taken = embedding.take_rows(jnp.asarray(TABLE), np.arange(5))
    with jax.log_compiles():
        embedding.lookup(taken, np.array([3, 1, 4]))
        caplog.clear()
        embedding.lookup(taken, np.array([2, 2, 4]))
        assert "ompiling" not in caplog.text


def test_flax_is_imported_when_its_modules_are_used():
    program = (
        "import sys, zen_jax; a = 'flax' in sys.modules; zen_jax.embedding.{}.Embed; print(a, 'flax' in sys.modules)"
    )
    for name in ("nnx", "linen"):
        done = subprocess.run([sys.executable, "-c", program.format(name)], capture_output=True, text=True, check=True)
        assert done.stdout == "False True\n"
    with pytest.raises(AttributeError, match=r"'zen_jax\.embedding' has no attribute 'flax'"):
        embedding.flax  # noqa: B018


def test_narrow_ids():
    """Ids of a dtype just wide enough for the table: none may be mistaken for another, or for padding."""
    table = np.arange(256, dtype=np.float32)[:, None]
    ids = np.array([[255, 7], [0, 128]], np.uint8)
    taken = embedding.take_rows(jnp.asarray(table), ids, padding_id=-1)
    for source in (jnp.asarray(table), taken):
        looked_up = jax.jit(lambda source, ids: embedding.lookup(source, ids, padding_id=-1))(source, ids)
        np.testing.assert_array_equal(looked_up[..., 0], ids)
        mean = embedding.bag(source, ids, combiner="mean", padding_id=-1)
        np.testing.assert_array_equal(mean[:, 0], ids.mean(axis=1))


BAD = {
    "too large": (lambda t: embedding.lookup(t, np.array([[1], [V]])), r"ids hold 23 at \[1, 0\].*rows 0 to 22"),
    "negative": (lambda t: embedding.lookup(t, np.array([-1])), r"ids hold -1 at \[0\]"),
    "padding of another id": (lambda t: embedding.bag(t, np.array([-1, -2]), padding_id=-1), "ids hold -2"),
    "taken": (lambda t: embedding.take_rows(t, [np.array([1]), np.array([99])]), "ids hold 99"),
    "floats": (lambda t: embedding.lookup(t, np.array([1.0])), "dtype float.*must be integers"),
    "a list": (lambda t: embedding.lookup(t, [1, 2]), "ids are a list, but they must be one array"),
    "a bag's list": (lambda t: embedding.bag(t, [1, 2]), "ids are a list"),
    "a scalar table": (lambda t: embedding.lookup(t[0, 0], np.array([0])), "table is a scalar"),
    "nothing to take from": (lambda t: embedding.take_rows(t[0, 0], np.array([0])), "table is a scalar"),
    "half a padding": (lambda t: embedding.lookup(t, np.array([1]), padding_id=1.5), "padding_id=1.5 must be None or"),
    "wide padding": (lambda t: embedding.lookup(t, np.int32([1]), padding_id=2**40), "padding_id=1099511627776.*int32"),
    "padding of one name": (
        lambda t: embedding.take_rows(t, [np.array([1])], padding_id=True),
        "padding_id=True must be None or an integer",
    ),
    "combiner": (lambda t: embedding.bag(t, np.array([1]), combiner="max"), "combiner='max' is unknown"),
    "cast ids": (
        lambda t: embedding.value_and_grad(
            lambda p: embedding.lookup(jax.tree.map(lambda x: x.astype(jnp.bfloat16), p), np.array([1])).sum(),
            lambda: {"(array)": np.array([1])},
        )(t),
        "TakenRows has ids of bfloat16, but they must be int32",
    ),
    "take": (
        lambda t: jnp.take(embedding.take_rows(t, np.array([1])), np.array([1]), axis=0),
        r"table\[ids\], not jnp.t",
    ),
    "product": (
        lambda t: jnp.ones((1, len(t))) @ embedding.take_rows(t, np.array([1])),
        "only rows at ids can be read",
    ),
    "equal": (lambda t: embedding.take_rows(t, np.array([1])) == 0, "only rows at ids can be read"),
    "length": (lambda t: len(embedding.take_rows(t, np.array([1]))), "only rows at ids can be read"),
    "whole": (lambda t: embedding.take_rows(t, np.array([1]))[...], "use zen_jax.embedding.nnx.Embed"),
    "times": (lambda t: 2 * embedding.take_rows(t, np.array([1])), "only rows at ids can be read"),
    "no bag": (lambda t: embedding.bag(t, np.int32(1)), "must have a last axis"),
    "name": (
        lambda t: embedding.value_and_grad(lambda p: 0.0, lambda: {"tabel": np.array([1])})({"table": t}),
        "lookups names 'tabel', but params have 'table'",
    ),
    "no function": (
        lambda t: embedding.value_and_grad(lambda p: 0.0, {"table": np.array([1])}),
        "lookups is a dict, but must be a function",
    ),
    "an array of ids": (
        lambda t: embedding.value_and_grad(lambda p, i: 0.0, lambda i: i)({"table": t}, jnp.array([1])),
        "lookups returned a .*but must return the ids by the table's name",
    ),
    "no ids": (
        lambda t: embedding.value_and_grad(lambda p: 0.0, lambda: None)({"table": t}),
        "lookups returned a NoneType",
    ),
    "name of padding": (
        lambda t: embedding.value_and_grad(lambda p: 0.0, lambda: {"table": np.array([1])}, padding_id={"tabel": 0})(
            {"table": t}
        ),
        "padding_id names 'tabel', but lookups have 'table'",
    ),
}


@pytest.mark.parametrize("call, message", BAD.values(), ids=BAD.keys())
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(jnp.asarray(TABLE))


def test_tables_of_no_rows():
    table, ids = jnp.zeros((0, 4)), jnp.full(3, -1)
    loss = lambda table, ids: embedding.lookup(table, ids, padding_id=-1).sum()
    value_and_grad = embedding.value_and_grad(loss, lambda ids: {"(array)": ids}, padding_id=-1)
    value, gradient = value_and_grad(table, ids)
    assert value == 0 and gradient.to_dense().shape == table.shape and (table + gradient).shape == table.shape


def test_what_arrays_have_and_taken_rows_lack():
    taken = embedding.take_rows(jnp.asarray(TABLE), np.array([1]))
    with pytest.raises(AttributeError, match=r"table\.T: the table is used as an array, but only rows at ids"):
        taken.T  # noqa: B018
    assert not hasattr(taken, "astype") and copy.copy(taken).shape == taken.shape


def test_indexing_what_was_taken_looks_rows_up():
    table, ids = np.arange(10.0, dtype=np.float32)[:, None], jnp.array([[7, 3], [3, 1]])
    taken = embedding.take_rows(table, ids)
    np.testing.assert_array_equal(taken[ids], table[np.asarray(ids)])
    gradient = taken.gradient(jnp.ones((4, 1)))
    np.testing.assert_array_equal(table + gradient, table + np.asarray(gradient.to_dense()))


@pytest.mark.parametrize("combiner", [None, "sum"])
def test_modules_keep_their_table_in_param_dtype_and_give_dtype(combiner):
    ids, options = jnp.zeros((2, 3), jnp.int32), {"combiner": combiner, "dtype": jnp.bfloat16}
    linen = embedding.linen.Embed(V, D, **options)
    params = linen.init(jax.random.key(0), ids)
    nnx_model = embedding.nnx.Embed(V, D, rngs=nnx.Rngs(0), **options)
    assert params["params"]["embedding"].dtype == nnx_model.embedding.get_value().dtype == jnp.float32
    assert linen.apply(params, ids).dtype == nnx_model(ids).dtype == jnp.bfloat16
    with pytest.raises(flax.errors.ScopeParamShapeError):
        embedding.linen.Embed(V + 1, D, **options).apply(params, ids)


@pytest.mark.parametrize("bad", [-1, V, V + 1, 2**31 - 1])
def test_unknown_ids_outside_are_nan(table_for, bad):
    """Under jit ids cannot be checked: the rows of bad ones are NaN, and so is a loss computed from them."""
    ids = jnp.array([3, bad], jnp.int32)
    actual = jax.jit(lambda ids: embedding.lookup(table_for(ids), ids))(ids)
    np.testing.assert_array_equal(actual, [TABLE[3], np.full(D, np.nan)])


@pytest.mark.parametrize("ids", [[3, 9], []])
def test_ids_that_were_not_taken_are_nan(ids):
    taken = embedding.take_rows(jnp.asarray(TABLE), jnp.array(ids, jnp.int32))
    expected = [TABLE[i] if i in ids else np.full(D, np.nan) for i in (9, 4)]
    np.testing.assert_array_equal(embedding.lookup(taken, jnp.array([9, 4])), expected)


@pytest.mark.parametrize(
    "size", [optax.tree.norm, lambda p: sum(jnp.sum(w**2) for w in jax.tree.leaves(p) if w.ndim > 1)]
)
def test_a_penalty_on_all_parameters_is_nan(size):
    """It would add up ids, and only the rows that were taken."""
    loss = lambda params, ids: embedding.lookup(params["t"], ids).sum() + size(params)
    value, _ = embedding.value_and_grad(loss, lambda ids: {"t": ids})({"t": jnp.asarray(TABLE)}, jnp.array([3, 1]))
    assert np.isnan(value)


# --- differentiation --------------------------------------------------------------------------------------------------


def tied_loss(params, ids, bags):
    """Two tables, one of them read twice, and a dense head."""
    words = embedding.lookup(params["words"], ids, padding_id=0) - 2 * embedding.lookup(params["words"], ids[::-1])
    tags = embedding.bag(params["tags"], bags, combiner="mean", padding_id=0)
    return jnp.sum((words @ params["head"]) ** 2) + jnp.sum(tags**2), words.shape[0]


def tied_lookups(ids, bags):
    return {"words": (ids, ids[::-1]), "tags": bags}


def tied_params():
    return {"words": jnp.asarray(TABLE), "tags": jnp.asarray(integers(9, 2)), "head": jnp.asarray(integers(D))}


@given(ids_in_range)
def test_gradients_are_those_of_the_dense_path(ids):
    bags = (ids % 9).reshape(4, 3)
    params = tied_params()
    (value, aux), gradients = SPARSE(params, ids, bags)
    (expected_value, _), expected = DENSE(params, ids, bags)
    assert aux == K
    np.testing.assert_array_equal(value, expected_value)
    for name in ("words", "tags"):
        assert_well_formed(gradients[name])
        np.testing.assert_allclose(gradients[name].to_dense(), expected[name], 1e-6)
    np.testing.assert_array_equal(gradients["head"], expected["head"])


@pytest.mark.parametrize("row", [(), (3,), (2, 3)])
def test_rows_of_any_shape(row):
    """Of a bias for each word, for example, and of matrices; four workers' bags are those of one dense table."""
    table, ids = jnp.asarray(integers(V, *row)), RNG.integers(0, V, (N, 4, 5)).astype(np.int32)
    ids[:, 0, 0], ids[:, 1] = -1, -1

    def loss(table, ids):
        means = embedding.bag(table, ids, combiner="mean", padding_id=-1)
        return jnp.sum(means**2) + jnp.sum(embedding.lookup(table, ids, padding_id=-1))

    step = embedding.value_and_grad(loss, lambda ids: {"(array)": ids}, padding_id=-1)
    sums = zen.synchronize("data", op="sum")
    run = jax.vmap(lambda ids: sums.update(step(table, ids)[1], None)[0].to_dense(), axis_name="data")
    expected = jax.grad(lambda table: sum(loss(table, of_worker) for of_worker in ids))(table)
    np.testing.assert_allclose(jax.jit(run)(ids)[0], expected, 1e-5, 1e-6)


def test_keyword_arguments_reach_the_loss_alone():
    def loss(params, ids, *, train):
        assert train is True
        return jnp.sum(embedding.lookup(params["table"], ids))

    step = embedding.value_and_grad(loss, lambda ids: {"table": ids})
    value, gradients = step({"table": jnp.asarray(TABLE)}, jnp.array([1, 2]), train=True)
    np.testing.assert_allclose(value, TABLE[1:3].sum(), 1e-6)
    assert gradients["table"].ids.tolist() == [1, 2]


SPARSE = jax.jit(embedding.value_and_grad(tied_loss, tied_lookups, has_aux=True, padding_id={"tags": 0}))
DENSE = jax.jit(jax.value_and_grad(tied_loss, has_aux=True))


def shapes(jaxpr):
    """The shape of everything that a jaxpr computes, inner jaxprs included."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.shape for variable in equation.outvars)
        for parameter in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: isinstance(x, ClosedJaxpr)):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from shapes(inner)


def test_nothing_but_the_table_is_as_large_as_the_table():
    """In lookup, backward pass, synchronisation and update, only the new table and state have V rows."""
    rows, optimizer = 100_003, embedding.lazy(optax.sgd(0.1, momentum=0.9))
    chain = optax.chain(zen.synchronize("data"), optimizer)
    gradient = embedding.value_and_grad(lambda p, i: jnp.sum(embedding.lookup(p, i) ** 2), lambda i: {"(array)": i})

    def step(params, state, ids):
        updates, state = chain.update(gradient(params, ids)[1], state, params)
        return optax.apply_updates(params, updates), state

    params = jax.ShapeDtypeStruct((rows, 2), jnp.float32)
    state = jax.eval_shape(chain.init, params)
    mapped = jax.vmap(step, axis_name="data", in_axes=(None, None, 0), out_axes=None)
    jaxpr = jax.make_jaxpr(mapped)(params, state, jax.ShapeDtypeStruct((N, K), jnp.int32))
    large = [shape for shape in shapes(jaxpr.jaxpr) if max(shape, default=0) >= rows // N]
    # The scatters into the table and into its trace.
    assert set(large) == {(rows, 2)}
    assert len(large) == 2


# --- whole models -----------------------------------------------------------------------------------------------------


class LinenModel(nn.Module):
    @nn.compact
    def __call__(self, ids):
        return nn.Dense(1)(jnp.tanh(embedding.linen.Embed(V, D, combiner="mean", padding_id=-1)(ids)))


class NnxModel(nnx.Module):
    def __init__(self, rngs):
        self.embed = embedding.nnx.Embed(V, D, rngs=rngs)
        self.out = nnx.Linear(D, 1, rngs=rngs)

    def __call__(self, ids):
        return self.out(jnp.tanh(self.embed(ids)))


def linen_model():
    model = LinenModel()
    params = model.init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))
    return model.apply, params, "params/Embed_0/embedding"


def nnx_model():
    graph, params = nnx.split(NnxModel(nnx.Rngs(0)), nnx.Param)
    return lambda params, ids: nnx.merge(graph, params)(ids), params, "embed/embedding"


def test_linen_table_with_partitioning():
    """Its parameter is boxed, as `nn.with_partitioning` requires; its rows are not sharded as the table is."""
    init = nn.with_partitioning(nn.initializers.ones_init(), ("vocabulary", None))
    model, ids = zen_jax.embedding.linen.Embed(V + 1, D, embedding_init=init), jnp.array([1, 2, 1])
    params = model.init(jax.random.key(0), ids)
    np.testing.assert_array_equal(model.apply(params, ids), np.ones((3, D)))
    loss = lambda params, ids: jnp.sum(model.apply(params, ids) ** 2)
    step = jax.jit(embedding.value_and_grad(loss, lambda ids: {"params/embedding": ids}))
    with jax.set_mesh(harness.mesh(2, "vocabulary")):
        _, gradients = step(params, ids)
    np.testing.assert_array_equal(gradients["params"]["embedding"].value.rows, [[4] * D, [2] * D, [0] * D])


@pytest.mark.parametrize("model", [linen_model, nnx_model])
def test_models_train_as_with_dense_gradients(model):
    """Four workers, duplicates in every batch: after some steps the parameters are those of pmean."""
    apply, params, table = model()
    ids = RNG.integers(0, V, (5, N, 3, 4)).astype(np.int32)
    loss = lambda params, ids: jnp.mean((apply(params, ids) - 1.0) ** 2)

    def train(optimizer, value_and_grad):
        def worker(params, state, ids):
            value, gradients = value_and_grad(params, ids)
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state, jax.lax.pmean(value, "data")

        step = jax.jit(jax.vmap(worker, axis_name="data", in_axes=(None, None, 0), out_axes=None))
        state, trained, losses = optimizer.init(params), params, []
        for batch in ids:
            trained, state, value = step(trained, state, batch)
            losses.append(float(value))
        return trained, losses

    pmean = optax.stateless(lambda updates, _: jax.lax.pmean(updates, "data"))
    ours, losses = train(
        optax.chain(zen.synchronize("data"), embedding.lazy(optax.adagrad(0.3))),
        embedding.value_and_grad(loss, lambda ids: {table: ids}, padding_id=-1),
    )
    theirs, expected_losses = train(optax.chain(pmean, optax.adagrad(0.3)), jax.value_and_grad(loss))
    np.testing.assert_allclose(losses, expected_losses, 1e-5)
    assert losses[-1] < losses[0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-6), ours, theirs)
