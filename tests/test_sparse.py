"""The fused path, a list from sparsifier to wire: nothing differs from the dense path."""

import functools

import harness
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from cases import FLOATS, assert_same_bits, assert_same_values, listed, normal

import zen_jax as zen
from zen_jax.sparse import concatenated

pytestmark = [pytest.mark.promoting, pytest.mark.usefixtures("coarse_ladder")]  # optax relies on promotion

N = 4
SHAPE = (700, 400)  # above 1 MiB in float32
SPARSIFIERS = {
    "top_k": functools.partial(zen.top_k, 0.01),
    "dgc": functools.partial(zen.dgc, 0.01),
}
every_sparsifier = pytest.mark.parametrize("name", SPARSIFIERS)


# --- the gradient -----------------------------------------------------------------------------------------------------


def test_to_dense_and_reshape():
    x = np.where(np.arange(60).reshape(3, 20) % 7 == 0, normal((3, 20)), 0).astype(np.float32)
    gradient = zen.SparseGradient(*map(jnp.asarray, listed(x.reshape(-1), 15)), x.shape)
    assert_same_bits(gradient.to_dense(), x)
    assert_same_bits(gradient.reshape(-1, 4).to_dense(), x.reshape(-1, 4))
    assert (gradient.shape, gradient.size, gradient.nbytes, gradient.room) == ((3, 20), 60, 240, 15)
    assert gradient.dtype == jnp.float32
    cut = zen.SparseGradient(*map(jnp.asarray, listed(x.reshape(-1), 2)), x.shape)
    assert np.count_nonzero(cut.to_dense()) == 2
    for shape in ((59,), (-1, 7)):
        with pytest.raises(ValueError, match="60 elements"):
            gradient.reshape(*shape)


@pytest.mark.parametrize("shape", [[2**15, 2**14], tuple(np.int32([2**15, 2**14]))], ids=["list", "numpy"])
def test_shapes_of_other_types(shape):
    gradient = jax.eval_shape(lambda *arrays: zen.SparseGradient(*arrays, shape), *listed(np.ones(3, np.float32), 3))
    assert gradient.shape == (2**15, 2**14) and gradient.nbytes == 2**31


def test_joining_lists_under_x64():
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        parts = [zen.SparseGradient(jnp.int32([1, at]), jnp.float32([2, 3]), jnp.int32(2), (2, 3)) for at in (4, 5)]
        whole = concatenated(parts)
        assert whole.indices.dtype == jnp.int32
        np.testing.assert_array_equal(whole.to_dense(), [0, 2, 0, 0, 3, 0, 0, 2, 0, 0, 0, 3])


@pytest.mark.parametrize("scheme", ["auto", "zen", "agsparse", "dense"])
@pytest.mark.parametrize("n", [2, 3])
def test_count_under_x64(n, scheme):
    """A sum of a mask, as user code counts, is int64 there."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        gradient = zen.SparseGradient(jnp.int32([1, 4, 0]), jnp.float32([2, 3, 0]), jnp.sum(jnp.arange(3) < 2), (9,))
        assert gradient.count.dtype == jnp.int64
        reduce = lambda _: zen.all_reduce(gradient, "data", scheme=scheme)
        reduced = jax.vmap(reduce, axis_name="data")(jnp.zeros(n))
    np.testing.assert_array_equal(reduced, [[0, 2, 0, 0, 3, 0, 0, 0, 0]] * n)


REDUCTIONS = {
    "auto": {},
    "zen": {"scheme": "zen", "capacity": (10, 200)},
    "murmur": {"scheme": "zen", "hash": "murmur"},
    "another seed": {"scheme": "zen", "seed": 2**32 - 1},
    "others pull": {"scheme": "zen", "pull_format": "others"},
    "a unit of its own": {"unit": 4},
    "agsparse": {"scheme": "agsparse"},
    "another scheme": {"scheme": "sparse_ps"},
}


@pytest.mark.parametrize("options", REDUCTIONS.values(), ids=REDUCTIONS.keys())
@pytest.mark.parametrize("n", [1, 3])
def test_all_reduce_of_lists(options, n):
    """With room for few, where no dense branch is needed, and for all; bitwise as for arrays."""
    stack = np.where(np.random.default_rng(0).random((n, 40, 60)) < 0.05, normal((n, 40, 60)), 0).astype(np.float32)
    expected = harness.all_reduce("vmap", n, **options)(stack)
    for room in (200, 2400):
        lists = jax.tree.map(lambda *parts: np.stack(parts), *(listed(x.reshape(-1), room) for x in stack))

        def worker(parts):
            return zen.all_reduce(zen.SparseGradient(*parts, (40, 60)), harness.AXIS, **options)

        assert_same_bits(harness.spmd(worker, "vmap", n)(lists), expected)


def test_all_reduce_of_lists_that_are_full():
    """Every element of every worker: auto goes dense, from the lists."""
    stack = normal((3, 30, 50))
    lists = jax.tree.map(lambda *parts: np.stack(parts), *(listed(x.reshape(-1), 1500) for x in stack))
    worker = lambda parts: zen.all_reduce(zen.SparseGradient(*parts, (30, 50)), harness.AXIS, return_info=True)
    reduced, info = harness.spmd(worker, "vmap", 3)(lists)
    assert info.dense_taken[0] == 1
    assert_same_bits(reduced, harness.all_reduce("vmap", 3)(stack))


@pytest.mark.parametrize("scheme", ["zen", "auto", "agsparse"])
def test_lists_that_are_cut_off(scheme):
    """Elements that were counted and found no room neither travel nor make a step dense."""
    n, size, room = 4, 2400, 100
    stack = normal((n, size))
    lists = jax.tree.map(lambda *parts: np.stack(parts), *(listed(x, room) for x in stack))

    def worker(parts):
        return zen.all_reduce(
            zen.SparseGradient(*parts, (size,)), harness.AXIS, scheme=scheme, op="sum", return_info=True
        )

    reduced, info = harness.spmd(worker, "vmap", n)(lists)
    assert_same_bits(reduced[0], oracle.ordered_sum(np.where(np.arange(size) < room, stack, np.float32(0))))
    assert info.dense_taken[0] == 0


@pytest.mark.parametrize("scheme", zen.schemes.names())
@pytest.mark.parametrize("mode", ["vmap", "shard_map"])
def test_lists_without_room(scheme, mode):
    """They hold nothing but zeros."""

    def worker(values):
        gradient = zen.SparseGradient(jnp.zeros(0, jnp.int32), values, jnp.int32(0), (4, 5))
        return zen.all_reduce(gradient, harness.AXIS, scheme=scheme), gradient.to_dense()

    for array in harness.spmd(worker, mode, N)(np.ones((N, 0), np.float32)):
        assert_same_bits(array, np.zeros((N, 4, 5), np.float32))


# --- training ---------------------------------------------------------------------------------------------------------


@functools.cache
def planned(dtype="float32", shape=SHAPE):
    """A plan for leaves as sparse as the sparsifiers make them."""
    stack = np.where(np.random.default_rng(5).random((N, *shape)) < 0.01, 1, 0).astype(FLOATS[dtype])
    profile = zen.profile({"w": stack, "b": np.ones((N, 9), FLOATS[dtype])}, unit="element")
    return zen.plan(profile, zen.Cluster(N, inter_gbps=0.1), schemes=("zen", "dense_ordered"))


def trained(name, mode, compact, dtype="float32", shape=SHAPE, steps=2, poison=None, in_plan=False, **options):
    """Updates of every step and the state after it, for every worker."""
    options |= {"plan": planned(dtype, shape)} if in_plan else {}
    chain = optax.chain(SPARSIFIERS[name](compact=compact), zen.synchronize(harness.AXIS, **options))
    state = chain.init({"w": jnp.zeros(shape, FLOATS[dtype]), "b": jnp.zeros(9, FLOATS[dtype])})[0]
    state = jax.tree.map(lambda leaf: np.stack([leaf] * N), state)

    def worker(gradients_and_state):
        gradients, state = gradients_and_state
        updates, (state, _) = chain.update(gradients, (state, None))
        return updates, state

    step, results = harness.spmd(worker, mode, N), []
    for i in range(steps):
        gradients = {"w": normal((N, *shape), i, FLOATS[dtype]), "b": normal((N, 9), i, FLOATS[dtype])}
        if poison is not None:
            gradients["w"][0][poison] = np.nan
        updates, state = harness.to_numpy(step((gradients, state)))
        results.append((updates, state))
    return results


def assert_fused_is_unfused(name, mode="vmap", **options):
    fused, unfused = (trained(name, mode, compact, **options) for compact in (True, False))
    assert jax.tree.structure(fused) == jax.tree.structure(unfused)
    for mine, theirs in zip(jax.tree.leaves(fused), jax.tree.leaves(unfused), strict=True):
        assert_same_values(mine, theirs)


@pytest.mark.parametrize(
    ("name", "mode"),
    [("top_k", "shard_map"), ("dgc", "vmap"), ("dgc", "shard_map_unchecked")],
)
def test_fused_is_unfused(name, mode):
    """Updates and state, over several steps, in a plan."""
    assert_fused_is_unfused(name, mode, steps=3, in_plan=True)


CHANGES = {
    "without a plan": {},
    "16 bits": {"dtype": "float16", "shape": (700, 800), "in_plan": True},
    "dense": {"scheme": "dense_ordered"},
    "in a bucket": {"dense_below": 1 << 30},
    "one NaN": {"poison": (3, 5), "in_plan": True},
}


@pytest.mark.parametrize("options", CHANGES.values(), ids=CHANGES.keys())
def test_fused_is_unfused_however_it_travels(options):
    assert_fused_is_unfused("top_k", **options)


def test_one_threshold_for_all_shards():
    """Listed or not: shards of a model axis have more of the largest elements, or fewer."""
    gradients = normal((2, *SHAPE)) * np.float32([[[1]], [[3]]])

    def sent(compact):
        sparsifier = zen.dgc(0.01, model_axis="model", compact=compact)

        def worker(gradient):
            sent, state = sparsifier.update(gradient, sparsifier.init(gradient))
            return sent.to_dense() if compact else sent, state

        return jax.jit(jax.vmap(worker, axis_name="model"))(gradients)

    fused, unfused = sent(True), sent(False)
    jax.tree.map(assert_same_bits, fused, unfused)


@every_sparsifier
def test_more_that_is_not_finite_than_the_list_holds(name):
    """The first are sent, so that all workers see it; residual and velocity are finite, and the same as unfused."""
    options = {"steps": 1, "poison": slice(None), "dense_below": 1 << 30}
    [(fused, state)], [(unfused, other)] = (trained(name, "vmap", compact, **options) for compact in (True, False))
    assert not np.isfinite(unfused["w"]).any()
    room = int(0.01 * unfused["w"][0].size * (1.3 if name == "dgc" else 1))
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(fused["w"][0])), np.arange(room))
    for mine, theirs in zip(jax.tree.leaves(state), jax.tree.leaves(other), strict=True):
        assert np.isfinite(mine).all()
        assert_same_bits(mine, theirs)


def test_profilers_take_lists():
    transform = zen.synchronize(harness.AXIS, plan=zen.Profiler())
    lists = zen.SparseGradient(jnp.zeros((N, 9), jnp.int32), jnp.ones((N, 9)), jnp.ones(N, jnp.int32), SHAPE)
    reduced, _ = jax.eval_shape(jax.vmap(lambda g: transform.update(g, None), axis_name=harness.AXIS), lists)
    assert reduced.shape == (N, *SHAPE)


@pytest.mark.parametrize("scheme", ["dense_ordered", "zen", "auto", "agsparse"])
def test_hierarchy(scheme):
    options = {"intra_axis": "devices", "scheme": scheme}
    chains = [
        optax.chain(zen.top_k(0.01, compact=compact), zen.synchronize("hosts", **options)) for compact in (True, False)
    ]

    def run(chain):
        worker = jax.vmap(lambda g: chain.update(g, chain.init(jnp.zeros(SHAPE)))[0], axis_name="devices")
        return jax.jit(jax.vmap(worker, axis_name="hosts"))(normal((2, 2, *SHAPE)))

    assert_same_bits(run(chains[0]), run(chains[1]))


@every_sparsifier
def test_nothing_dense_is_made(name):
    """Besides the state, which is overwritten, a step makes the list and little else."""
    if not zen.backend_info()["cpu"].startswith("custom calls"):
        pytest.skip("pure JAX lists what it has sent as an array")
    sparsifier = SPARSIFIERS[name](compact=True)
    gradient, state = jnp.zeros(SHAPE), sparsifier.init(jnp.zeros(SHAPE))
    step = jax.jit(lambda g, s: sparsifier.update(g, s)[::-1], donate_argnums=1)
    memory = step.lower(gradient, state).compile().memory_analysis()
    made = memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    assert made < gradient.nbytes / 20


@every_sparsifier
def test_large_leaves_become_lists(name):
    sparsifier = SPARSIFIERS[name](compact=True)
    sent, _ = jax.eval_shape(lambda g: sparsifier.update(g, sparsifier.init(g)), jnp.zeros(SHAPE))
    assert isinstance(sent, zen.SparseGradient)


def test_small_leaves_stay_arrays():
    sparsifier = zen.top_k(0.1, compact=True)
    sent, _ = sparsifier.update(jnp.ones((20, 20)), sparsifier.init(jnp.zeros((20, 20))))
    assert isinstance(sent, jax.Array)


# --- bad input --------------------------------------------------------------------------------------------------------


def test_a_schedule_has_no_room():
    with pytest.raises(ValueError, match="compact=True sets aside room for a density that is a number"):
        zen.dgc(zen.warmup_density(0.01, 5), compact=True)


def test_added_without_synchronize_it_is_refused():
    gradient = zen.SparseGradient(jnp.zeros(3, jnp.int32), jnp.ones(3), jnp.int32(1), (9,))
    for array in (jnp.ones(9), np.ones(9, np.float32)):
        with pytest.raises(ValueError, match=r"shape \(9,\) cannot be added.*Put zen_jax\.synchronize right after"):
            optax.apply_updates(array, gradient)


def test_changed_indices_are_refused():
    gradient = zen.SparseGradient(jnp.zeros(3), jnp.ones(3), jnp.int32(1), (9,))
    with pytest.raises(ValueError, match=r"indices of float32.*right before zen_jax\.synchronize"):
        gradient.to_dense()
    with jax.enable_x64(True):
        wide = zen.SparseGradient(jnp.array([1, 3]), jnp.ones(2), jnp.int32(2), (9,))
        with pytest.raises(ValueError, match=r"indices of a SparseGradient has dtype int64, but must be int32"):
            wide.to_dense()
    with pytest.raises(ValueError, match="indices of float32"):
        jax.vmap(lambda _: zen.all_reduce(gradient, "data"), axis_name="data")(jnp.zeros(3))


@pytest.mark.parametrize("factor", [0.5, -1, 2])
@pytest.mark.parametrize("scheme", ["zen", "agsparse", "dense"])
def test_indices_that_a_schedule_has_scaled_lose_nothing_unseen(factor, scheme):
    """`optax.scale_by_schedule` casts its factor to int32 and multiplies indices and count by it."""
    gradient = zen.SparseGradient(jnp.array([1, 4, 7], jnp.int32), jnp.ones(3), jnp.int32(3), (9,))
    scaled, zeros = (jax.tree.map(lambda x, by=by: jnp.array(by).astype(x.dtype) * x, gradient) for by in (factor, 0.0))
    worker = lambda _: [zen.all_reduce(each, harness.AXIS, scheme=scheme) for each in (scaled, zeros)]
    reduced, nothing = harness.spmd(worker, "vmap", N)(jnp.zeros(N))
    assert np.isnan(reduced).any() and not nothing.any()
    np.testing.assert_array_equal(jax.device_get(gradient).to_dense(), gradient.to_dense())


@pytest.mark.parametrize("indices", [[5000, 3], [3, 3], [-1, 3]])
@pytest.mark.parametrize("scheme", ["zen", "agsparse", "dense"])
def test_indices_in_another_order_or_negative_lose_nothing_unseen(indices, scheme):
    gradient = zen.SparseGradient(jnp.array(indices, jnp.int32), jnp.ones(2), jnp.int32(2), (8192,))
    worker = lambda _: zen.all_reduce(gradient, harness.AXIS, scheme=scheme)
    assert np.isnan(harness.spmd(worker, "vmap", N)(jnp.zeros(N))).any()
    assert np.isnan(gradient.to_dense()).any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda i, v: zen.kernels.partition_coo(i, i, 3, 2, 2), "int32"),
        (lambda i, v: zen.kernels.partition_coo(i, v[:2], 3, 2, 2), r"values has shape \(2,\)"),
        (lambda i, v: zen.kernels.partition_coo(i, v, 3, 0, 2), "n=0"),
        (lambda i, v: zen.kernels.partition_coo(i, v, 3, 2, 0), "capacity=0"),
        (lambda i, v: zen.kernels.list_largest(v, v, 1, 1, 0), "room=0"),
    ],
)
def test_bad_operands(call, message):
    with pytest.raises(ValueError, match=message):
        call(jnp.arange(3, dtype=jnp.int32), jnp.ones(3))
