"""What every scheme guarantees, for every worker count, mode of JAX, shape and kind of gradient."""

import functools
import itertools

import harness
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from cases import FLOATS, SHAPES, WORKERS, assert_same_bits, assert_same_values, sparse, special, structured
from hypothesis import given
from hypothesis import strategies as st

import zen_jax as zen
from zen_jax.schemes.pull import PULL_FORMATS

SCHEMES = zen.schemes.names()
# The other schemes are for comparison and run the same code in every mode, so fewer runs suffice.
MAIN = ("dense", "dense_ordered", "zen", "auto")
# psum sums in any order, the others in worker order, sparcml in the order of its tree.
WORKER_ORDER_SCHEMES = tuple(scheme for scheme in SCHEMES if scheme != "dense")
# Under these, custom calls do all additions, and keep subnormals.
KERNELS_ADD = ("zen", "auto", "agsparse", "omnireduce", "sparse_ps")
SUM = {scheme: oracle.recursive_doubling if scheme == "sparcml" else oracle.ordered_sum for scheme in SCHEMES}
OPTIONS = {
    "element": {"unit": "element"},
    "row": {"unit": "row"},
    "two columns": {"unit": 2},
    "murmur": {"hash": "murmur"},
    "murmur by element": {"hash": "murmur", "unit": "element"},
    "another seed": {"seed": 2**32 - 1},
    "another seed, COO pull": {"seed": 9, "pull_format": "coo", "unit": "element"},
    "another seed, bitmap pull": {"seed": 9, "pull_format": "bitmap"},
    "another seed, murmur": {"seed": 9, "hash": "murmur", "unit": "element"},
    "room for one": {"capacity": 1, "unit": "element"},
    "room for a few": {"capacity": (3, 5)},
    "more room than units": {"capacity": (1000, 1000)},
    "murmur without room": {"hash": "murmur", "capacity": 1, "unit": "element"},
    "others pull": {"pull_format": "others"},
    "another seed, others pull, room for a few": {
        "seed": 9,
        "pull_format": "others",
        "unit": "element",
        "capacity": (3, 5),
    },
    "bitmap pull": {"pull_format": "bitmap", "unit": "element"},
    "bitmap push, COO pull": {"push_format": "bitmap", "pull_format": "coo"},
    "the smaller push, dense pull": {"push_format": "auto", "pull_format": "dense", "capacity": (3, 5), "unit": 2},
    "murmur, bitmap push": {"hash": "murmur", "push_format": "bitmap", "unit": "element"},
    "murmur, bitmap pull": {"hash": "murmur", "pull_format": "bitmap", "unit": "element"},
    "murmur, COO pull": {"hash": "murmur", "pull_format": "coo", "unit": 2},
    "murmur, dense pull": {"hash": "murmur", "pull_format": "dense", "capacity": (None, 5)},
}
ROOM = {  # for the schemes without formats and hashes
    "agsparse": {"capacity": 3, "unit": "element"},
    "sparcml": {"capacity": (3, None, 1, 50), "unit": 2},
    "omnireduce": {"capacity": (None, 1)},
    "sparse_ps": {"capacity": (2, 3), "unit": "element"},
}


def check(mode, n, stack, expected, name, same=assert_same_bits, **options):
    """Every worker's result has the expected bits, in two runs."""
    run = harness.all_reduce(mode, n, **options)
    results = np.asarray(run(stack))
    same(results[0], expected, name)
    for worker in range(1, n):
        assert_same_bits(results[worker], results[0], f"{name}: worker {worker}")
    assert_same_bits(np.asarray(run(stack)), results, f"{name}: rerun")


@pytest.mark.parametrize(
    "mode,n,scheme",
    [
        (mode, n, scheme)
        for mode, n, scheme in itertools.product(harness.MODES, WORKERS, SCHEMES)
        if (mode == "vmap" or n in (1, 3, 8))
        and (scheme == "auto" if n == 1 else scheme in MAIN or (n, mode) in ((2, "vmap"), (8, "vmap")))
    ],
)
def test_integers_equal_psum_bitwise(mode, n, scheme):
    psum = harness.psum(mode, n)
    for name, stack in structured(n, (31, 4)).items():
        expected = np.asarray(psum(stack))[0]
        assert_same_bits(expected, stack.sum(axis=0))
        check(mode, n, stack, expected, name, scheme=scheme, op="sum")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_gradient_that_vmap_knows_to_be_the_same_everywhere(scheme):
    gradient = jnp.zeros(40).at[3].set(2.0)
    run = jax.jit(jax.vmap(lambda _: zen.all_reduce(gradient, "w", scheme=scheme, op="sum"), axis_name="w"))
    reduced = run(jnp.zeros(4))
    np.testing.assert_array_equal(reduced, np.tile(4 * gradient, (4, 1)))


@pytest.mark.parametrize("scheme", ["zen", "auto", "sparcml"])
def test_many_workers(scheme):
    n = 33
    stack = structured(n, (31, 4))["sparse elements"]
    check("vmap", n, stack, stack.sum(axis=0), scheme, scheme=scheme, op="sum")


def check_means(mode, n, scheme):
    """Integers match pmean, which multiplies by the reciprocal of n once compiled; floats match NumPy's ordered sum.

    Adding zeros changes no bit, so all but sparcml equal dense_ordered.
    """
    pmean = harness.psum(mode, n, "mean")
    for name, stack in structured(n, (31, 4)).items():
        check(mode, n, stack, np.asarray(pmean(stack))[0], name, scheme=scheme)
    for name, stack in structured(n, (31, 4), integers=False).items():
        same = functools.partial(assert_close, stack) if scheme == "dense" else assert_same_bits
        check(mode, n, stack, SUM[scheme](stack, n), name, same, scheme=scheme)


@pytest.mark.parametrize(
    "n,scheme",
    [
        (n, scheme)
        for n, scheme in itertools.product(WORKERS, SCHEMES)
        if (scheme == "auto" if n == 1 else scheme in MAIN or n in (3, 7, 8))
    ],
)
def test_means(n, scheme):
    check_means("vmap", n, scheme)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("mode", harness.MODES[1:])
def test_means_on_devices(mode, scheme):
    check_means(mode, 3, scheme)


@pytest.mark.parametrize("n", [1, 3, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape, n):
    """From scalars and empty tensors to three dimensions."""
    every = n == 3 and shape in ((), (127,), (5, 3, 2))
    for scheme in ("auto",) if n == 1 or 0 in shape else SCHEMES if every else MAIN:
        for name in ("all zero",) if 0 in shape else ("all zero", "all dense", "sparse elements"):
            stack = structured(n, shape)[name]
            check("vmap", n, stack, stack.sum(axis=0), f"{scheme}, {name}", scheme=scheme, op="sum")


@pytest.mark.parametrize("n,shape", [(1, (31, 4)), (3, (3, 0))])
def test_one_worker_or_nothing_to_send_takes_no_scheme(n, shape):
    """So tests of these cases under one scheme hold for all."""
    traced = lambda scheme: jax.make_jaxpr(
        lambda x: zen.all_reduce(x, harness.AXIS, scheme=scheme), axis_env=[(harness.AXIS, n)]
    )(np.zeros(shape, np.float32))
    assert len({str(traced(scheme)) for scheme in SCHEMES}) == 1


def assert_close(stack, actual, expected, message=""):
    """Equal up to the order of summation."""
    bound = np.abs(stack.astype(np.float64)).sum(axis=0) * len(stack) * np.finfo(np.float32).eps
    assert (np.abs(actual.astype(np.float64) - expected) <= bound).all(), message


@pytest.mark.parametrize("n", [3, 8])
@pytest.mark.parametrize("label", OPTIONS)
def test_options_change_no_bit(label, n):
    """Unit, hash, seed, capacity and formats decide what travels, never what arrives, even when room is short."""
    formats = {"push_format", "pull_format"} & set(OPTIONS[label])
    for scheme in ("zen" if n == 8 else "auto",) if formats else ("zen", "auto"):
        for name, stack in structured(n, (31, 4), integers=False).items():
            check("vmap", n, stack, oracle.ordered_sum(stack), name, scheme=scheme, op="sum", **OPTIONS[label])
        check_special(n, np.float32, scheme=scheme, **OPTIONS[label])


def check_special(n, kind, **options):
    """Sums of NaN, infinities and -0.0, and sums that overflow; a processor may flush subnormals when it adds.

    Where it does, workers still agree.
    """
    for name, stack in special(n, (31, 4), kind).items():
        same = (lambda *_: None) if name == "subnormals" else assert_same_values
        check("vmap", n, stack, oracle.ordered_sum(stack), name, same, op="sum", **options)


@pytest.mark.parametrize(
    "label",
    [
        "bitmap push, COO pull",
        "the smaller push, dense pull",
        "murmur without room",
        "murmur, bitmap pull",
        "others pull",
    ],
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_options_for_other_dtypes(dtype, label):
    """Each format once, and each hash."""
    n, options = 3, {"scheme": "zen", **OPTIONS[label]}
    with jax.enable_x64(dtype == "float64"):
        check_special(n, FLOATS[dtype], **options)
        for name, stack in structured(n, (31, 4), FLOATS[dtype], integers=False).items():
            check("vmap", n, stack, oracle.ordered_sum(stack), name, op="sum", **options)


@pytest.mark.parametrize("mode", harness.MODES[1:])
def test_options_on_devices(mode):
    n = 4
    stack = structured(n, (31, 4), integers=False)["sparse elements"]
    of_each_kind = "two columns", "murmur without room", "room for a few", "bitmap pull", "others pull"
    for label in (*of_each_kind, "the smaller push, dense pull"):
        check(mode, n, stack, oracle.ordered_sum(stack), label, scheme="zen", op="sum", **OPTIONS[label])


@pytest.mark.parametrize("scheme", ROOM)
def test_room_changes_no_bit(scheme):
    n = 6
    for name, stack in structured(n, (31, 40), integers=False).items():
        check("vmap", n, stack, SUM[scheme](stack), name, scheme=scheme, op="sum", **ROOM[scheme])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_dtypes_and_special_values(dtype, scheme):
    """NaN and infinities travel, -0.0 counts as zero, 16-bit floats add in float32 and round (and overflow) once."""
    n, shape, kind = 3, (31, 4), FLOATS[dtype]
    # In float32 the subnormals of float16 are normal numbers.
    exact = dtype == "float16" or (scheme in KERNELS_ADD and zen.backend_info()["cpu"].startswith("custom calls"))
    with jax.enable_x64(dtype == "float64"):
        for op, divisor in (("sum", 1), ("mean", n)) if scheme in MAIN else (("mean", n),):
            for name, stack in special(n, shape, kind).items():
                expected = SUM[scheme](stack, divisor)
                same = assert_close_or_special if scheme == "dense" else assert_same_values
                same = assert_same_but_subnormals if name == "subnormals" and not exact else same
                check("vmap", n, stack, expected, name, same, scheme=scheme, op=op)
            stack = sparse(np.random.default_rng(0), n, shape, 0.4, kind, integers=False)
            expected = SUM[scheme](stack, divisor)
            narrow = np.dtype(kind).itemsize == 2
            same = assert_close_or_special if scheme == "dense" and not narrow else assert_same_bits
            check("vmap", n, stack, expected, "random", same, scheme=scheme, op=op)


def assert_close_or_special(actual, expected, message=""):
    """Equal up to the order of summation; 16-bit floats have one order under every scheme."""
    eps = 8 * float(np.finfo(actual.dtype).eps) if actual.dtype.itemsize > 2 else 0
    np.testing.assert_allclose(actual.astype(np.float64), expected.astype(np.float64), eps, eps, err_msg=message)


def assert_same_but_subnormals(actual, expected, message=""):
    """XLA may flush subnormals when it adds, and nothing else."""
    smallest = 2.0**-126 if actual.dtype != np.float64 else 2.0**-1022
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_allclose(actual, expected, 1e-6, 2 * smallest, err_msg=message)


def test_negative_zero_counts_as_zero():
    """No scheme that sums in order gives -0.0, so zen and its dense fallback agree even in the signs of zeros."""
    stack = np.full((3, 31, 4), -0.0, np.float32)
    for scheme in WORKER_ORDER_SCHEMES:
        check("vmap", 3, stack, np.zeros((31, 4), np.float32), scheme, scheme=scheme)


@pytest.mark.parametrize("options", [{"unit": "row"}, {"unit": "element"}, {"push_format": "bitmap"}], ids=str)
def test_a_mean_that_underflows_is_not_negative(options):
    """Whether another element of its unit is non-zero makes no difference to its sign."""
    stack = np.zeros((4, 31, 4), np.float16)
    stack[0, 3, :2] = -6e-8, 4
    stack[1, 9, 0] = -6e-8
    expected = np.zeros((31, 4), np.float16)
    expected[3, 1] = 1
    for scheme in ("zen", "auto") if "push_format" in options else WORKER_ORDER_SCHEMES:
        check("vmap", 4, stack, expected, scheme, scheme=scheme, **options)


@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme != "sparcml"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_floats_travel_in_16_bits(dtype, scheme):
    """XLA widens bfloat16 collectives on CPUs; only sparcml sends partial sums, which are float32."""
    worker = functools.partial(zen.all_reduce, axis_name=harness.AXIS, scheme=scheme)
    step = harness.spmd(worker, "shard_map", 3)
    program = step.lower(jax.ShapeDtypeStruct((3, 31, 4), FLOATS[dtype])).compile().as_text()
    collectives = [line.split("metadata")[0] for line in program.splitlines() if " all-" in line]
    assert any("all-gather(" in line for line in collectives)
    assert not [line for line in collectives if "f32[" in line]


def test_float16_rounds_once():
    """2048 + 1 + 1 is 2050 in float32 and 2048 when each step rounds; 65504 + 65504 overflows only on the way."""
    stack = np.zeros((3, 31, 4), np.float16)
    stack[:, 3, 1] = [2048, 1, 1]
    stack[:, 30, 3] = [65504, 65504, -65504]
    expected = np.zeros((31, 4), np.float16)
    expected[3, 1], expected[30, 3] = 2050, 65504
    for scheme in SCHEMES:
        check("vmap", 3, stack, expected, scheme, scheme=scheme, op="sum")


@pytest.mark.parametrize("n", [2, 7])
@given(seed=st.integers(0, 2**32 - 1), density=st.floats(0, 1), by_row=st.booleans())
def test_any_gradient(n, seed, density, by_row):
    stack = sparse(np.random.default_rng(seed), n, (31, 4), density, integers=False, by_row=by_row)
    for scheme in ("zen", "auto") if n == 2 else WORKER_ORDER_SCHEMES:
        check("vmap", n, stack, SUM[scheme](stack, n), scheme, scheme=scheme)


@pytest.mark.parametrize(
    "units,options",
    [(2**31 + 8, {"scheme": scheme}) for scheme in (*MAIN, "omnireduce")]
    + [(2**31 + 8, {"hash": "murmur"}), (2**31 + 8, {"pull_format": "coo"}), (2**32 + 8, {})],
)
@pytest.mark.parametrize("capacity", [9, None])
def test_more_units_than_32_bits_name(units, options, capacity):
    """Each server numbers its own; if those are too many, or all need numbers, auto goes dense. Traced, never run."""
    worker = lambda x: zen.all_reduce(x, harness.AXIS, unit="element", capacity=capacity, return_info=True, **options)
    stack = jax.ShapeDtypeStruct((2, units), jnp.float32)
    reduced, info = jax.eval_shape(jax.vmap(worker, axis_name=harness.AXIS), stack)
    assert reduced.shape == (2, units) and info.density.shape == (2,)


# --- under shard_map, jit and tuples of axes --------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_more_bytes_than_32_bits_count(scheme):
    reduce = functools.partial(zen.all_reduce, axis_name=harness.AXIS, scheme=scheme, return_info=True)
    huge = jax.ShapeDtypeStruct((3, 1_500_000_000), jnp.float32)
    reduced, _ = jax.eval_shape(jax.vmap(reduce, axis_name=harness.AXIS), huge)
    assert reduced.shape == huge.shape


# Every kind of collective that ends a scheme.
ENDS = [{"scheme": scheme} for scheme in SCHEMES]
ENDS += [{"scheme": scheme, "pull_format": "others"} for scheme in ("zen", "auto")]


def test_result_counts_as_replicated():
    """check_vma accepts the result wherever it accepts psum's: out_specs=P(), no pcast."""
    n = 4
    stack = structured(n, (31, 4))["sparse rows"]
    spec = jax.sharding.PartitionSpec
    for options in ENDS:
        mapped = jax.shard_map(
            lambda x, options=options: zen.all_reduce(x[0], harness.AXIS, op="sum", return_info=True, **options),
            mesh=harness.mesh(n),
            in_specs=spec(harness.AXIS),
            out_specs=spec(),
        )
        reduced, info = jax.jit(mapped)(stack)
        assert_same_bits(reduced, stack.sum(axis=0), options)
        assert float(info.bytes_dense) > 0


def test_result_counts_as_one_under_vmap():
    stack = structured(4, (31, 4))["sparse rows"]
    for options in ENDS:
        worker = lambda x, options=options: zen.all_reduce(x, harness.AXIS, op="sum", **options)
        reduced = jax.jit(jax.vmap(worker, axis_name=harness.AXIS, out_axes=None))(stack)
        assert_same_bits(reduced, stack.sum(axis=0), options)


def test_derivative_of_a_dense_sum():
    """The same as psum's, also at zeros, though these lose their sign."""
    total = lambda x: jax.vmap(
        lambda x: zen.all_reduce(x, harness.AXIS, op="sum", scheme="dense_ordered"), axis_name=harness.AXIS
    )(x).sum()
    np.testing.assert_array_equal(jax.grad(total)(jnp.array([0.0, 0.0, -0.0, 0.0])), np.full(4, 4.0))


@pytest.mark.parametrize("scheme", ["dense", "dense_ordered"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("mode", harness.MODES)
def test_derivative_inside_a_worker(mode, dtype, scheme):
    """The same as psum's."""
    reductions = (functools.partial(zen.all_reduce, op="sum", scheme=scheme), jax.lax.psum)
    weights = jnp.arange(1, 4, dtype=jnp.float32)

    def derivative(x, reduce):
        return jax.grad(lambda x: jnp.sum(weights * reduce(x, harness.AXIS).astype(jnp.float32)))(x)

    stack = jnp.ones((4, 3), dtype)
    actual, expected = (
        harness.spmd(functools.partial(derivative, reduce=reduce), mode, 4)(stack) for reduce in reductions
    )
    assert expected.any()
    np.testing.assert_array_equal(actual, expected)


def test_no_tracer_leaks():
    stack = structured(2, (31, 4))["sparse rows"]
    for scheme in SCHEMES:
        worker = lambda x, scheme=scheme: zen.all_reduce(x, harness.AXIS, scheme=scheme)
        with jax.checking_leaks():
            harness.spmd(worker, "vmap", 2).lower(stack)


@pytest.mark.parametrize("axes", [("hosts", "cores"), ("cores", "hosts")])
@pytest.mark.parametrize("check_vma", [True, False])
def test_several_axes(check_vma, axes):
    """A tuple of axes is one axis, with workers numbered in its own row-major order, whatever the order of the mesh."""
    stack = structured(6, (31, 4), integers=False)["sparse rows"]
    mesh = harness.mesh((2, 3), ("hosts", "cores"))
    spec = jax.sharding.PartitionSpec(axes)
    for scheme in ("zen", "dense_ordered", "sparcml"):
        worker = lambda x, scheme=scheme: zen.all_reduce(x[0], axes, scheme=scheme, op="sum")[None]
        mapped = jax.shard_map(worker, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma)
        for result in np.asarray(jax.jit(mapped)(stack)):
            assert_same_bits(result, SUM[scheme](stack), scheme)


@pytest.mark.parametrize(
    "options",
    [{}, {"scheme": "zen"}, {"scheme": "zen", "pull_format": "others"}, {"scheme": "agsparse"}, {"scheme": "sparcml"}],
    ids=str,
)
def test_another_batch_axis(options):
    """vmap over an axis that is not a workers' axis: all branches run, also with messages that have no room."""
    n = 4
    stacks = np.stack([structured(n, (31, 40))[name] for name in ("all zero", "sparse rows", "all dense")])
    worker = lambda x: zen.all_reduce(x, harness.AXIS, op="sum", unit="element", capacity=1, **options)
    reduced = jax.jit(jax.vmap(jax.vmap(worker, axis_name=harness.AXIS)))(stacks)
    for stack, result in zip(stacks, np.asarray(reduced), strict=True):
        for worker in range(n):
            assert_same_bits(result[worker], stack.sum(axis=0))


@pytest.mark.parametrize("pull_format", PULL_FORMATS)
def test_what_a_plan_expects_goes_along_with_the_header(pull_format):
    """A pull is then one collective; the others are in branches for shards that exceed the plan."""
    pulling = "all_to_all" if pull_format == "others" else "all_gather"

    def pulls(capacity):
        options = {"scheme": "zen", "unit": "row", "capacity": capacity, "pull_format": pull_format}
        reduce = lambda x: zen.all_reduce(x, harness.AXIS, **options)
        traced = jax.make_jaxpr(reduce, axis_env=[(harness.AXIS, 4)])(jnp.zeros((500, 8)))
        return sum(equation.primitive.name == pulling for equation in traced.jaxpr.eqns)

    agreement, header, dense = pulling == "all_gather", 1, pull_format == "dense"
    assert pulls((9, 9)) == agreement + header + dense
    assert pulls(None) == (pulling == "all_to_all") + agreement + header + dense  # so few units that there is one size
    n, stack = 4, structured(4, (500, 8))["sparse rows"]
    for capacity in ((9, 1), (9, 3), (9, 500)):
        options = {"scheme": "zen", "unit": "row", "capacity": capacity, "pull_format": pull_format}
        reduced = harness.all_reduce("vmap", n, op="sum", **options)(stack)
        assert_same_bits(reduced[0], stack.sum(axis=0))
