"""`lazy` and `densify`: optax optimizers on row-sparse gradients, against NumPy and against dense gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import assert_same_bits
from lookups import RNG, TABLE, D, K, V, assert_well_formed, dense_sum, integers, merged

import zen_jax as zen
from zen_jax import embedding

pytestmark = pytest.mark.promoting  # optax's and Flax's own arithmetic relies on promotion


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


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_lazy_updates_touched_rows(name):
    """The result is NumPy's. Untouched rows keep their bits; a leaf with an array gradient is updated as by optax."""
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
    """If every step touches every row, and always under sgd and adagrad. Exactly so for sgd on integers."""
    steps = list(batches(every_row))
    actual, _ = run_steps(embedding.lazy(OPTIMIZERS[name]), jnp.asarray(TABLE), [merged(*step) for step in steps])
    dense = [jnp.asarray(dense_sum(*step), jnp.float32) for step in steps]
    expected, _ = run_steps(OPTIMIZERS[name], jnp.asarray(TABLE), dense)
    np.testing.assert_allclose(actual, expected, *((0, 0) if name == "sgd" else (1e-5, 1e-6)))


def test_lazy_around_masks():
    """The state of a leaf that an optimizer leaves alone stays as it is."""
    params = {"table": jnp.asarray(TABLE), "bias": jnp.ones(3)}
    gradients = [{"table": merged(ids, rows), "bias": jnp.full(3, 2.0)} for ids, rows in batches()]
    parts = {"sparse": optax.adam(0.1), "rest": optax.sgd(0.1, momentum=0.9)}
    labels = {"table": "sparse", "bias": "rest"}
    inside = {"sparse": embedding.lazy(parts["sparse"]), "rest": parts["rest"]}
    around, _ = run_steps(embedding.lazy(optax.partition(parts, labels)), params, gradients)
    expected, _ = run_steps(optax.partition(inside, labels), params, gradients)
    jax.tree.map(assert_same_bits, around, expected)


@pytest.mark.parametrize("poisoned", ["table", "head"])
def test_state_of_one_number_a_leaf(poisoned):
    """It is not cut to rows: the touched rows give the same state as the whole table."""
    inner = optax.chain(optax.zero_nans(), optax.sgd(0.25))
    rows = {name: integers(3, D) for name in ("table", "head")}
    rows[poisoned][1, 1] = np.nan
    params = {name: jnp.asarray(TABLE) for name in rows}
    gradients = {name: merged(np.array([1, 5, 8]), rows[name]) for name in rows}
    actual, (found, _) = run_steps(embedding.lazy(inner), params, [gradients])
    expected, _ = run_steps(inner, params, [{name: gradients[name].to_dense() for name in rows}])
    jax.tree.map(assert_same_bits, actual, expected)
    assert {name: bool(value) for name, value in found.found_nan.items()} == {name: name == poisoned for name in rows}


def test_gradients_of_another_table_are_refused():
    """Also by an optimizer without state."""
    optimizer, table = embedding.lazy(optax.sgd(0.1)), jnp.asarray(TABLE[1:])
    gradient = merged(np.arange(3), integers(3, D))
    with pytest.raises(ValueError, match=r"table of shape \(23, 3\), but the table has shape \(22, 3\)"):
        optimizer.update(gradient, optimizer.init(table), table)


@pytest.mark.parametrize(
    "inner",
    [optax.MultiSteps(optax.sgd(0.1), 2).gradient_transformation(), optax.apply_every(2)],
    ids=["multi", "every"],
)
def test_transformations_of_several_steps_are_refused(inner):
    with pytest.raises(ValueError, match=r"wraps optax\.MultiSteps or apply_every"):
        embedding.lazy(optax.chain(optax.clip(1.0), inner)).init(jnp.asarray(TABLE))


@pytest.mark.parametrize("table", [TABLE, {"table": TABLE, "bias": np.ones(3, np.float32)}], ids=["alone", "tree"])
def test_synchronize_inside_is_refused(table):
    """Every worker has its own rows there, which would be added up by position."""
    inside = embedding.lazy(optax.chain(zen.synchronize("data"), optax.sgd(0.1)))
    with pytest.raises(ValueError, match=r"wraps zen_jax\.synchronize.*Put it before lazy"):
        inside.init(jax.tree.map(jnp.asarray, table))


def test_state_of_another_shape_is_refused():
    table = jnp.ones((256, 128))
    optimizer = embedding.lazy(optax.adafactor(0.1))
    gradient = zen.RowSparseGradient.from_lookups(jnp.arange(3), jnp.ones((3, 128)), num_rows=256)
    with pytest.raises(ValueError, match=r"state for a table of shape \(256, 128\) has shape \(128,\).*Use densify"):
        optimizer.update(gradient, optimizer.init(table), table)


def test_state_of_whole_tables_is_refused():
    params, optimizer = {"table": jnp.asarray(TABLE)}, embedding.lazy(optax.sm3(0.1))
    gradient = {"table": zen.RowSparseGradient.from_lookups(jnp.array([3]), jnp.ones((1, D)), V)}
    with pytest.raises(ValueError, match=r"whole tables, such as optax\.sm3\..*use densify"):
        optimizer.update(gradient, optimizer.init(params), params)


def test_state_of_other_parameters_is_refused():
    optimizer, params = embedding.lazy(optax.adam(0.1)), {"table": jnp.asarray(TABLE)}
    gradient = {"table": zen.RowSparseGradient.from_lookups(jnp.array([3]), jnp.ones((1, D)), V)}
    for other, message in (
        ({"table": jnp.ones((V + 1, D))}, f"table of {V + 1} rows, but the gradient is for {V}"),
        ({"chair": jnp.ones((V, D))}, "state is not that of what lazy wraps"),
    ):
        with pytest.raises(ValueError, match=message):
            optimizer.update(gradient, optimizer.init(other), params)


def test_gradients_that_a_scan_has_stacked_merge():
    """Accumulation: the sum of several batches, each row once."""
    ids = RNG.integers(0, V, (3, K)).astype(np.int32)
    rows = integers(3, K, D)
    _, stacked = jax.lax.scan(lambda _, batch: (None, merged(*batch)), None, (jnp.asarray(ids), jnp.asarray(rows)))
    total = zen.RowSparseGradient.from_lookups(stacked.ids, stacked.rows, stacked.num_rows)
    assert_well_formed(total)
    np.testing.assert_array_equal(total.to_dense(), sum(map(dense_sum, ids, rows)))


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
