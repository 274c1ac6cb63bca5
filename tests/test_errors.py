"""Bad input: a ValueError, before anything is sent, that names the argument, the value and what to do."""

from functools import partial

import harness
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec
from refusals import refuses

import zen_jax as zen
from zen_jax import _axis

N = 2
GRADIENT = np.ones((N, 12, 6), np.float32)


def all_reduce(stack=GRADIENT, axis_name=harness.AXIS, **options):
    return lambda: jax.vmap(lambda x: zen.all_reduce(x, axis_name, **options), axis_name=harness.AXIS)(stack)


@pytest.mark.parametrize(
    "options,fragments",
    [
        ({"axis_name": "nobody"}, ("axis_name='nobody'", "shard_map")),
        ({"scheme": "zeno"}, ("scheme='zeno'", "'zen'", "'dense'")),
        ({"hash": "md5"}, ("hash='md5'", "'tile', 'murmur'")),
        ({"op": "max"}, ("op='max'", "'mean', 'sum'")),
        ({"unit": "column"}, ("unit='column'", "'element', 'row', 'auto'")),
        ({"unit": 4}, ("unit=4", "divide the 6 columns", "[1, 2, 3, 6]")),
        ({"unit": 0}, ("unit=0", "a positive number")),
        ({"unit": -2}, ("unit=-2", "a positive number")),
        ({"unit": True}, ("unit=True", "a positive number")),
        ({"unit": 2.0}, ("unit=2.0", "a positive number")),
        ({"capacity": 0}, ("capacity=0", "at least 1")),
        ({"capacity": -5}, ("capacity=-5", "at least 1")),
        ({"capacity": 2.5}, ("capacity=2.5", "an integer")),
        ({"capacity": (4, 0)}, ("capacity=0", "at least 1")),
        ({"capacity": 2**31}, (f"capacity={2**31}", "at most 2**31 - 1")),
        ({"capacity": (None, 0)}, ("capacity=0", "at least 1")),
        ({"push_format": "dense"}, ("push_format='dense'", "'coo', 'bitmap', 'auto'")),
        ({"pull_format": "auto"}, ("pull_format='auto'", "'hash_bitmap', 'others', 'bitmap', 'coo', 'dense'")),
        ({"pull_format": ["coo"]}, ("pull_format=['coo']", "'hash_bitmap', 'others'")),
        ({"pull_format": "others", "push_format": "auto"}, ("pull_format='others'", "push_format='coo'", "'auto'")),
        ({"pull_format": "others", "hash": "murmur"}, ("pull_format='others'", "hash='tile'", "'murmur'")),
        ({"stack": GRADIENT.astype(np.int32)}, ("x has dtype int32", "must be float32")),
        ({"stack": {"w": GRADIENT}}, ("x is a dict", "zen_jax.synchronize")),
        ({"stack": GRADIENT.astype(np.complex64)}, ("x has dtype complex64", "must be float32")),
        ({"stack": GRADIENT.astype(bool)}, ("x has dtype bool", "must be float32")),
        ({"seed": -1}, ("seed=-1", "from 0 to 2**32 - 1")),
        ({"seed": 2**32}, (f"seed={2**32}", "from 0 to 2**32 - 1")),
        ({"axis_name": ["w"]}, ("axis_name=['w']", "tuple")),
        ({"axis_name": 0}, ("axis_name=0", "Give a name")),
        ({"axis_name": None}, ("axis_name=None", "Give a name")),
        ({"intra_axis": ("a", 0)}, ("intra_axis=('a', 0)", "Give a name")),
        ({"intra_axis": ["w"]}, ("intra_axis=['w']", "tuple")),
        ({"intra_axis": ("a", "a")}, ("intra_axis=('a', 'a')", "different")),
    ],
)
@pytest.mark.parametrize("scheme", zen.schemes.names())
def test_all_reduce(scheme, options, fragments):
    """Whatever the scheme: a wrong argument is refused even if only another scheme would use it."""
    refuses(all_reduce(**{"scheme": scheme} | options), *fragments)


@pytest.mark.parametrize("scheme,exchanges", [("zen", 2), ("sparse_ps", 2), ("agsparse", 1), ("sparcml", 1)])
def test_more_capacities_than_exchanges(scheme, exchanges):
    capacity = (5,) * (exchanges + 1)
    fragments = (f"capacity={capacity}", f"{exchanges} exchanges", f"{N} workers", f"{scheme=}")
    refuses(all_reduce(scheme=scheme, capacity=capacity), *fragments)
    all_reduce(scheme=scheme, capacity=capacity[1:])()


def test_no_axis_at_all():
    refuses(lambda: zen.all_reduce(jnp.ones(3), "workers"), "axis_name='workers'", "shard_map")
    refuses(
        lambda: jax.jit(lambda x: zen.all_reduce(x, "workers"))(jnp.ones(3)), "axis_name='workers'", "value_and_grad"
    )


def test_nothing_is_traced_before_the_checks(monkeypatch):
    """A refused call has sent nothing and partitioned nothing, and the next call works."""

    def never(*_, **__):
        raise AssertionError("traced before the checks")

    with monkeypatch.context() as patch:
        for module, name in ((_axis, "all_gather"), (_axis, "all_to_all"), (zen.kernels, "partition")):
            patch.setattr(module, name, never)
        refused_calls()
    harness.all_reduce("vmap", N, scheme="zen")(GRADIENT)


def refused_calls():
    for name, value in {"scheme": "zeno", "capacity": 0, "unit": 5}.items():
        refuses(lambda n=name, v=value: jax.make_jaxpr(all_reduce(**{n: v}))(), f"{name}={value!r}")


def shard_map(worker, check_vma):
    spec = jax.sharding.PartitionSpec
    mesh = harness.mesh(N)
    in_specs = (spec(), spec(harness.AXIS))
    return jax.jit(jax.shard_map(worker, mesh=mesh, in_specs=in_specs, out_specs=spec(), check_vma=check_vma))


@pytest.mark.parametrize("scheme", ["zen", "auto", "dense", "dense_ordered", "sparcml"])
def test_already_reduced_gradient(scheme):
    """Under check_vma=True jax.grad of replicated parameters is already summed; averaging it gives the sum."""
    params, batch = jnp.ones((12, 6)), jnp.ones((4, 12, 6))
    loss = lambda params, batch: jnp.mean(jnp.sum(params[None] * batch, axis=(1, 2)))
    worker = lambda params, batch: zen.all_reduce(jax.grad(loss)(params, batch), harness.AXIS, scheme=scheme)
    refuses(lambda: shard_map(worker, True)(params, batch), "already reduced", "pcast", "value_and_grad")
    unreduced = lambda params, batch: worker(jax.lax.pcast(params, harness.AXIS, to="reduced"), batch)
    refuses(lambda: shard_map(unreduced, True)(params, batch), "is unreduced", "pcast", "value_and_grad")

    def varying(params, batch):
        return worker(jax.lax.pcast(params, harness.AXIS, to="varying"), batch)

    for check_vma in (True, False):
        right = shard_map(varying if check_vma else worker, check_vma)(params, batch)
        np.testing.assert_allclose(np.asarray(right), 1)


@pytest.mark.parametrize(
    "leaf",
    [
        lambda gradient: gradient,
        lambda gradient: zen.SparseGradient(jnp.arange(72), gradient.reshape(-1), jnp.int32(72), (12, 6)),
        lambda gradient: zen.RowSparseGradient(jnp.arange(12), gradient, 12),
    ],
    ids=["array", "SparseGradient", "RowSparseGradient"],
)
def test_already_reduced_gradient_in_synchronize(leaf):
    transform = zen.synchronize(harness.AXIS)
    params, batch = {"table": jnp.ones((12, 6))}, jnp.ones((4, 12, 6))

    def worker(params, batch):
        gradients = jax.grad(lambda p: jnp.mean(jnp.sum(p["table"][None] * batch, axis=(1, 2))))(params)
        return transform.update({"table": leaf(gradients["table"])}, transform.init(params))[0]

    refuses(lambda: shard_map(worker, True)(params, batch), "table does not vary", "already reduced", "pcast")


@pytest.mark.parametrize("sparsify", [zen.top_k, zen.dgc, zen.random_k, zen.threshold])
def test_already_reduced_gradient_in_a_sparsifier(sparsify):
    """What it sends varies as its state does: synchronize could no longer tell."""
    params, batch = {"table": jnp.ones((12, 6)), "bias": jnp.ones(6)}, jnp.ones((N, 12, 6))
    sparsifier = sparsify(0.5)
    state = jax.tree.map(lambda leaf: jnp.stack([leaf] * N), sparsifier.init(params))

    def worker(params, state, batch):
        loss = lambda p: jnp.mean((p["table"] + p["bias"][None]) * batch[0])
        return sparsifier.update(jax.grad(loss)(params), jax.tree.map(lambda leaf: leaf[0], state))[0]

    specs = PartitionSpec(), PartitionSpec(harness.AXIS), PartitionSpec(harness.AXIS)
    run = jax.shard_map(worker, mesh=harness.mesh(N), in_specs=specs, out_specs=PartitionSpec(harness.AXIS))
    refuses(lambda: run(params, state, batch), f"bias does not vary over axis '{harness.AXIS}'", "already reduced")


def row_sparse(x):
    return zen.RowSparseGradient.from_lookups(jnp.arange(len(x)), x, len(x))


def sparsified(x, sparsifier):
    return sparsifier.update(x, sparsifier.init(x))[0]


@pytest.mark.parametrize(
    "worker",
    [
        lambda x: zen.all_reduce(x[0], harness.AXIS),
        lambda x: zen.synchronize(harness.AXIS).update(row_sparse(x[0]), None)[0].rows,
        lambda x: sparsified(x[0], zen.dgc(model_axis=harness.AXIS)),
        lambda x: jax.vmap(lambda x: zen.all_reduce(x, harness.AXIS, intra_axis="devices"), axis_name="devices")(x)[0],
    ],
    ids=["all_reduce", "synchronize", "dgc", "machines of a vmap"],
)
def test_compilation_cache_among_processes_on_cpus(worker, monkeypatch):
    """Programs from it hang; one process alone, or without it, runs."""
    spec = jax.sharding.PartitionSpec
    keywords = {"mesh": harness.mesh(N), "in_specs": spec(harness.AXIS), "out_specs": spec(), "check_vma": False}
    trace = lambda: jax.eval_shape(jax.shard_map(lambda x: worker(x), **keywords), GRADIENT)
    assert jax.config.jax_compilation_cache_dir
    before = jax.config.jax_enable_compilation_cache
    try:
        jax.config.update("jax_enable_compilation_cache", True)
        trace()
        monkeypatch.setattr(jax, "process_count", lambda: 2)
        refuses(trace, "compilation cache", "'jax_enable_compilation_cache', False", "JAX_COMPILATION_CACHE_DIR")
        jax.config.update("jax_enable_compilation_cache", False)
        trace()
    finally:
        jax.config.update("jax_enable_compilation_cache", before)


def test_gradient_sharded_over_an_explicit_axis():
    """Only the workers' axis is manual. JAX would complain about an unsupported reshape, or gather."""
    explicit, spec = jax.sharding.AxisType.Explicit, jax.sharding.PartitionSpec
    axes = (harness.AXIS, "model")
    mesh = harness.mesh((N, 2), axes, explicit)
    sharding = jax.sharding.NamedSharding(mesh, spec(harness.AXIS, None, "model"))
    stack = jax.device_put(np.ones((N, 12, 6), np.float32), sharding)
    workers = {
        "x": lambda x: zen.all_reduce(x[0], harness.AXIS),
        "table": lambda x: zen.synchronize(harness.AXIS).update({"table": x[0]}, None)[0],
        "w": lambda x: zen.top_k(0.1).update({"w": x[0]}, zen.top_k(0.1).init({"w": jnp.zeros(x.shape[1:])}))[0],
    }
    for name, worker in workers.items():
        run = jax.shard_map(worker, in_specs=spec(harness.AXIS), out_specs=spec(), axis_names={harness.AXIS})
        with jax.set_mesh(mesh):
            refuses(lambda run=run: run(stack), f"{name} is sharded over axis 'model'", "manual", "shard_map")
    observe = lambda x: zen.synchronize(harness.AXIS, plan=zen.Profiler()).update(x[0], None)[0]
    run = jax.shard_map(observe, in_specs=spec(harness.AXIS), out_specs=spec(), axis_names={harness.AXIS})
    with jax.set_mesh(mesh):
        refuses(lambda: run(np.ones((N, 12, 6), np.float32)), "Profiler", "Explicit axis 'model'", "axis_names")
    sharded = jax.device_put(np.ones((N, 1, 6), np.float32), jax.sharding.NamedSharding(mesh, spec(harness.AXIS)))
    for name, worker in workers.items():
        run = jax.vmap(worker, axis_name=harness.AXIS)
        refuses(lambda run=run: run(sharded), f"{name} is sharded over axis '{harness.AXIS}'", "In place of vmap")


@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
def test_derivative(kind):
    """Gradients are reduced after they are taken, so nothing needs a derivative."""
    mesh = harness.mesh(N, "devices", kind)

    def derivative(x):
        return jax.grad(lambda x: jnp.sum(zen.all_reduce(2 * x, harness.AXIS, scheme="zen")))(x)

    with jax.set_mesh(mesh):
        refuses(lambda: jax.vmap(derivative, axis_name=harness.AXIS)(GRADIENT), "zen_partition", "jax.grad")


# --- synchronize, plans, value_and_grad -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options,fragments",
    [
        ({"op": "max"}, ("op='max'", "'mean', 'sum'")),
        ({"scheme": "zeno"}, ("scheme='zeno'", "'zen'", "'dense'")),
        ({"unit": "column"}, ("unit='column'", "'element', 'row', 'auto'")),
        ({"bucket_bytes": 0}, ("bucket_bytes=0", "at least 1")),
        ({"plan": "plan.json"}, ("plan is a str", "Profiler")),
        ({"seed": -1}, ("seed=-1", "from 0 to 2**32 - 1")),
        ({"intra_axis": ["w"]}, ("intra_axis=['w']", "tuple")),
    ],
)
def test_synchronize_arguments(options, fragments):
    """Refused when the transformation is made, not at the first step."""
    refuses(lambda: zen.synchronize(harness.AXIS, **options), *fragments)


def test_synchronize_leaves():
    transform = zen.synchronize(harness.AXIS)
    refuses(
        lambda: transform.init({"layer": {"steps": jnp.zeros(3, jnp.int32)}}), "layer/steps has dtype int32", "masked"
    )
    refuses(lambda: transform.init({"phase": jnp.zeros(3, jnp.complex64)}), "phase has dtype complex64", "masked")
    refuses(lambda: transform.init({"steps": 3}), "steps has dtype int32", "masked")
    refuses(lambda: transform.init({"name": "embed"}), "name is a str", "masked")


def test_synchronize_axis():
    transform = zen.synchronize("nobody")
    params = {"table": jnp.ones((12, 6))}
    update = lambda g: transform.update(g, transform.init(params))[0]
    refuses(lambda: jax.vmap(update, axis_name=harness.AXIS)({"table": GRADIENT}), "axis_name='nobody'")
    refuses(lambda: zen.synchronize(()), "axis_name=()", "Give a name")


def test_synchronize_state_of_another_tree():
    """A large leaf is not taken for one to fuse because the state lacks it."""
    transform = zen.synchronize(harness.AXIS, dense_below=100)
    state = transform.init({"params": {"table": GRADIENT[0], "bias": jnp.ones(3)}})
    update = lambda gradients: transform.update(gradients, state)[0]
    gradients = {"table": GRADIENT, "bias": np.ones((N, 3), np.float32)}
    refuses(lambda: jax.vmap(update, axis_name=harness.AXIS)(gradients), "state is for", "gradients have table", "init")


def test_value_and_grad_inside_shard_map():
    mesh = harness.mesh(N)
    inside = zen.value_and_grad(lambda w, x: jnp.mean(x @ w), mesh=mesh, axis_name=harness.AXIS)
    specs = {"in_specs": (PartitionSpec(), PartitionSpec(harness.AXIS)), "out_specs": PartitionSpec()}
    step = jax.shard_map(inside, mesh=mesh, check_vma=False, **specs)
    refuses(lambda: step(jnp.ones(2), jnp.ones((N, 2))), "inside a shard_map", "zen_jax.synchronize")


PLAN = zen.Plan(N, {"table": zen.LeafPlan((12, 6), "float32")})


@pytest.mark.parametrize(
    "stack,fragments",
    [
        ({"table": np.ones((N, 12, 7), np.float32)}, ("plan is for table as float32[12, 6]", "is float32[12, 7]")),
        ({"table": np.ones((N, 12, 6), np.float16)}, ("plan is for table as float32[12, 6]", "is float16[12, 6]")),
        ({"chair": GRADIENT}, ("plan is for other leaves", "lacks 'chair' but has 'table'")),
        ({"table": GRADIENT, "chair": GRADIENT}, ("plan is for other leaves", "lacks 'chair'.")),
        ({"table": np.ones((N + 1, 12, 6), np.float32)}, ("plan is for 2 workers", "Make a plan for 3 workers")),
    ],
)
def test_plan_for_other_shapes(stack, fragments):
    """At init if the shapes are known then, at update for another number of workers."""
    transform = zen.synchronize(harness.AXIS, plan=PLAN)

    def step(gradients):
        return transform.update(gradients, transform.init(gradients))[0]

    refuses(lambda: jax.vmap(step, axis_name=harness.AXIS)(stack), *fragments)


def test_profile():
    refuses(lambda: zen.profile(), "profile got no gradients", "at least one step")
    refuses(lambda: zen.profile({"a": jnp.ones((2, 3)), "b": jnp.ones((3, 3))}), "one leading axis", "[(2,), (3,)]")
    refuses(lambda: zen.profile({"a": jnp.ones(())}), "one leading axis", "[()]")
    refuses(lambda: zen.profile({"a": jnp.ones((2, 3), jnp.int32)}), "a has dtype int32")
    several = {"a": jnp.ones((2, 3))}, {"a": jnp.ones((2, 4))}
    refuses(lambda: zen.profile(*several), "must be gradients of one tree", "only some have a as float32[2, 3]")
    none_divided = {"a": jnp.ones((2, 9, 4)), "b": jnp.ones((2, 8))}
    refuses(lambda: zen.profile(none_divided, unit=7), "unit=7")
    refuses(lambda: zen.profile(jnp.ones((2, 3)), unit="column"), "unit='column'")
    refuses(lambda: zen.profile(jnp.ones((2, 3)), seed=-1), "seed=-1")
    # Counted as stacked, a table would take 16 n**3 bytes.
    refuses(lambda: zen.profile({"table": np.ones((1500, 16), np.float32)}), "1500 workers with 16 elements", "one")
    refuses(lambda: zen.profile({"table": np.ones((70000, 1), np.float32)}), "n=70000", "at most 65535")


def test_planning():
    gradients, cluster = {"table": np.ones((N, 12, 6), np.float32)}, zen.Cluster(N)
    profile = zen.profile(gradients)
    for planned in (zen.plan, zen.estimate, partial(zen.simulate, workers=(N,))):
        refuses(lambda: planned(gradients, cluster), "profile is a dict", "zen_jax.profile")  # noqa: B023
        refuses(lambda: planned(profile, N), "cluster is a int", "zen_jax.calibrate")  # noqa: B023
    for workers in (8.0, True, 1):
        refuses(lambda: zen.simulate(profile, cluster, workers=workers), f"workers={workers}")  # noqa: B023
    for leaves, complaint in ((None, "leaves is a NoneType"), ({"a": 3}, "leaves['a'] is a int")):
        refuses(lambda: zen.Plan(N, leaves), complaint, "LeafPlan by name")  # noqa: B023
        refuses(lambda: zen.SparsityProfile(N, leaves), complaint, "LeafProfile by name")  # noqa: B023
    refuses(lambda: zen.plan(profile, cluster, schemes="zen"), "schemes='zen' is no collection")
    refuses(lambda: zen.plan(profile, cluster, schemes=None), "schemes=None is no collection")
    refuses(lambda: zen.autotune(lambda plan: None, cluster=N), "cluster is a int")


def test_info_that_is_none():
    transform = zen.synchronize(harness.AXIS)
    state = transform.init({"table": jnp.ones((12, 6))})
    refuses(lambda: zen.total(state), "infos is a dict", "state.info")
    refuses(lambda: zen.total(optax.tree.get(optax.EmptyState(), "info")), "infos is a NoneType", "state.info")
    refuses(lambda: transform.update({"table": jnp.ones((12, 6))}, optax.EmptyState()), "state is a EmptyState", "init")


def test_value_and_grad():
    loss = lambda w, x: jnp.mean(x @ w)
    mesh = harness.mesh(N, "data")
    refuses(lambda: zen.value_and_grad(loss, mesh=None), "mesh is a NoneType", "jax.make_mesh")
    refuses(lambda: zen.value_and_grad(loss, mesh=mesh, axis_name="model"), "axis_name='model'", "'data'")
    refuses(lambda: zen.value_and_grad(loss, mesh=mesh, scheme="zeno"), "scheme='zeno'")
    refuses(lambda: zen.value_and_grad(loss, mesh=mesh)(jnp.ones(2), jnp.ones((3, 2))), "batch of 3", "2 workers")
    refuses(lambda: zen.value_and_grad(loss, mesh=mesh, padding_id=0), "padding_id=0", "lookups")
    for argnums in (5, -3, (0, 5)):
        run = zen.value_and_grad(loss, argnums=argnums, mesh=mesh)
        refuses(lambda: run(jnp.ones(2), jnp.ones((4, 2))), f"argnums={argnums!r}", "2 positional arguments")  # noqa: B023
    for argnums in ("w", 1.5, True, None, ()):
        refuses(lambda: zen.value_and_grad(loss, argnums=argnums, mesh=mesh), f"argnums={argnums!r}")  # noqa: B023


def test_autotune_for_another_cluster_is_refused_before_a_step_runs():
    ran = []

    def make_step(plan):
        transform = zen.synchronize(harness.AXIS, plan=plan, dense_below=0)
        step = jax.jit(jax.vmap(lambda g: transform.update(g, None)[0], axis_name=harness.AXIS), donate_argnums=0)
        return lambda g: ran.append(step(g))

    gradients = jnp.asarray(GRADIENT)
    of_hosts = zen.Cluster(N, devices_per_host=8)  # whose devices do not reduce first
    for cluster, hosts in ((zen.Cluster(7), "7 hosts"), (of_hosts, f"{N} hosts with 8 devices each")):
        refuses(lambda: zen.autotune(make_step, cluster=cluster)(gradients), hosts, f"the axis has {N} workers")  # noqa: B023
    assert not ran and not gradients.is_deleted()
    refuses(
        lambda: zen.autotune(make_step, cluster=zen.Cluster(N), schemes=["zen"]), "schemes=('zen',)", "dense_ordered"
    )


@pytest.mark.parametrize(
    "units,options,who",
    [
        (2**31, {"scheme": "agsparse"}, "scheme='agsparse'"),
        (2**31, {"scheme": "sparcml"}, "scheme='sparcml'"),
        (2**31, {"scheme": "sparse_ps"}, "contiguous servers"),
        (2**31, {"scheme": "zen", "pull_format": "coo"}, "pull_format='coo'"),
        (2**31, {"scheme": "zen", "pull_format": "bitmap"}, "pull_format='bitmap'"),
        (2**31, {"scheme": "zen", "pull_format": "others"}, "pull_format='others'"),
        (2**31, {"scheme": "zen", "hash": "murmur"}, "hash='murmur'"),
        (2**32, {"scheme": "zen"}, "each of 2 servers"),
    ],
)
def test_more_units_than_a_scheme_can_name(units, options, who):
    reduce = lambda x: zen.all_reduce(x, harness.AXIS, unit="element", **options)
    stack = jax.ShapeDtypeStruct((N, units), jnp.float32)
    refuses(lambda: jax.eval_shape(jax.vmap(reduce, axis_name=harness.AXIS), stack), who, "wider units", "'auto'")


def test_numpy_scalars_are_numbers():
    options = {"unit": np.int64(2), "capacity": [np.int64(3), None], "seed": np.uint32(1)}
    reduce = lambda g: zen.all_reduce(g, harness.AXIS, scheme="zen", op="sum", **options)
    reduced = jax.vmap(reduce, axis_name=harness.AXIS)(GRADIENT)
    np.testing.assert_array_equal(reduced[0], GRADIENT.sum(axis=0))
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        np.testing.assert_array_equal(jax.vmap(reduce, axis_name=harness.AXIS)(GRADIENT), reduced)
    zen.top_k(np.float32(0.5))
    assert zen.Cluster(np.int64(2), inter_gbps=np.float64(1)).workers == 2
    refuses(lambda: zen.Cluster(np.bool_(True)), "hosts=np.True_", "at least 1")


def test_unreduced_optax_update_without_axis():
    """Outside any mapped axis the transform says so rather than failing inside a collective."""
    optimizer = optax.chain(zen.synchronize("workers"), optax.sgd(0.1))
    params = {"w": jnp.ones(3)}
    refuses(lambda: optimizer.update(params, optimizer.init(params), params), "axis_name='workers'")
