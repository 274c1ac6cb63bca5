"""Sparsifiers: nothing is lost, as many elements are sent as asked for, and models train as with dense gradients."""

import functools
import io
import math
import re
import warnings

import harness
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import FLOATS, assert_same_bits, normal

import zen_jax as zen

SPARSIFIERS = {
    "dgc": zen.dgc(0.1),
    "top_k": zen.top_k(0.1),
    "random_k": zen.random_k(0.1),
    "threshold": zen.threshold(1.5),
}
every_sparsifier = pytest.mark.parametrize("name", SPARSIFIERS)

pytestmark = pytest.mark.promoting  # optax's own arithmetic relies on promotion


@functools.cache
def update(name):
    return jax.jit(SPARSIFIERS[name].update)


def incoming(gradient, state):
    """What the update must split, in the same float arithmetic: last residual + gradient (or velocity)."""
    kind = state.residual.dtype.type
    gradient = np.asarray(gradient).astype(kind)
    if isinstance(state, zen.DgcState):
        gradient = np.asarray(jax.jit(lambda u, g: kind(0.9) * u + g)(state.velocity, gradient))
    with np.errstate(invalid="ignore"):
        return gradient + np.asarray(state.residual)


# --- nothing is lost --------------------------------------------------------------------------------------------------


@every_sparsifier
@pytest.mark.parametrize("kind", FLOATS)
def test_sent_and_residual_are_what_came_in(name, kind):
    """To the bit, over several steps, for every dtype."""
    with jax.enable_x64(kind == "float64"):
        state = SPARSIFIERS[name].init(jnp.zeros((40, 9), FLOATS[kind]))
        assert state.residual.dtype == (np.float64 if kind == "float64" else np.float32)
        for step in range(4):
            gradient = jnp.asarray(normal((40, 9), step, FLOATS[kind]))
            total = incoming(gradient, state)
            sent, state = update(name)(gradient, state)
            assert sent.dtype == gradient.dtype
            assert 0 < np.count_nonzero(sent) < sent.size
            assert_same_bits(np.asarray(sent).astype(total.dtype) + np.asarray(state.residual), total)


VALUES = st.one_of(
    st.floats(width=32, allow_subnormal=False, min_value=-(2.0**60), max_value=2.0**60),
    st.sampled_from([0.0, -0.0, 1.0, -1.0]),
)


@every_sparsifier
@hypothesis.given(st.lists(VALUES, min_size=60, max_size=60), st.lists(VALUES, min_size=60, max_size=60))
def test_nothing_is_lost_whatever_comes(name, first, second):
    """Ties, zeros and any magnitudes: every element is either sent or kept, unchanged."""
    state = SPARSIFIERS[name].init(jnp.zeros((6, 10)))
    for values in (first, second):
        gradient = np.array(values, np.float32).reshape(6, 10)
        total = incoming(gradient, state)
        sent, state = update(name)(gradient, state)
        sent, residual = np.asarray(sent), np.asarray(state.residual)
        assert ((sent == 0) | (residual == 0)).all()
        np.testing.assert_array_equal(np.where(sent != 0, sent, residual), total)


@every_sparsifier
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_sent_at_once(name, poison):
    """It appears in the update of its step, and no state remembers it."""
    state = SPARSIFIERS[name].init(jnp.zeros((40, 9)))
    gradient = normal((40, 9))
    poisoned = gradient.copy()
    poisoned[::3] = poison
    sent, state = update(name)(poisoned, state)
    np.testing.assert_array_equal(np.asarray(sent)[::3], poisoned[::3])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
    sent, _ = update(name)(gradient, state)
    assert np.isfinite(sent).all()


@every_sparsifier
def test_float16_overflow_stays_in_the_residual(name):
    """A value too large to be sent in 16 bits is sent in as many steps as it takes."""
    state = SPARSIFIERS[name].init(jnp.zeros((2, 1), jnp.float16))
    state = state._replace(residual=jnp.full((2, 1), 1e5, jnp.float32))
    if name == "random_k":
        state = state._replace(residual=jnp.full((2, 1), 1e5, jnp.float32).at[1].set(0))
    sent, new = update(name)(jnp.zeros((2, 1), jnp.float16), state)
    assert np.isfinite(sent).all()
    assert np.isfinite(new.residual).all()
    np.testing.assert_array_equal(np.asarray(sent, np.float32) + np.asarray(new.residual), state.residual)


@every_sparsifier
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (1, 1), (127,), (129, 1), (5, 3, 2)])
def test_shapes(name, shape):
    gradient = 4 * np.ones(shape, np.float32)
    state = SPARSIFIERS[name].init(jnp.zeros(shape))
    sent, state = SPARSIFIERS[name].update(gradient, state)
    assert sent.shape == shape
    np.testing.assert_array_equal(np.asarray(sent) + np.asarray(state.residual), gradient)
    assert not gradient.size or np.count_nonzero(sent)


@pytest.mark.parametrize("sparsifier", [*SPARSIFIERS.values(), zen.dgc(zen.warmup_density(0.1, steps=5))])
def test_a_leaf_of_more_elements_than_can_be_counted(sparsifier):
    gradient = jax.ShapeDtypeStruct((2, 2**30), jnp.float32)
    state = jax.eval_shape(sparsifier.init, gradient)
    with pytest.raises(ValueError, match=f"{2**31} elements"):
        jax.eval_shape(sparsifier.update, gradient, state)


@every_sparsifier
def test_zeros_send_zeros(name):
    sent, state = update(name)(jnp.zeros((40, 9)), SPARSIFIERS[name].init(jnp.zeros((40, 9))))
    assert not np.any(sent)
    assert not np.any(state.residual)


@every_sparsifier
def test_trees_with_none_and_masked_nodes(name):
    params = {"a": jnp.zeros((4, 5)), "b": None, "c": (optax.MaskedNode(), jnp.zeros(3)), "d": {}}
    gradients = {"a": jnp.ones((4, 5)), "b": None, "c": (optax.MaskedNode(), jnp.ones(3)), "d": {}}
    sent, state = SPARSIFIERS[name].update(gradients, SPARSIFIERS[name].init(params))
    assert jax.tree.structure(sent) == jax.tree.structure(gradients)
    assert jax.tree.structure(state) == jax.tree.structure(SPARSIFIERS[name].init(params))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
    empty, _ = SPARSIFIERS[name].update({}, SPARSIFIERS[name].init({}))
    assert empty == {}


@every_sparsifier
def test_numbers_are_leaves(name):
    sparsifier = SPARSIFIERS[name]
    sent, _ = sparsifier.update({"scale": 2.0}, sparsifier.init({"scale": 1.0}))
    assert sent["scale"] == 2.0


@every_sparsifier
def test_state_survives_a_checkpoint(name):
    """Saved and loaded as plain NumPy arrays, it continues with the same bits."""
    state = SPARSIFIERS[name].init(jnp.zeros((40, 9)))
    for step in range(2):
        _, state = update(name)(normal((40, 9), step), state)
    leaves, treedef = jax.tree.flatten(state)
    file = io.BytesIO()
    np.savez(file, *leaves)
    file.seek(0)
    loaded = treedef.unflatten([jnp.asarray(leaf) for leaf in np.load(file).values()])
    for actual, expected in zip(
        jax.tree.leaves(update(name)(normal((40, 9), 2), loaded)),
        jax.tree.leaves(update(name)(normal((40, 9), 2), state)),
        strict=True,
    ):
        assert_same_bits(actual, expected)


# --- how many are sent, and which -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("density", "k"),
    [
        *((kind(0.07), 21) for kind in (float, np.float64, np.float32, np.float16)),
        *((0.001, 1), (0.5, 150), (1, 300), (1.0, 300)),
    ],
)
def test_k_is_the_density_as_written(density, k):
    x = 1 + np.abs(normal(300))
    for sparsifier in (zen.top_k(density), zen.random_k(density)):
        sent, _ = sparsifier.update(x, sparsifier.init(jnp.zeros(300)))
        assert np.count_nonzero(sent) == k


def test_random_k_chooses_alike_on_every_worker_and_anew_each_step():
    sparsifier = zen.random_k(0.05, seed=7)
    worker = lambda gradient: sparsifier.update(gradient, sparsifier.init(jnp.zeros((40, 50))))[0]
    sent = np.asarray(harness.spmd(worker, "vmap", 4)(1 + np.abs(normal((4, 40, 50)))))
    assert ((sent != 0) == (sent != 0)[0]).all()
    state, seen, step = sparsifier.init(jnp.zeros((40, 50))), np.zeros((40, 50)), jax.jit(sparsifier.update)
    for _ in range(60):
        sent, state = step(jnp.ones((40, 50)), state)
        seen += np.asarray(sent) != 0
    assert seen.sum() == 60 * 100
    # Sixty draws at 5 % are 3 on average; no element is left out or favoured beyond chance.
    assert abs(seen.std() - math.sqrt(60 * 0.05 * 0.95)) < 0.2
    twice = {"a": jnp.ones((40, 50)), "b": jnp.ones((40, 50))}
    of_leaves, _ = sparsifier.update(twice, sparsifier.init(twice))
    assert ((of_leaves["a"] != 0) != (of_leaves["b"] != 0)).any()
    other = zen.random_k(0.05, seed=8)
    assert np.any(
        np.asarray(other.update(jnp.ones((40, 50)), other.init(jnp.zeros((40, 50))))[0]) != worker(jnp.ones((40, 50)))
    )


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "mode"), [*((name, "vmap") for name in SPARSIFIERS), ("dgc", "shard_map_unchecked")])
def test_chain_with_synchronize_sends_the_mean_of_what_was_sent(name, mode):
    gradients = normal((4, 40, 9))
    synchronize = zen.synchronize(harness.AXIS, unit="element", dense_below=0)
    chain = optax.chain(SPARSIFIERS[name], synchronize, optax.sgd(1.0))
    worker = lambda g: chain.update(g, chain.init(jnp.zeros((40, 9))), jnp.zeros((40, 9)))[0]
    updates = np.asarray(harness.spmd(worker, mode, 4)(gradients))
    alone = [update(name)(g, SPARSIFIERS[name].init(jnp.zeros((40, 9))))[0] for g in gradients]
    assert (updates == updates[0]).all()
    np.testing.assert_allclose(updates[0], -np.mean(alone, axis=0), 1e-6, 1e-7)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("density", [0, -0.1, 1.5, math.nan, math.inf, "1%", None, True])
@pytest.mark.parametrize("factory", [zen.dgc, zen.top_k, zen.random_k, lambda d: zen.warmup_density(d, 5)])
def test_density_out_of_range(factory, density):
    with pytest.raises(ValueError, match=r"density=.* above 0 and at most 1"):
        factory(density)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: zen.threshold(0), "value=0 must be a finite number above 0"),
        (lambda: zen.threshold(math.nan), "value=nan"),
        (lambda: zen.random_k(0.1, seed=-1), "seed=-1"),
        (lambda: zen.dgc(momentum=1.0), "momentum=1.0"),
        (lambda: zen.dgc(momentum=jnp.float32(0.9)), "must be a Python number"),
        (lambda: zen.dgc(clip_norm=1.0), "pass axis_name"),
        (lambda: zen.dgc(op="max"), "op='max' is unknown"),
        (lambda: zen.dgc(clip_norm=0.0, axis_name="data"), "clip_norm=0.0 must be a finite number above 0"),
        (lambda: zen.warmup_density(0.1, steps=0), "steps=0"),
        (lambda: zen.warmup_density(0.1, steps=2**31), f"steps={2**31}"),
        (lambda: zen.top_k(jnp.float32(0.1)), "density=.* must be a Python number: optax.inject_hyperparams"),
        (lambda: zen.threshold(jnp.float32(0.1)), "value=.* must be a Python number: optax.inject_hyperparams"),
        (lambda: zen.warmup_density(0.1, steps=5, stages=0), "stages=0"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@every_sparsifier
def test_bad_gradients(name):
    sparsifier = SPARSIFIERS[name]
    with pytest.raises(ValueError, match="step has dtype int32"):
        sparsifier.init({"step": jnp.zeros(3, jnp.int32)})
    state = sparsifier.init({"w": jnp.zeros((3, 2))})
    with pytest.raises(ValueError, match="w has shape"):
        sparsifier.update({"w": jnp.zeros((2, 3))}, state)
    for other_tree in (sparsifier.init({"params": {"w": jnp.zeros((3, 2))}}), sparsifier.init([jnp.zeros((3, 2))])):
        with pytest.raises(ValueError, match=r"made for a tree of another structure\. Call init"):
            sparsifier.update({"w": jnp.zeros((3, 2))}, other_tree)
    with pytest.raises(ValueError, match=r"w has shape \(3, 2\), but the state was made for \(2, 3\)"):
        other = sparsifier.init({"w": jnp.zeros((2, 3))})
        sparsifier.update({"w": jnp.zeros((3, 2))}, state._replace(residual=other.residual))
    if "count" in state._fields:
        with pytest.raises(ValueError, match=r"state\.count has shape \(4,\)"):
            sparsifier.update({"w": jnp.zeros((3, 2))}, state._replace(count=jnp.zeros(4, jnp.int32)))
    for of_another in (None, optax.EmptyState(), optax.ScaleByScheduleState(jnp.int32(0))):
        with pytest.raises(ValueError, match=r"state is a .*, but must be a .*State\. Call init"):
            sparsifier.update({"w": jnp.zeros((3, 2))}, of_another)
    sparsifier.update({"w": np.zeros((3, 2))}, state)  # float64, which JAX takes for float32
    with jax.enable_x64():
        for params, gradients in ((np.float32, np.float64), (np.float64, np.float32), (np.float64, np.float16)):
            state = sparsifier.init({"w": jnp.zeros((3, 2), params)})
            with pytest.raises(ValueError, match=r"w has dtype float.*Call init"):
                sparsifier.update({"w": jnp.zeros((3, 2), gradients)}, state)


def test_a_threshold_is_rounded_to_the_gradients_dtype():
    gradient = jnp.array([0.7, -0.7, 0.6], jnp.float32)
    for value in (0.7, np.float32(0.7), np.float64(0.7)):
        with jax.enable_x64(), warnings.catch_warnings(action="error"):
            sparsifier = zen.threshold(value)
            sent, _ = sparsifier.update(gradient, sparsifier.init(gradient))
            assert np.count_nonzero(sent) == 2, repr(value)
    for value in (1e300, 1e-40, 1e-60):
        sparsifier = zen.threshold(value)
        with pytest.raises(ValueError, match=re.escape(f"value={value!r} must be from 1.17") + ".*float32"):
            sparsifier.update(gradient, sparsifier.init(gradient))


def test_unbound_axes():
    for unbound, options in (
        ("model_axis='model'", {"model_axis": "model"}),
        ("model_axis='model'", {"model_axis": "model", "clip_norm": 1.0, "axis_name": "data"}),
        ("axis_name='data'", {"clip_norm": 1.0, "axis_name": "data"}),
    ):
        sparsifier = zen.dgc(**options)
        with pytest.raises(ValueError, match=f"^{unbound} is not a named axis here"):
            sparsifier.update(jnp.zeros((3, 2)), sparsifier.init(jnp.zeros((3, 2))))
