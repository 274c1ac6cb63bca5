"""Sparse embedding gradients: lookups, merging, lazy optimizers and synchronisation give what dense gradients give."""

import flax.linen as nn
import harness
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import oracle
import pytest
from cases import assert_same_bits
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from jax.extend.core import ClosedJaxpr

import zen_jax as zen
import zen_jax.embedding.linen
import zen_jax.embedding.nnx
from zen_jax import embedding

pytestmark = pytest.mark.promoting  # optax's and Flax's own arithmetic relies on promotion

N, V, D, K = 4, 23, 3, 12
RNG = np.random.default_rng(0)
TABLE = RNG.integers(-8, 9, (V, D)).astype(np.float32)
ids_in_range = st.lists(st.integers(0, V - 1), min_size=K, max_size=K).map(lambda ids: np.array(ids, np.int32))
any_ids = st.lists(st.integers(-3, V + 3), min_size=K, max_size=K).map(lambda ids: np.array(ids, np.int32))


def integers(*shape):
    return RNG.integers(-8, 9, shape).astype(np.float32)


def dense_sum(ids, rows, num_rows=V):
    """NumPy's [V, D] of lookups' gradients; ids outside are left out."""
    total = np.zeros((num_rows, *rows.shape[1:]), np.float64)
    inside = (ids >= 0) & (ids < num_rows)
    np.add.at(total, ids[inside], rows[inside].astype(np.float64))
    return total


def assert_well_formed(gradient):
    """Ids ascend, each once; what is unused is V and zero."""
    ids, rows = np.asarray(gradient.ids), np.asarray(gradient.rows)
    used = ids < gradient.num_rows
    assert (np.diff(ids[used]) > 0).all()
    assert (ids[np.count_nonzero(used) :] == gradient.num_rows).all()
    assert (rows[~used] == 0).all()


# --- the gradient itself ----------------------------------------------------------------------------------------


MERGE = jax.jit(lambda ids, rows: zen.RowSparseGradient.from_lookups(ids, rows, V))


@given(any_ids)
def test_merging_sums_equal_ids(ids):
    rows = np.arange(K * D, dtype=np.float32).reshape(K, D)
    gradient = MERGE(ids, rows)
    assert_well_formed(gradient)
    np.testing.assert_array_equal(gradient.ids[gradient.ids < V], np.unique(ids[(ids >= 0) & (ids < V)]))
    np.testing.assert_array_equal(gradient.to_dense(), dense_sum(ids, rows))


def test_merging_16_bit_rounds_once():
    rows = np.full((300, 1), 1.0, ml_dtypes.bfloat16)
    gradient = zen.RowSparseGradient.from_lookups(jnp.full(300, 4, jnp.int32), jnp.asarray(rows), V)
    assert gradient.rows.dtype == jnp.bfloat16
    assert float(gradient.rows[0, 0]) == 300  # step by step in bfloat16 it would stay at 256


def test_adding_and_taking():
    gradient = zen.RowSparseGradient.from_lookups(jnp.array([5, 2, 5, 40]), jnp.asarray(integers(4, D)), V)
    np.testing.assert_array_equal(jnp.asarray(TABLE) + gradient, TABLE + np.asarray(gradient.to_dense()))
    np.testing.assert_array_equal(gradient.take(jnp.asarray(TABLE))[:3], [TABLE[2], TABLE[5], np.zeros(D)])
    assert (gradient.shape, gradient.size, gradient.dtype) == ((V, D), V * D, jnp.float32)
    with pytest.raises(ValueError, match=r"table of shape \(23, 3\), but the table has \(22, 3\)"):
        jnp.asarray(TABLE[1:]) + gradient
    with pytest.raises(ValueError, match=r"ids of float32.*zen_jax\.embedding\.lazy"):
        optax.tree.scale(0.5, gradient).take(jnp.asarray(TABLE))


# --- lookups ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["table", "taken rows"])
def table_for(request):
    """From ids to what they are looked up in: the table itself, or the rows of it that they name."""
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


BAD = {
    "too large": (lambda t: embedding.lookup(t, np.array([[1], [V]])), r"ids hold 23 at \[1, 0\].*rows 0 to 22"),
    "negative": (lambda t: embedding.lookup(t, np.array([-1])), r"ids hold -1 at \[0\]"),
    "padding of another id": (lambda t: embedding.bag(t, np.array([-1, -2]), padding_id=-1), "ids hold -2"),
    "taken": (lambda t: embedding.take_rows(t, [np.array([1]), np.array([99])]), "ids hold 99"),
    "floats": (lambda t: embedding.lookup(t, np.array([1.0])), "dtype float.*must be integers"),
    "combiner": (lambda t: embedding.bag(t, np.array([1]), combiner="max"), "combiner='max' is unknown"),
    "no bag": (lambda t: embedding.bag(t, np.int32(1)), "must have a last axis"),
    "name": (
        lambda t: embedding.value_and_grad(lambda p: 0.0, lambda: {"tabel": np.array([1])})({"table": t}),
        "lookups name tabel, but params have table",
    ),
}


@pytest.mark.parametrize("call, message", BAD.values(), ids=BAD.keys())
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(jnp.asarray(TABLE))


@pytest.mark.parametrize("bad", [-1, V, V + 1, 2**31 - 1])
def test_unknown_ids_outside_are_nan(table_for, bad):
    """Under jit nobody can look at the ids: their rows are NaN, and so is a loss of them."""
    ids = jnp.array([3, bad], jnp.int32)
    actual = jax.jit(lambda ids: embedding.lookup(table_for(ids), ids))(ids)
    np.testing.assert_array_equal(actual, [TABLE[3], np.full(D, np.nan)])


def test_ids_that_were_not_taken_are_nan():
    taken = embedding.take_rows(jnp.asarray(TABLE), jnp.array([3, 9]))
    np.testing.assert_array_equal(embedding.lookup(taken, jnp.array([9, 4])), [TABLE[9], np.full(D, np.nan)])


# --- differentiation --------------------------------------------------------------------------------------------


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
    """Of lookup, backward, synchronisation and update only the new table and state have V rows."""
    rows, optimizer = 100_003, embedding.lazy(optax.sgd(0.1, momentum=0.9))
    chain = optax.chain(zen.synchronize("data"), optimizer)
    gradient = embedding.value_and_grad(lambda p, i: jnp.sum(embedding.lookup(p, i) ** 2), lambda i: {"": i})

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


# --- optimizers -------------------------------------------------------------------------------------------------

STEPS = 5
OPTIMIZERS = {
    "sgd": optax.sgd(0.25),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "adagrad": optax.adagrad(0.1),
    "adam": optax.adam(0.1),
    "adamw": optax.adamw(0.1, weight_decay=0.03),
    "schedule": optax.sgd(optax.linear_schedule(0.2, 0.1, STEPS)),
}


class LazyOracle:
    """Each optimizer's rule on touched rows, in float64."""

    def __init__(self, name, table):
        self.name, self.table, self.step = name, table.astype(np.float64), 0
        self.first, self.second = np.zeros_like(self.table), np.zeros_like(self.table)

    def update(self, touched, gradient):
        self.step += 1
        g, p, t = gradient[touched], self.table[touched], self.step
        m, v = self.first[touched], self.second[touched]
        if self.name in ("sgd", "schedule"):
            rate = 0.25 if self.name == "sgd" else 0.2 - 0.1 * (t - 1) / STEPS
            p = p - rate * g
        elif self.name == "momentum":
            m = g + 0.9 * m
            p = p - 0.1 * m
        elif self.name == "adagrad":
            v = v + g**2
            p = p - 0.1 * g / np.sqrt(0.1 + v + 1e-7)
        else:
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            direction = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
            p = p - 0.1 * (direction + (0.03 * p if self.name == "adamw" else 0))
        self.table[touched], self.first[touched], self.second[touched] = p, m, v


def run_steps(optimizer, params, gradients):
    @jax.jit
    def step(params, state, gradient):
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for gradient in gradients:
        params, state = step(params, state, gradient)
    return params, state


def batches(every_row=False):
    for step in range(STEPS):
        ids = np.random.default_rng(step).integers(0, V, K).astype(np.int32)
        yield (np.arange(V, dtype=np.int32), integers(V, D)) if every_row else (ids, integers(K, D))


def merged(ids, rows):
    return zen.RowSparseGradient.from_lookups(jnp.asarray(ids), jnp.asarray(rows), V)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_lazy_updates_touched_rows(name):
    """NumPy's result. Untouched rows keep their bits; a leaf with an array gradient is updated as by optax."""
    steps, head = list(batches()), [jnp.asarray(integers(D)) for _ in range(STEPS)]
    params = {"table": jnp.asarray(TABLE), "head": jnp.ones(D), "none": None}
    gradients = [
        {"table": merged(*step), "head": of_head, "none": None} for step, of_head in zip(steps, head, strict=True)
    ]
    actual, state = run_steps(embedding.lazy(OPTIMIZERS[name]), params, gradients)
    reference = LazyOracle(name, TABLE)
    for ids, rows in steps:
        reference.update(np.unique(ids), dense_sum(ids, rows))
    np.testing.assert_allclose(actual["table"], reference.table, 2e-5, 1e-6)
    untouched = np.setdiff1d(np.arange(V), np.concatenate([ids for ids, _ in steps]))
    assert untouched.size
    assert_same_bits(np.asarray(actual["table"])[untouched], TABLE[untouched])
    expected_head, _ = run_steps(OPTIMIZERS[name], params["head"], head)
    np.testing.assert_allclose(actual["head"], expected_head, 1e-6)
    assert jax.tree.structure(state) == jax.tree.structure(OPTIMIZERS[name].init(params))


@pytest.mark.parametrize(
    "name, every_row", [(name, True) for name in OPTIMIZERS] + [("sgd", False), ("adagrad", False)]
)
def test_lazy_equals_dense(name, every_row):
    """Where every step touches every row, and under sgd and adagrad always. Exactly so for sgd on integers."""
    steps = list(batches(every_row))
    actual, _ = run_steps(embedding.lazy(OPTIMIZERS[name]), jnp.asarray(TABLE), [merged(*step) for step in steps])
    dense = [jnp.asarray(dense_sum(*step), jnp.float32) for step in steps]
    expected, _ = run_steps(OPTIMIZERS[name], jnp.asarray(TABLE), dense)
    np.testing.assert_allclose(actual, expected, *((0, 0) if name == "sgd" else (1e-5, 1e-6)))


def test_densify_equals_dense():
    steps = list(batches())
    optimizer = optax.chain(embedding.densify(), OPTIMIZERS["adamw"])
    actual, _ = run_steps(optimizer, jnp.asarray(TABLE), [merged(*step) for step in steps])
    dense = [jnp.asarray(dense_sum(*step), jnp.float32) for step in steps]
    expected, _ = run_steps(OPTIMIZERS["adamw"], jnp.asarray(TABLE), dense)
    np.testing.assert_array_equal(actual, expected)


def test_clipping_by_global_norm():
    """A norm over the whole tree is that of the dense gradients: equal ids are merged and unused rows are zero."""
    steps = list(batches())
    clipped = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.5))
    actual, _ = run_steps(embedding.lazy(clipped), jnp.asarray(TABLE), [merged(*step) for step in steps])
    expected, _ = run_steps(clipped, jnp.asarray(TABLE), [jnp.asarray(dense_sum(*s), jnp.float32) for s in steps])
    np.testing.assert_allclose(actual, expected, 1e-6, 1e-6)


# --- synchronisation --------------------------------------------------------------------------------------------


def reduce_stack(ids, rows, num_rows, mode="vmap", **options):
    """Synchronises n workers' merged lookups [n, K], [n, K, D]: (gradient, info), both stacked."""
    transform = zen.synchronize(harness.AXIS, **options)

    def worker(lookups):
        gradient = zen.RowSparseGradient.from_lookups(*lookups, num_rows)
        updates, state = transform.update({"table": gradient}, None)
        return updates["table"], state.info

    return harness.spmd(worker, mode, ids.shape[0])((ids, rows))


def assert_reduced(gradient, ids, rows, num_rows, divisor=1):
    n, entries = ids.shape
    for worker in range(n):
        for mine, first in zip(jax.tree.leaves(gradient), jax.tree.leaves(gradient), strict=True):
            assert_same_bits(mine[worker], first[0])
    one = jax.tree.map(lambda x: x[0], gradient)
    assert_well_formed(one)
    assert one.ids.size == min(n * entries, num_rows)
    np.testing.assert_array_equal(one.ids[one.ids < num_rows], np.unique(ids[(ids >= 0) & (ids < num_rows)]))
    expected = dense_sum(ids.reshape(-1), rows.reshape(-1, *rows.shape[2:]), num_rows)
    np.testing.assert_array_equal(np.asarray(one.to_dense(), np.float64), expected / divisor)


@pytest.mark.parametrize("mode", harness.MODES)
def test_synchronize_sums_rows(mode):
    ids = RNG.integers(0, V, (N, K)).astype(np.int32)
    rows = integers(N, K, D)
    gradient, info = reduce_stack(ids, rows, V, mode, op="sum")
    assert_reduced(gradient, ids, rows, V)
    fused = jax.tree.map(lambda field: float(field[0]), info["(fused)"])
    distinct = [len(np.unique(of_worker)) for of_worker in ids]
    np.testing.assert_allclose(fused.density, np.mean(distinct) / V, 1e-6)
    np.testing.assert_allclose(fused.density_reduced, len(np.unique(ids)) / V, 1e-6)
    assert fused.bytes_dense == 2 * (N - 1) / N * V * D * 4


WIDE = 2000  # columns: two rows fill the smallest message
NUM_ROWS = {"more than are touched": 1000, "fewer than could be touched": 9, "fewer than workers": 3}


@pytest.mark.parametrize("num_rows", NUM_ROWS.values(), ids=NUM_ROWS.keys())
def test_synchronize_every_size_of_message(num_rows):
    """Lossless from no rows at all to all of them on one server, through every rung of the ladder."""
    of_one_server = np.flatnonzero(oracle.server_of(np.arange(num_rows), N) == 1)
    stacks = {
        "spread": RNG.integers(0, num_rows, (N, K)),
        "nothing": np.full((N, K), -1),
        "one worker alone": np.where(np.arange(N)[:, None] == 2, RNG.integers(0, num_rows, (N, K)), -1),
        "all on one server": np.resize(of_one_server, (N, K)),
        "the same everywhere": np.resize(np.arange(num_rows), (N, K)),
        "no two workers share": np.resize(np.arange(min(num_rows, N * K)), (N, K)),
    }
    worker = lambda lookups: zen.synchronize(harness.AXIS, dense_below=0).update(  # noqa: E731
        zen.RowSparseGradient.from_lookups(*lookups, num_rows), None
    )
    run = harness.spmd(worker, "vmap", N)
    for name, ids in stacks.items():
        ids, rows = ids.astype(np.int32), integers(N, K, WIDE)
        gradient, state = run((ids, rows))
        assert_reduced(gradient, ids, rows, num_rows, divisor=N)
        info = jax.tree.map(lambda field: float(field[0]), state.info[""])
        assert name != "nothing" or info.density_reduced == 0
        assert name != "all on one server" or info.imbalance_push == N


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_synchronize_16_bit(dtype):
    """Summed in float32 in worker order and rounded once, as a dense gradient is."""
    ids = np.tile(np.arange(K, dtype=np.int32), (N, 1))
    rows = RNG.normal(size=(N, K, D)).astype(dtype)
    gradient, _ = reduce_stack(ids, rows, V)
    assert_same_bits(np.asarray(gradient.rows)[0, :K], oracle.ordered_sum(rows, N))


def test_one_worker_and_no_lookups():
    ids, rows = np.array([[4, 2, 4]], np.int32), integers(1, 3, D)
    assert_reduced(reduce_stack(ids, rows, V)[0], ids, rows, V)
    nothing = np.zeros((N, 0), np.int32), np.zeros((N, 0, D), np.float32)
    assert_reduced(reduce_stack(*nothing, V)[0], *nothing, V)


def test_state_keeps_its_structure():
    """From init, which sees tables, over updates, which see rows; with a plan as well."""
    params = {"large": jnp.zeros((3000, 100)), "small": jnp.zeros((V, D)), "bias": jnp.zeros(3)}
    ids, rows = jnp.arange(N, dtype=jnp.int32)[:, None], jnp.ones((N, 1, 100))
    plan = zen.plan(zen.profile(jax.tree.map(lambda p: jnp.ones((N, *p.shape)), params)), zen.Cluster(N))
    for transform in (zen.synchronize("data", plan=how) for how in (None, plan, zen.Profiler())):
        state = transform.init(params)

        def worker(ids, rows, transform=transform, state=state):
            large = zen.RowSparseGradient.from_lookups(ids, rows, 3000)
            small = zen.RowSparseGradient.from_lookups(ids, rows[:, :D], V)
            return transform.update({"large": large, "small": small, "bias": jnp.ones(3)}, state)

        updates, after = jax.vmap(worker, axis_name="data")(ids, rows)
        assert jax.tree.structure(after) == jax.tree.structure(state)
        assert updates["small"].rows.shape == (N, N, D)
        np.testing.assert_array_equal(updates["bias"], np.ones((N, 3)))


def test_synchronize_refuses_changed_ids():
    chain = optax.chain(optax.scale(0.5), zen.synchronize("data"))
    with pytest.raises(ValueError, match=r"ids of float32.*zen_jax\.embedding\.lazy"):
        jax.vmap(lambda ids: chain.update(merged(ids, jnp.ones((1, D))), chain.init(()))[0], axis_name="data")(
            jnp.zeros((N, 1), jnp.int32)
        )


# --- whole models -----------------------------------------------------------------------------------------------


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
    return lambda params, ids: nnx.merge(graph, params)(ids), params, "embed/embedding/value"


@pytest.mark.parametrize("model", [linen_model, nnx_model])
def test_models_train_as_with_dense_gradients(model):
    """Four workers, duplicates in every batch: after some steps the parameters are those of pmean."""
    apply, params, table = model()
    ids = RNG.integers(0, V, (STEPS, N, 3, 4)).astype(np.int32)
    loss = lambda params, ids: jnp.mean((apply(params, ids) - 1.0) ** 2)  # noqa: E731

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
