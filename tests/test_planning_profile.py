"""Profiles report what NumPy counts in the gradients, stacked or live in a training step."""

import functools
import json

import harness
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from cases import sparse
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, PartitionSpec

import zen_jax as zen
from zen_jax import kernels
from zen_jax.planning.counts import count, partitions, touched
from zen_jax.planning.leaf_profile import candidate_widths, leaf_profile

SEED = 3


def expected(stack, width):
    return oracle.sparsity(stack, width, partitions(len(stack)), SEED)


def assert_profiled(unit, wanted):
    for name, value in wanted.items():
        actual = getattr(unit, name)
        if isinstance(value, dict):
            assert set(actual) == set(value)
            actual, value = [actual[key] for key in value], list(value.values())
        np.testing.assert_allclose(actual, value, 1e-6, err_msg=f"{name} at {unit.width} elements")


@pytest.mark.parametrize(
    "n,shape,density", [(1, (7, 4), 0.5), (3, (37, 32), 0.1), (4, (300,), 0.05), (5, (11, 6), 0.6)]
)
def test_equals_numpy(n, shape, density):
    stack = sparse(np.random.default_rng(n), n, shape, density, by_row=n != 3)
    stack[0].flat[:3] = [np.nan, -0.0, 1e-40]  # NaN and subnormals are non-zero, -0.0 is not
    leaf = zen.profile(jnp.asarray(stack), seed=SEED).leaves["(array)"]
    assert set(leaf.by_width) == set(candidate_widths(shape, n))
    for width, unit in leaf.by_width.items():
        assert_profiled(unit, expected(stack, width))


def test_float64_counts_exactly_without_x64():
    """NumPy's float64, which JAX would turn into float32 and zeros."""
    stack = np.zeros((2, 20, 4))
    stack[:, :4], stack[:, 4], stack[:, 5] = 1e-60, np.nan, -0.0
    leaf = zen.profile(stack, unit="row", seed=SEED).leaves["(array)"]
    assert leaf.dtype == "float64"
    assert_profiled(leaf.at("row", 2), expected(stack, 4))
    assert leaf.at("row", 2).density == 5 / 20


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_steps_that_overflowed_are_left_out(dtype, value):
    sound, overflowed = np.zeros((2, 20, 4), dtype), np.full((2, 20, 4), value, dtype)
    sound[:, 0] = 1
    assert zen.profile(overflowed, sound, unit="row").leaves["(array)"].at("row", 2).density == 1 / 20
    assert zen.profile(overflowed, unit="row").leaves["(array)"].at("row", 2).density == 1


def test_no_bitmap_is_finer_than_kernels_take(monkeypatch):
    """Widths of 256, 100, 50 and 25 of the elements of a leaf of 2.2e9 have only single elements in common."""
    shape, units = (22_000_000, 100), []

    def encode(x, room):
        units.append(x.shape[0])
        return original(x, room)

    original = kernels.hash_bitmap_encode
    monkeypatch.setattr(kernels, "hash_bitmap_encode", encode)
    widths = candidate_widths(shape, n=4)
    found = jax.eval_shape(lambda x: touched(x, dict.fromkeys(widths)), jax.ShapeDtypeStruct(shape, np.float32))
    assert {width: leaf.bits.size for width, leaf in found.items()} == {w: 2_200_000_000 // w for w in widths}
    assert max(units) < 2**31


def test_units():
    """Elements, rows, any number of columns that divides a row; a unit that was not measured is refused."""
    stack = jnp.asarray(sparse(np.random.default_rng(0), 2, (20, 12), 0.2))
    for unit, width in {"element": 1, "row": 12, 4: 4}.items():
        leaf = zen.profile(stack, unit=unit, seed=SEED).leaves["(array)"]
        assert list(leaf.by_width) == [width]
        assert_profiled(leaf.at(unit, 2), expected(np.asarray(stack), width))
        with pytest.raises(ValueError, match="was not profiled"):
            leaf.at(6, 2)


def test_columns_are_for_tables():
    """Vectors are measured by element, as `synchronize` sends them."""
    gradients = {"table": jnp.ones((2, 1000, 64)), "vector": jnp.ones((2, 400_000))}
    leaves = zen.profile(gradients, unit=16).leaves
    assert [list(leaves[name].by_width) for name in gradients] == [[16], [1]]


masks = st.lists(st.lists(st.booleans(), min_size=40, max_size=40), min_size=4, max_size=4)


@given(masks)
def test_invariants(mask):
    """1 <= densification(k) <= k and it grows ever more slowly; 1 <= skewness <= partitions; 0 <= overlap <= 1."""
    unit = zen.profile(jnp.asarray(mask, jnp.float32), unit="element").leaves["(array)"].at("element", 4)
    ratios = np.array([unit.densification(k) for k in range(1, 5)])
    assert (ratios >= 1 - 1e-9).all()
    assert (ratios <= np.arange(1, 5) + 1e-9).all()
    assert (np.diff(ratios, n=2) <= 1e-9).all()
    assert all(1 <= unit.skewness(parts) <= parts for parts in unit.partition_skewness)
    assert 0 <= unit.overlap <= 1
    assert unit.partial_sums[0] <= unit.unions[-1] + 1e-9
    assert unit.pull >= unit.unions[-1] / 4 - 1e-9


def test_steps_merge():
    """Several steps give means, but the fullest message of all."""
    rng = np.random.default_rng(0)
    steps = [sparse(rng, 3, (50, 8), density) for density in (0.1, 0.4)]
    both = zen.profile(*map(jnp.asarray, steps), unit="row", seed=SEED)
    assert both.steps == 2
    apart = [expected(step, 8) for step in steps]
    for name in ("unions", "overlap"):
        np.testing.assert_allclose(
            getattr(both.leaves["(array)"].by_width[8], name), np.mean([e[name] for e in apart], axis=0)
        )
    for name in ("partial_sums", "push", "pull", "contiguous_push", "contiguous_pull"):
        np.testing.assert_array_equal(
            getattr(both.leaves["(array)"].by_width[8], name), np.max([e[name] for e in apart], axis=0)
        )


def test_sample_of_a_large_leaf():
    """A sample of an eighth of the units comes close to the whole, in means and in messages that must fit."""
    stack = jnp.asarray(sparse(np.random.default_rng(0), 2, (1 << 15, 4), 0.1, by_row=False))

    def worker(x):
        return count([touched(x, {1: 1 << 14})[1]], "w", seed=0)[0]

    counts = jax.tree.map(lambda x: np.asarray(x[0]), jax.jit(jax.vmap(worker, axis_name="w"))(stack))
    sampled = leaf_profile((1 << 15, 4), "float32", [{1: counts}]).by_width[1]
    whole = zen.profile(stack, unit="element").leaves["(array)"].by_width[1]
    assert int(counts.units) < whole.units / 4
    assert sampled.units == whole.units
    np.testing.assert_allclose(sampled.unions, whole.unions, 0.05)
    for name in ("push", "pull"):
        assert getattr(whole, name) <= getattr(sampled, name)
        np.testing.assert_allclose(getattr(sampled, name), getattr(whole, name), 0.15)


def test_sample_of_neighbours(monkeypatch):
    """Touched rows are often the first ones, and rows of 300 do not fill blocks of 256."""
    n, rows = 2, 2000
    gradients = jnp.zeros((n, rows, 300)).at[:, : rows // 4].set(1.0)
    monkeypatch.setattr("zen_jax.planning.profiler.LIMIT", 1 << 9)
    monkeypatch.setattr("zen_jax.planning.profiler.ELEMENT_LIMIT", 1 << 16)
    profiler = zen.Profiler()
    transform = zen.synchronize(harness.AXIS, plan=profiler, scheme="dense")
    harness.spmd(lambda g: transform.update(g, None)[0], "vmap", n)(gradients)
    densities = [unit.density for unit in profiler.profile().leaves["(array)"].by_width.values()]
    np.testing.assert_allclose(densities, 0.25, atol=0.02)


@pytest.mark.parametrize("columns", [16, 12])
@pytest.mark.parametrize("rows", [range(3), range(2000, 2003), range(0, 4096, 500), range(4096), ()])
def test_sample_that_misses_what_is_touched(monkeypatch, rows, columns):
    """What every worker touches is counted in all, so that a plan has room for it wherever it lies."""
    n, shape = 4, (4096, columns)
    gradients = jnp.zeros((n, *shape)).at[:, jnp.asarray(rows, jnp.int32)].set(1.0)
    monkeypatch.setattr("zen_jax.planning.profiler.LIMIT", 1 << 7)
    monkeypatch.setattr("zen_jax.planning.profiler.ELEMENT_LIMIT", 1 << 11)

    def step(plan):
        transform = zen.synchronize(harness.AXIS, plan=plan, dense_below=0)
        return harness.spmd(lambda g: transform.update(g, None)[1].info["(array)"], "vmap", n)(gradients)

    profiler = zen.Profiler()
    unplanned, sampled = step(profiler), profiler.profile()
    whole = zen.profile(gradients).leaves["(array)"]
    for width, unit in sampled.leaves["(array)"].by_width.items():
        wanted = whole.by_width[width]
        assert unit.unions[0] == wanted.unions[0]
        for name in ("push", "pull", "contiguous_push", "contiguous_pull"):
            assert getattr(unit, name) >= getattr(wanted, name), (width, name)
        assert all(most >= least for most, least in zip(unit.partial_sums, wanted.partial_sums, strict=True))
    planned = step(zen.plan(sampled, zen.Cluster(n, inter_gbps=0.1, latency_us=0)))
    assert (planned.rounds <= 1).all()
    moved = [float((info.bytes_pushed + info.bytes_pulled)[0]) for info in (planned, unplanned)]
    assert moved[0] <= moved[1]


# --- live -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", harness.MODES)
def test_live(mode):
    """Watched inside a step, large leaves have the same profile as their stacked gradients."""
    n, rng = 4, np.random.default_rng(0)
    gradients = {"bias": sparse(rng, n, (7,), 1.0), "table": sparse(rng, n, (4096, 64), 0.05)}
    profiler = zen.Profiler()
    transform = zen.synchronize(harness.AXIS, plan=profiler, scheme="dense", seed=SEED)
    step = harness.spmd(lambda g: transform.update(g, None)[0], mode, n)
    for _ in range(2):
        step(gradients)
    live, stacked = profiler.profile(), zen.profile({"table": jnp.asarray(gradients["table"])}, seed=SEED)
    assert (live.n, live.seed, live.steps) == (n, SEED, 2)
    assert live.leaves["table"] == stacked.leaves["table"]
    assert live.leaves["bias"].by_width == {}


def test_bitmaps_are_sent_once():
    """One exchange brings a worker everyone's bits of its units; one sum brings the counts of all gradients."""

    def counted(x):
        bitmaps = [bits for leaf in (x, x[:100]) for bits in touched(leaf, dict.fromkeys((64, 1))).values()]
        return [counts.units for counts in count(bitmaps, harness.AXIS, seed=SEED)]

    program = str(jax.make_jaxpr(counted, axis_env=[(harness.AXIS, 4)])(jnp.zeros((200, 64))))
    sent = {name: program.count(f" {name}[") for name in ("all_to_all", "psum", "all_gather", "ppermute", "pmax")}
    assert sent == {"all_to_all": 1, "psum": 1, "all_gather": 0, "ppermute": 0, "pmax": 0}


def test_live_beside_a_model_axis():
    """All devices report the fullest shard, once per step: processes that see different shards make one plan."""
    mesh = harness.mesh((2, 2), (harness.AXIS, "model"))
    shards = np.zeros((2, 2, 8192, 64), np.float32)
    shards[:, 0, :100], shards[:, 1, :800] = 1, 1
    profiler, reports = zen.Profiler(), []
    record = profiler._record
    profiler._record = lambda *args: (reports.append(np.asarray(args[-1])), record(*args))
    transform = zen.synchronize(harness.AXIS, plan=profiler, scheme="dense")
    worker = lambda g: transform.update(g[0, 0], None)[0]
    specs = {"in_specs": PartitionSpec(harness.AXIS, "model"), "out_specs": PartitionSpec("model")}
    step = jax.jit(jax.shard_map(worker, mesh=mesh, **specs))
    for _ in range(3):
        step(shards)
    profile = profiler.profile()
    assert profile.steps == 3 and profile.leaves["(array)"].at("row", 2).nonzero == 800
    assert len(reports) == 3 * 4
    for report in reports[1:]:
        np.testing.assert_array_equal(report, reports[0])
    [held] = profiler._reports.values()
    assert len(held[0]) == 3 and sum(map(len, held.values())) < 3 + 4, "kept: one device's, and few that came before"


@pytest.mark.parametrize("check_vma", [True, False])
def test_info_beside_a_model_axis_is_of_the_largest_shard(check_vma):
    mesh = harness.mesh((2, 2), (harness.AXIS, "model"))
    shards = np.zeros((2, 2, 64, 4), np.float32)
    shards[:, 0, :2], shards[:, 1, :16] = 1, 1
    transform = zen.synchronize(harness.AXIS, dense_below=0, unit="row")
    worker = lambda g: transform.update(g[0, 0], None)[1]
    specs = {"in_specs": PartitionSpec(harness.AXIS, "model"), "out_specs": PartitionSpec()}
    state = jax.jit(jax.shard_map(worker, mesh=mesh, check_vma=check_vma, **specs))(shards)
    assert float(state.info["(array)"].density) == 16 / 64


def test_live_in_parts():
    """Several `synchronize` share a profiler: it has all their leaves, and a step of all of them is one step."""
    n, rng = 2, np.random.default_rng(0)
    gradients = {name: sparse(rng, n, (4096, 64), 0.05) for name in ("encoder", "decoder")}
    profiler = zen.Profiler()
    part = zen.synchronize(harness.AXIS, plan=profiler, scheme="dense", seed=SEED)
    transform = optax.partition({"a": part, "b": part}, {"encoder": "a", "decoder": "b"})
    state = transform.init(jax.tree.map(lambda g: jnp.zeros(g.shape[1:]), gradients))
    step = harness.spmd(lambda g: transform.update(g, state)[0], "vmap", n)
    for _ in range(2):
        step(gradients)
    assert profiler.steps == 2
    stacked = zen.profile(*[jax.tree.map(jnp.asarray, gradients)] * 2, seed=SEED)
    assert profiler.profile() == stacked
    harness.spmd(lambda g: part.update({"head": g}, None)[0], "vmap", n).lower(gradients["encoder"])
    assert profiler.steps == 0
    with pytest.raises(ValueError, match="no step that synchronises head"):
        profiler.profile()


def test_a_step_of_all_leaves_is_one_of_some_of_them():
    """Otherwise a profiler whose first step had few leaves would wait for ever for more such steps."""
    profiler = zen.Profiler()
    transform = zen.synchronize(harness.AXIS, plan=profiler, scheme="dense")
    step = harness.spmd(lambda g: transform.update(g, None)[0], "vmap", 2)
    head, table = {"head": jnp.ones((2, 3))}, {"table": jnp.ones((2, 5, 4))}
    for gradients in (head, head | table, head | table):
        step(gradients)
    assert profiler.steps == profiler.profile().steps == 2


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((3, 9, 4), {}, "n=2, seed=0, dense_below=0, devices_per_host=1, but now gets n=3, seed=0"),
        ((2, 9, 4), {"seed": 1}, "now gets n=2, seed=1"),
        ((2, 9, 4), {"dense_below": 8}, "now gets n=2, seed=0, dense_below=8, devices_per_host=1. Use another"),
        ((2, 9, 5), {}, r"watched 'w' as float32\[9, 4\], but now it is float32\[9, 5\]. Use another"),
    ],
)
def test_a_profiler_is_for_one_tree_on_one_axis(shape, options, message):
    profiler = zen.Profiler()

    def observe(shape, **options):
        transform = zen.synchronize(harness.AXIS, plan=profiler, scheme="dense", **{"dense_below": 0} | options)
        jax.eval_shape(jax.vmap(lambda g: transform.update({"w": g}, None)[0], axis_name=harness.AXIS), jnp.ones(shape))

    observe((2, 9, 4))
    with pytest.raises(ValueError, match=message):
        observe(shape, **options)


def test_profile_of_what_lies_on_an_explicit_mesh():
    stacked = sparse(np.random.default_rng(0), 4, (300, 8), 0.1)
    mesh = harness.mesh(4, "data", AxisType.Explicit)
    placed = jax.device_put(stacked, jax.sharding.NamedSharding(mesh, PartitionSpec("data")))
    assert zen.profile(placed) == zen.profile(stacked)


@pytest.mark.parametrize("profile", [jax.jit(zen.profile), functools.partial(jax.eval_shape, zen.profile), zen.profile])
def test_profile_counts_values(profile):
    with pytest.raises(ValueError, match=r"w has no values.*zen_jax\.Profiler"):
        profile({"w": jax.ShapeDtypeStruct((4, 3000), jnp.float32) if profile is zen.profile else jnp.ones((4, 3000))})


def test_profile_counts_arrays():
    rows = zen.RowSparseGradient.from_lookups(jnp.array([1]), jnp.ones((1, 2)), num_rows=9)
    with pytest.raises(ValueError, match=r"table is a RowSparseGradient.*to_dense"):
        zen.profile({"table": rows})


def test_profiler_without_steps():
    with pytest.raises(ValueError, match="no step"):
        zen.Profiler().profile()


# --- files ------------------------------------------------------------------------------------------------------


@functools.cache
def profiled():
    """Made by the first test that needs it: while tests are collected, every process would make one."""
    return zen.profile({"table": jnp.asarray(sparse(np.random.default_rng(0), 3, (20, 8), 0.2))}, unit="row", seed=SEED)


def test_table():
    text = str(profiled())
    assert "3 workers" in text
    assert "table" in text


def test_round_trip(tmp_path):
    profiled().save(tmp_path / "profile.json")
    assert zen.SparsityProfile.load(tmp_path / "profile.json") == profiled()


@pytest.mark.parametrize(
    "change",
    [{name: value} for name in ("push", "pull", "contiguous_push", "contiguous_pull") for value in (None, "5", -5, 0.5)]
    + [{"width": 0}, {"width": 4}, {"units": 3}, {"units": 0}]
    + [
        {"unions": unions}
        for unions in ([], ["a"], [0, 3.0, 4.0], [1.0, 2.0], [3.0, 2.0, 4.0], [3.0, 4.0, 21.0], [1, 2, float("nan")])
    ]
    + [{"partial_sums": sums} for sums in ([], [1, 2], [1, 2, "3"], [-1, 2, 3])]
    + [{"partition_skewness": skew} for skew in ({}, {"2": 1.0}, {"3": None}, {"3": 0}, {"0": 1.0, "3": 1.0}, 3)]
    + [{name: 21} for name in ("push", "pull", "contiguous_push", "contiguous_pull")]
    + [{"partial_sums": [1, 2, 21]}, {"partition_skewness": {"3": 10**400}}, {"overlap": 10**400}, {"overlap": -1}],
    ids=str,
)
def test_units_that_cannot_be(tmp_path, change):
    document = json.loads(json.dumps(profiled().to_json()))
    document["leaves"]["table"]["by_width"]["8"] |= change
    (tmp_path / "profile.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match="no usable profile"):
        zen.SparsityProfile.load(tmp_path / "profile.json")


def test_bad_files(tmp_path):
    path = tmp_path / "profile.json"
    profiled().save(path)
    good = json.loads(path.read_text())
    table = good["leaves"]["table"]
    bad = {
        "is not a zen_jax profile": ["", "{", "[]", json.dumps(good | {"zen_jax": "plan"})],
        "version": [json.dumps(good | {"version": 99})],
        "no usable profile": [
            json.dumps({key: value for key, value in good.items() if key != "leaves"}),
            json.dumps(good | {"leaves": [1]}),
            json.dumps(good | {"leaves": {"table": {"shape": [20, 8], "dtype": "float32", "by_width": {"8": {}}}}}),
            *(
                json.dumps(good | {"leaves": {"table": table | {"shape": shape}}})
                for shape in (["20", 8], [20, -8], 160, [2**40, 2**40])
            ),
            *(json.dumps(good | {"leaves": {"table": table | {"dtype": dtype}}}) for dtype in ("int32", "x", None)),
            json.dumps(good | {"leaves": {"table": table | {"by_width": {"0": table["by_width"]["8"]}}}}),
            json.dumps(good | {"steps": "x"}),
            json.dumps(good | {"dense_below": None}),
            json.dumps(good | {"n": "many"}),
            json.dumps(good | {"n": 8}),
            json.dumps(good | {"n": 2}),
        ],
    }
    for message, texts in bad.items():
        for text in texts:
            path.write_text(text)
            with pytest.raises(ValueError, match=message):
                zen.SparsityProfile.load(path)
    with pytest.raises(OSError):
        zen.SparsityProfile.load(tmp_path / "missing.json")


def test_another_byte_order_is_refused():
    with pytest.raises(ValueError, match=r"dtype >f4, another byte order .* Convert it"):
        zen.profile(np.ones((2, 8, 8), ">f4"))
