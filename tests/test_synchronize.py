"""The optax transformation: alone and in a chain, MultiSteps and masked, on trees of every kind."""

import functools
import itertools
from dataclasses import make_dataclass, replace

import harness
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from cases import assert_same_bits, sparse

import zen_jax as zen

N = 4
RNG = np.random.default_rng(0)
PARAMS = {
    "embed": {"table": jnp.ones((61, 8))},
    "out": [jnp.ones((37, 4)), jnp.ones(4)],
    "scale": jnp.ones(()),
    "empty": jnp.ones((0, 3)),
}
GRADIENTS = jax.tree.map(lambda p: sparse(RNG, N, p.shape, 0.2, integers=False), PARAMS)
MEANS = jax.tree.map(lambda g: oracle.ordered_sum(g, N), GRADIENTS)

pytestmark = pytest.mark.promoting  # optax's own arithmetic relies on promotion


def step(optimizer, gradients, params=PARAMS, mode="vmap"):
    """The first update on every worker: (updates, state), both stacked."""
    return harness.spmd(lambda g: optimizer.update(g, optimizer.init(params), params), mode, N)(gradients)


def assert_trees_same(actual, expected):
    """Every worker's slice of `actual` has the bits of `expected`."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for (path, a), e in zip(jax.tree_util.tree_leaves_with_path(actual), jax.tree.leaves(expected), strict=True):
        for worker in range(N):
            assert_same_bits(a[worker], e, f"{jax.tree_util.keystr(path)}, worker {worker}")


@pytest.mark.parametrize("mode", harness.MODES)
def test_mean_of_every_leaf(mode):
    updates, _ = step(zen.synchronize(harness.AXIS, dense_below=0), GRADIENTS, mode=mode)
    assert_trees_same(updates, MEANS)


@pytest.mark.parametrize("scheme", zen.schemes.names())
def test_schemes_and_sums(scheme):
    gradients = jax.tree.map(lambda g: np.round(g * 4), GRADIENTS)
    # All schemes but dense send fused leaves by dense_ordered.
    for dense_below in (0, 200, 1 << 20) if scheme in ("zen", "dense") else (0,):
        transform = zen.synchronize(harness.AXIS, op="sum", scheme=scheme, dense_below=dense_below)
        updates, _ = step(transform, gradients)
        assert_trees_same(updates, jax.tree.map(lambda g: g.sum(axis=0), gradients))


def test_under_dense_all_is_psum():
    update = lambda tree: zen.synchronize(harness.AXIS, scheme="dense").update(tree, None)[0]
    traced = str(jax.make_jaxpr(update, axis_env=[(harness.AXIS, N)])({"bias": jnp.ones(9), "table": jnp.ones((9, 4))}))
    assert "psum" in traced and "all_to_all" not in traced


@pytest.mark.parametrize(("bucket_bytes", "count"), [(1, 4), (40, 3), (128 << 20, 2)])
def test_buckets_of_small_leaves(bucket_bytes, count):
    """However the small leaves are fused, by size or by dtype, each gets its own mean back."""
    dtypes = [np.float32, np.float16, np.float32, np.float16, np.float32]
    gradients = {f"leaf{i}": sparse(RNG, N, (i, 3), 0.7, dtype, integers=False) for i, dtype in enumerate(dtypes)}
    params = jax.tree.map(lambda g: jnp.zeros(g.shape[1:], g.dtype), gradients)
    updates, state = step(zen.synchronize(harness.AXIS, bucket_bytes=bucket_bytes), gradients, params)
    assert_trees_same(updates, jax.tree.map(lambda g: oracle.ordered_sum(g, N), gradients))
    info = jax.tree.map(lambda field: float(field[0]), optax.tree.get(state, "info"))
    assert set(info) == {"(fused)"}
    assert info["(fused)"].dense_taken == 1
    update = lambda g: zen.synchronize(harness.AXIS, bucket_bytes=bucket_bytes).update(g, None)[0]
    program = str(jax.make_jaxpr(update, axis_env=[(harness.AXIS, N)])(params))
    assert program.count(" all_gather[") == count
    sent = 2 * (N - 1) / N * sum(g[0].nbytes for g in gradients.values())
    padding = 2 * (N - 1) * 4 * count  # an element in each message, at most
    assert sent <= info["(fused)"].bytes_dense <= sent + padding


def test_a_plan_that_fuses_otherwise_keeps_the_structure_of_the_state():
    """Otherwise a step would recompile, and `scan` and `optax.MultiSteps` would refuse it."""
    gradients = dict(zip("ab", RNG.normal(size=(2, N, 4, 3)).astype(np.float32), strict=True))
    params = jax.tree.map(lambda g: g[0], gradients)
    leaf = zen.LeafPlan((4, 3), "float32", "dense_ordered")
    apart = zen.Plan(N, {"a": leaf, "b": leaf})
    together = zen.Plan(N, {"a": replace(leaf, bucket=0), "b": replace(leaf, bucket=0)})
    for (before, after), dense_below in itertools.product(itertools.permutations((None, apart, together), 2), (0, 999)):
        state = zen.synchronize(harness.AXIS, plan=before, dense_below=dense_below).init(params)
        assert set(state.info) == ({"(fused)"} if dense_below else {"a", "b"})
        transform = zen.synchronize(harness.AXIS, plan=after, dense_below=dense_below, scheme="dense_ordered")
        updates, new = harness.spmd(lambda g, t=transform, s=state: t.update(g, s), "vmap", N)(gradients)
        assert_trees_same(updates, jax.tree.map(lambda g: oracle.ordered_sum(g, N), gradients))
        assert jax.tree.structure(new) == jax.tree.structure(state)
        total = zen.total([jax.tree.map(lambda field: field[0], info) for info in new.info.values()])
        np.testing.assert_allclose(total.bytes_dense, 2 * (N - 1) / N * 2 * 48)


def test_fused_leaves_stay_copies_beside_shards_of_a_model_axis():
    """check_vma accepts a leaf as equal along the model axis, though another leaf of its bucket is not."""
    spec = jax.sharding.PartitionSpec
    mesh = harness.mesh((2, 2), ("data", "model"))
    gradients = {"shards": np.ones((2, 3, 4), np.float32), "copies": np.ones((2, 5), np.float32)}
    step = jax.shard_map(
        lambda g: zen.synchronize("data", op="sum").update(jax.tree.map(lambda x: x[0], g), None)[0],
        mesh=mesh,
        in_specs=({"shards": spec("data", None, "model"), "copies": spec("data")},),
        out_specs={"shards": spec(None, "model"), "copies": spec()},
    )
    reduced = jax.jit(step)(gradients)
    jax.tree.map(lambda actual, stack: assert_same_bits(actual, stack.sum(axis=0)), reduced, gradients)


def test_a_state_of_another_tree_is_refused():
    transform = zen.synchronize(harness.AXIS, dense_below=0)
    for params, owners in (({"a": jnp.ones(3)}, "a"), ({}, "no leaves")):
        run = harness.spmd(functools.partial(transform.update, state=transform.init(params)), "vmap", N)
        with pytest.raises(ValueError, match=f"state is for {owners}, but gradients have b"):
            run({"b": np.ones((N, 3), np.float32)})


def test_none_leaves_and_empty_trees():
    transform = zen.synchronize(harness.AXIS, dense_below=0)
    gradients = {"a": GRADIENTS["embed"]["table"], "b": None, "c": (None, {})}
    params = {"a": PARAMS["embed"]["table"], "b": None, "c": (None, {})}
    updates, _ = step(transform, gradients, params)
    assert_trees_same(updates, {"a": MEANS["embed"]["table"], "b": None, "c": (None, {})})
    worker = lambda _: transform.update({}, transform.init({}))
    updates, state = jax.vmap(worker, axis_name=harness.AXIS)(jnp.zeros(N))
    assert updates == {}
    assert optax.tree.get(state, "info") == {}


def test_numbers_are_leaves():
    transform = zen.synchronize(harness.AXIS, op="sum")
    worker = lambda _: transform.update({"scale": 2.0}, transform.init({"scale": 1.0}))[0]
    np.testing.assert_array_equal(jax.vmap(worker, axis_name=harness.AXIS)(jnp.zeros(N))["scale"], np.full(N, 2.0 * N))


def test_state_is_plain_arrays():
    """The state can be saved and jitted, and keeps its structure from init through every step."""
    transform = zen.synchronize(harness.AXIS, dense_below=200)
    fresh = transform.init(PARAMS)
    _, state = step(transform, GRADIENTS)
    for leaf in jax.tree.leaves((fresh, state)):
        assert isinstance(leaf, jax.Array)
        assert leaf.dtype == jnp.float32
    assert jax.tree.structure(fresh) == jax.tree.structure(state)
    info = optax.tree.get(state, "info")
    assert set(info) == {"embed/table", "out/0", "(fused)"}
    assert float(info["embed/table"].density[0]) > 0
    total = zen.total([jax.tree.map(lambda field: field[0], of_leaf) for of_leaf in info.values()])
    np.testing.assert_allclose(total.bytes_dense, sum(float(of_leaf.bytes_dense[0]) for of_leaf in info.values()), 1e-6)


def test_a_number_of_columns_is_for_tables():
    gradients = {"table": sparse(RNG, N, (20, 16), 0.1), "bias": sparse(RNG, N, (90,), 0.1)}
    params = {"table": jnp.zeros((20, 16)), "bias": jnp.zeros(90)}
    updates, state = step(zen.synchronize(harness.AXIS, op="sum", unit=16, dense_below=0), gradients, params)
    assert set(optax.tree.get(state, "info")) == set(gradients)
    for name, stack in gradients.items():
        assert_same_bits(updates[name][0], oracle.ordered_sum(stack))


def test_gradients_narrower_than_their_parameters():
    """The parameters decide under which names it is reported, and the state keeps its structure."""
    params = {"large": jnp.zeros((100, 4)), "small": jnp.zeros(3)}
    gradients = {name: np.ones((N, *leaf.shape), jnp.bfloat16) for name, leaf in params.items()}
    transform = zen.synchronize(harness.AXIS, dense_below=params["large"].nbytes)
    updates, state = step(transform, gradients, params)
    assert set(optax.tree.get(state, "info")) == {"large", "(fused)"}
    assert updates["large"].dtype == jnp.bfloat16 and (updates["large"] == 1).all()
    plan = zen.plan(zen.profile(gradients, unit="row"), zen.Cluster(N))
    _, planned = step(zen.synchronize(harness.AXIS, plan=plan, dense_below=1), gradients, params)
    assert set(optax.tree.get(planned, "info")) == {"large", "small"}


@pytest.mark.parametrize("before,after", [(1 << 20, 0), (0, 1 << 20)])
def test_a_state_made_with_another_limit(before, after):
    """What is fused is up to the limit now; what it is called, to the state."""
    state = zen.synchronize(harness.AXIS, dense_below=before).init(PARAMS)
    transform = zen.synchronize(harness.AXIS, scheme="zen", dense_below=after)
    _, after_step = harness.spmd(lambda g: transform.update(g, state), "vmap", N)(GRADIENTS)
    assert set(after_step.info) == set(state.info)
    _, own = step(transform, GRADIENTS, PARAMS)
    totals = [
        zen.total([jax.tree.map(lambda field: field[0], info) for info in of.info.values()]) for of in (after_step, own)
    ]
    assert float(totals[0].dense_taken) == float(totals[1].dense_taken) == (after > 0)
    np.testing.assert_allclose(totals[0].bytes_pushed, totals[1].bytes_pushed, 1e-6)


def test_leaves_of_one_name_are_refused():
    tree = {"a": {"b": jnp.zeros(3)}, "a/b": jnp.ones(3)}
    with pytest.raises(ValueError, match="two leaves of the tree are called 'a/b'"):
        zen.synchronize(harness.AXIS).init(tree)


# --- with optax -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["vmap", "pmap", "shard_map_unchecked"])
def test_chain(mode):
    """First in a chain it replaces pmean; its info is found in the chain's state."""
    ours = optax.chain(zen.synchronize(harness.AXIS, dense_below=200), optax.clip_by_global_norm(1.0), optax.adam(0.1))
    plain = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1))
    updates, state = step(ours, GRADIENTS, mode=mode)
    expected, _ = jax.jit(plain.update)(MEANS, plain.init(PARAMS), PARAMS)
    for actual, wanted in zip(jax.tree.leaves(updates), jax.tree.leaves(expected), strict=True):
        assert (np.asarray(actual) == np.asarray(actual)[:1]).all()
        np.testing.assert_allclose(np.asarray(actual)[0], wanted, 1e-6, 1e-7)
    assert "embed/table" in optax.tree.get(state, "info")


@pytest.mark.parametrize("mode", ["vmap", "shard_map_unchecked"])
def test_multi_steps(mode):
    """MultiSteps synchronises every step and changes parameters in every second one."""
    ours = optax.MultiSteps(optax.chain(zen.synchronize(harness.AXIS, dense_below=200), optax.sgd(1.0)), 2)
    run = harness.spmd(lambda inputs: ours.update(*inputs, PARAMS), mode, N)
    fresh = jax.tree.map(lambda leaf: np.stack([leaf] * N), ours.init(PARAMS))
    first, state = run((GRADIENTS, fresh))
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(first))
    second, _ = run((jax.tree.map(lambda g: 3 * g, GRADIENTS), harness.to_numpy(state)))
    for actual, mean in zip(jax.tree.leaves(second), jax.tree.leaves(MEANS), strict=True):
        assert (np.asarray(actual) == np.asarray(actual)[:1]).all()
        np.testing.assert_allclose(np.asarray(actual)[0], -2 * mean, 1e-5, 1e-6)


def test_masked():
    """Under optax.masked it sees MaskedNodes, leaves them alone, and masked-out leaves stay local."""
    mask = {"embed": True, "out": False, "scale": True, "empty": True}
    transform = optax.masked(zen.synchronize(harness.AXIS, dense_below=200), mask)
    updates, state = step(transform, GRADIENTS)
    assert_trees_same(updates["embed"], MEANS["embed"])
    assert_trees_same(updates["scale"], MEANS["scale"])
    for kept, local in zip(updates["out"], GRADIENTS["out"], strict=True):
        assert_same_bits(kept, local)
    assert set(optax.tree.get(state, "info")) == {"embed/table", "(fused)"}


def test_specs_of_a_state_from_those_of_the_parameters():
    """`optax.tree_map_params` calls `init` with a node of its own, without leaves."""
    labels = jax.tree.map(lambda p: f"like {p.shape}", PARAMS)
    optimizer = optax.chain(zen.dgc(0.1), zen.synchronize(harness.AXIS, dense_below=200), optax.adam(1.0))
    state = optimizer.init(PARAMS)
    specs = optax.tree_map_params(
        optimizer, lambda _, label: label, state, labels, transform_non_params=lambda _: "all"
    )
    for name in ("velocity", "residual", "mu", "nu"):
        assert optax.tree.get(specs, name) == labels
    assert optax.tree.get(specs, "info") == "all"
    assert jax.tree.structure(specs).num_leaves == 4 * len(jax.tree.leaves(PARAMS)) + 3  # two counts and info
    assert zen.synchronize(harness.AXIS).init({"a": None, "b": optax.MaskedNode()}).info == {}


def test_a_custom_node_without_parameters():
    node = jax.tree_util.register_dataclass(make_dataclass("Identity", []))()
    transform = zen.synchronize(harness.AXIS)
    updates, state = transform.update(node, transform.init(node))
    assert updates == node and jax.tree.structure(state) == jax.tree.structure(transform.init(node))


def test_partition_of_leaves():
    """optax.partition: sparse leaves by zen, the others dense."""
    labels = {"embed": "sparse", "out": "dense", "scale": "dense", "empty": "dense"}
    transform = optax.partition(
        {
            "sparse": zen.synchronize(harness.AXIS, scheme="zen", dense_below=0),
            "dense": zen.synchronize(harness.AXIS, scheme="dense_ordered"),
        },
        labels,
    )
    assert_trees_same(step(transform, GRADIENTS)[0], MEANS)


# --- plans ------------------------------------------------------------------------------------------------------

SLOW = zen.Cluster(N, inter_gbps=0.01)  # so slow that bytes decide, even for gradients as small as these


def test_plan():
    """A measured plan changes no bit, and sends no more than a default."""
    stacked = {"table": sparse(RNG, N, (4001, 32), 0.02, integers=False), "bias": sparse(RNG, N, (7,), 1.0)}
    params = jax.tree.map(lambda g: jnp.zeros(g.shape[1:]), stacked)
    plan = zen.plan(zen.profile(jax.tree.map(jnp.asarray, stacked), unit="auto"), SLOW)
    assert "table" in str(plan)
    means = jax.tree.map(lambda g: oracle.ordered_sum(g, N), stacked)
    bytes_moved = {}
    for name, how in {"plan": plan, "default": None}.items():
        updates, state = step(zen.synchronize(harness.AXIS, plan=how, dense_below=1000), stacked, params)
        assert_trees_same(updates, means)
        info = jax.tree.map(lambda field: float(field[0]), optax.tree.get(state, "info")["table"])
        assert info.dense_taken == 0
        bytes_moved[name] = info.bytes_pushed + info.bytes_pulled
        assert info.rounds == 1
    assert bytes_moved["plan"] <= bytes_moved["default"] < 0.25 * info.bytes_dense


def test_a_plan_brings_its_seed():
    stacked = {"table": sparse(RNG, N, (4001,), 0.05)}
    plan = zen.plan(zen.profile(stacked, unit="element", seed=3), SLOW, schemes=("dense_ordered", "zen"))
    assert plan.leaves["table"].scheme == "zen"

    def imbalance(**options):
        _, state = step(zen.synchronize(harness.AXIS, **options), stacked, {"table": jnp.zeros(4001)})
        return optax.tree.get(state, "info")["table"].imbalance_push

    known = {"scheme": "zen", "unit": plan.leaves["table"].unit, "dense_below": 0}
    np.testing.assert_array_equal(imbalance(plan=plan, seed=4, dense_below=0), imbalance(seed=3, **known))
    assert not np.array_equal(imbalance(seed=3, **known), imbalance(seed=4, **known))


def test_outgrown_plan_loses_nothing():
    thin = {"table": jnp.asarray(sparse(RNG, N, (401, 8), 0.01))}
    plan = zen.plan(zen.profile(thin, unit="auto"), SLOW, schemes=("dense_ordered", "auto"))
    assert plan.leaves["table"].scheme == "auto"
    run = harness.spmd(lambda g: zen.synchronize(harness.AXIS, plan=plan).update(g, None), "vmap", N)
    for density in (0.01, 0.1, 0.5, 1.0):
        stacked = {"table": sparse(RNG, N, (401, 8), density, integers=False)}
        updates, _ = run(stacked)
        assert_trees_same(updates, {"table": oracle.ordered_sum(stacked["table"], N)})
