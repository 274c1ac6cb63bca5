"""`autotune`: profiles the first steps, plans once, compiles twice, changes no bit, and agrees among processes."""

import harness
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from cases import assert_same_bits, sparse

import zen_jax as zen
from zen_jax import agreement
from zen_jax.planning import autotune
from zen_jax.planning.plan import WORKER_ORDER_SCHEMES

N = 4
RNG = np.random.default_rng(0)
SLOW = zen.Cluster(N, inter_gbps=0.1)
# Just above 1 MiB, and rows of an odd length, which are profiled at few widths: that compiles faster.
TABLE, HEAD = (8192, 33), (8200, 33)

pytestmark = [pytest.mark.promoting, pytest.mark.usefixtures("coarse_ladder")]


def test_autotune_compiles_twice_and_changes_no_bit():
    made, traced = [], []
    table = {
        "table": sparse(RNG, N, TABLE, 0.02, integers=False),
        "bias": sparse(RNG, N, (64,), 1.0, integers=False),
    }

    def make_step(plan):
        made.append(plan)
        transform = zen.synchronize(harness.AXIS, plan=plan)

        def worker(gradients):
            traced.append(plan)
            return transform.update(gradients, None)

        return harness.spmd(worker, "shard_map", N)

    step = zen.autotune(make_step, cluster=SLOW, steps=2)
    for scale in range(1, 6):
        gradients = jax.tree.map(lambda g: scale * g, table)  # noqa: B023
        updates, state = step(gradients)
        assert (step.plan is None) == (scale <= 2)
        for name, stack in gradients.items():
            for worker in range(N):
                assert_same_bits(updates[name][worker], oracle.ordered_sum(stack, N), name)
        # The same names before and after planning, or the planned step would compile for each.
        assert set(optax.tree.get(state, "info")) == {"table", "(fused)"}
    assert len(made) == 2
    assert len(set(map(id, traced))) == len(traced) == 2
    assert made[1] is step.plan
    assert step.profile.steps == 2
    assert step.plan.leaves["table"].scheme in set(WORKER_ORDER_SCHEMES) - {"dense_ordered"}
    assert float(optax.tree.get(state, "info")["table"].rounds[0]) == 1
    jax.eval_shape(step, table)  # with its plan, it may be part of a larger program
    # Gradients that outgrow the plan are noticed, and lose nothing.
    drifted = table | {"table": sparse(np.random.default_rng(1), N, TABLE, 0.15, integers=False)}
    updates, state = step(drifted)
    assert_same_bits(updates["table"][0], oracle.ordered_sum(drifted["table"], N))
    assert float(optax.tree.get(state, "info")["table"].rounds[0]) > 1


def test_steps_that_overflow_tell_nothing():
    """As those do that find a loss scale: all NaN on some worker, they would pass for dense ones."""
    sparse_step = sparse(RNG, N, (1 << 18,), 0.02, integers=False)  # as many elements as are counted without a sample
    overflow = jnp.asarray(sparse_step).at[1].set(jnp.nan)

    def make_step(plan):
        transform = zen.synchronize(harness.AXIS, plan=plan)
        return harness.spmd(lambda g: transform.update(g, None)[0], "vmap", N)

    profiles = []
    for steps in ([sparse_step] * 3, [overflow, sparse_step, overflow, sparse_step, sparse_step], [overflow] * 17):
        step = zen.autotune(make_step, cluster=SLOW, steps=2)
        for number, gradient in enumerate(steps):
            assert step.plan is None
            if number == 1:  # a call that fails on one process alone must not let it plan later than the others
                with pytest.raises(TypeError):
                    step("not a gradient")
            step(gradient)
        assert step.plan is not None
        profiles.append(step.profile.leaves)
    assert profiles[0] == profiles[1] == zen.profile(overflow, sparse_step).leaves
    assert step.plan.leaves["(array)"].scheme == "dense_ordered"


def test_autotune_with_value_and_grad():
    """The other way to synchronise: under jit over a mesh, with the plan passed to value_and_grad."""
    table, words = jnp.ones(TABLE), jnp.arange(N * 10)
    loss = lambda table, words: jnp.mean(table[words] ** 2)
    mesh = harness.mesh(N, "data")
    step = zen.autotune(lambda plan: jax.jit(zen.value_and_grad(loss, mesh=mesh, plan=plan)), cluster=SLOW, steps=1)
    for _ in range(2):
        value, gradient = step(table, words)
        expected_value, expected = jax.value_and_grad(loss)(table, words)
        np.testing.assert_allclose(value, expected_value)
        np.testing.assert_allclose(gradient, expected, 1e-6)
    assert step.plan.leaves["(array)"].capacity is not None


def test_autotune_refuses():
    with pytest.raises(ValueError, match="steps=0"):
        zen.autotune(lambda plan: None, cluster=SLOW, steps=0)
    with pytest.raises(ValueError, match="make_step=None must be a function"):
        zen.autotune(None, cluster=SLOW)
    for step in (lambda params, batch: params, jax.jit(lambda params: params)):
        with pytest.raises(TypeError) as refused:
            zen.autotune(step, cluster=SLOW)
        assert "calls make_step with a plan" in refused.value.__notes__[-1]
    with pytest.raises(ValueError, match="make_step returned None, but must return the step"):
        zen.autotune(lambda plan: None, cluster=SLOW)
    with pytest.raises(ValueError, match="inside jit or scan"):
        jax.jit(zen.autotune(lambda plan: lambda x: x, cluster=SLOW))(1)
    closes_over_all = zen.autotune(lambda plan: lambda: jnp.ones(1), cluster=SLOW)
    for inside in (
        jax.jit(closes_over_all),
        lambda: jax.eval_shape(closes_over_all),
        lambda: jax.lax.scan(lambda carry, _: (carry, closes_over_all()), 0, None, length=2),
    ):
        with pytest.raises(ValueError, match="inside jit or scan"):
            inside()
    with jax.transfer_guard("disallow"):
        assert zen.autotune(lambda plan: lambda: 1, cluster=SLOW)() == 1
    ignores = zen.autotune(lambda plan: lambda x: x, cluster=SLOW, steps=1)
    assert ignores(1) == 1
    for _ in range(2):
        with pytest.raises(ValueError, match="no step"):
            ignores(1)


def test_autotune_starts_anew_after_a_first_call_that_fails():
    """What it traced would be waited for, and its shapes held against the calls that follow."""
    gradients = sparse(RNG, N, TABLE, 0.02, integers=False)

    def make_step(plan):
        transform = zen.synchronize(harness.AXIS, plan=plan)

        def worker(gradients):
            updates, _ = transform.update(gradients, None)
            if "extra" in gradients:
                raise RuntimeError("out of paper")
            return updates

        return harness.spmd(worker, "vmap", N)

    step = zen.autotune(make_step, cluster=SLOW, steps=2)
    with pytest.raises(RuntimeError, match="out of paper"):
        step({"table": gradients[:, 1:], "extra": gradients})
    for _ in range(3):
        step({"table": gradients})
    assert list(step.plan.leaves) == ["table"]


def synchronizing_every_third(plan):
    transform = zen.synchronize(harness.AXIS, plan=plan, dense_below=0)

    def worker(gradients, number):
        return jax.lax.cond(number % 3 == 2, lambda g: transform.update(g, None)[0], lambda g: g, gradients)

    return jax.jit(jax.vmap(worker, (0, None), axis_name=harness.AXIS), donate_argnums=0)


def test_autotune_counts_the_steps_that_were_seen(monkeypatch):
    """Not the calls; if planning fails, no result is lost, nothing is donated, and the next call tries again."""
    table, plan = sparse(RNG, N, (64, 8), 0.1), autotune.plan
    step = zen.autotune(synchronizing_every_third, cluster=SLOW, steps=2)

    def run(number):
        reduced = step(jnp.asarray(table), number)
        for worker in range(N):
            expected = oracle.ordered_sum(table, N) if number % 3 == 2 else table[worker]
            assert_same_bits(reduced[worker], expected)

    def fail(*_, **__):
        raise ValueError("planning failed")

    monkeypatch.setattr(autotune, "plan", fail)
    for number in range(6):
        run(number)
    gradients = jnp.asarray(table)
    with pytest.raises(ValueError, match="planning failed"):
        step(gradients, 6)
    assert (step.profile, step.plan) == (None, None) and not gradients.is_deleted()
    monkeypatch.setattr(autotune, "plan", plan)
    for number in range(6, 9):
        run(number)
    assert step.profile.steps == 2 and set(step.plan.leaves) == {"(array)"}


def test_autotune_waits_no_longer_for_leaves_that_are_frozen():
    """Synchronised once, and in no later call: the plan has what was seen, and serves calls with and without them."""
    gradients = {"table": sparse(RNG, N, TABLE, 0.02), "head": sparse(RNG, N, HEAD, 0.02)}
    table = {"table": gradients["table"]}

    def make_step(plan):
        transform = zen.synchronize(harness.AXIS, plan=plan)
        return harness.spmd(lambda g: transform.update(g, None)[0], "vmap", N)

    step = zen.autotune(make_step, cluster=SLOW, steps=2)
    calls = [gradients, *[table] * (autotune.PATIENCE * 2 - 1)]
    for given in calls:
        step(given)
        assert step.plan is None
    for given in (table, gradients):
        for name, reduced in step(given).items():
            assert_same_bits(reduced[0], oracle.ordered_sum(given[name], N), name)
    assert step.profile.steps == 1
    assert all(leaf.scheme not in ("dense", "dense_ordered") for leaf in step.plan.leaves.values())


def test_autotune_waits_no_longer_for_leaves_that_no_call_synchronises():
    """They go dense, if ever."""
    often, rare = sparse(RNG, N, (64, 8), 0.1), sparse(RNG, N, (64, 4), 0.1)

    def make_step(plan):
        transform = zen.synchronize(harness.AXIS, plan=plan, dense_below=0)
        synchronized = lambda g: transform.update(g, None)[0]

        def worker(often, rare, number):
            return synchronized({"often": often}), jax.lax.cond(number < 0, synchronized, lambda g: g, {"rare": rare})

        return jax.jit(jax.vmap(worker, (0, 0, None), axis_name=harness.AXIS))

    step = zen.autotune(make_step, cluster=SLOW, steps=1)
    for number in range(autotune.PATIENCE):
        step(often, rare, number)
        assert step.plan is None
    for number in (0, -1):
        reduced = step(often, rare, number)[1]["rare"]
        for worker in range(N):
            assert_same_bits(reduced[worker], rare[worker] if number == 0 else oracle.ordered_sum(rare, N))
    assert step.plan.leaves["rare"].scheme == "dense_ordered"


def test_processes_compare_their_plans(monkeypatch):
    """Messages of different sizes would leave processes waiting for each other."""
    compared = []
    monkeypatch.setattr(autotune, "check_agreement", lambda **what: compared.append(what))

    def make_step(plan):
        transform = zen.synchronize(harness.AXIS, plan=plan)
        return harness.spmd(lambda g: transform.update(g, None)[0], "vmap", N)

    step = zen.autotune(make_step, cluster=SLOW, steps=1)
    step(jnp.ones((N, 5)))
    assert [set(what) for what in compared] == [{"cluster", "steps", "schemes"}]
    step(jnp.ones((N, 5)))
    assert compared[1:] == [{"plan": step.plan}]


def test_autotune_among_processes_that_disagree(monkeypatch):
    """Detected in the first call, before a step runs; a single process asks nobody."""
    ran = []

    def gather(text):
        assert jax.process_count() == 2
        return [text, text.replace(b'"0.1"', b'"25.0"') if text.startswith(b"{") else b"another digest"]

    monkeypatch.setattr(agreement, "_gather", gather)
    zen.autotune(lambda plan: ran.append, cluster=SLOW)(1)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    step = zen.autotune(lambda plan: ran.append, cluster=SLOW)
    with pytest.raises(ValueError, match=r"cluster/inter_gbps is 0\.1 on process 0, but 25\.0 on process 1"):
        step(2)
    assert ran == [1]
