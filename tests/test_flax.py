"""One training step in Flax NNX and in Linen gives what pmean gives."""

import flax.linen as nn
import harness
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import PartitionSpec

import zen_jax as zen

N = 4
VOCABULARY = 61
TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, (N, 3, 5)).astype(np.int32)

pytestmark = pytest.mark.promoting

PMEAN = optax.stateless(lambda updates, _: jax.lax.pmean(updates, harness.AXIS))


def loss_of(logits, tokens):
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, tokens))


def assert_same_step(ours, theirs):
    """Equal to pmean's step, and bitwise equal on every worker."""
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (np.asarray(a) == np.asarray(a)[:1]).all()
        np.testing.assert_allclose(a, b, 1e-5, 1e-7)


class LinenModel(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        return nn.Dense(VOCABULARY)(nn.Embed(VOCABULARY, 8)(tokens))


@pytest.mark.parametrize("mode", harness.MODES)
def test_linen(mode):
    model = LinenModel()
    params = model.init(jax.random.key(0), TOKENS[0])

    def train(transform):
        def worker(tokens):
            state = TrainState.create(apply_fn=model.apply, params=local(params, mode), tx=transform)
            gradients = jax.grad(lambda p: loss_of(state.apply_fn(p, tokens), tokens))(state.params)
            return state.apply_gradients(grads=gradients).params

        return harness.spmd(worker, mode, N)(TOKENS)

    assert_same_step(
        train(optax.chain(zen.synchronize(harness.AXIS, dense_below=0), optax.sgd(0.5))),
        train(optax.chain(PMEAN, optax.sgd(0.5))),
    )


def local(params, mode):
    """Parameters that vary over workers, so that check_vma does not make jax.grad sum over them."""
    return jax.lax.pcast(params, harness.AXIS, to="varying") if mode == "shard_map" else params


class NnxModel(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(VOCABULARY, 8, rngs=rngs)
        self.out = nnx.Linear(8, VOCABULARY, rngs=rngs)

    def __call__(self, tokens):
        return self.out(self.embed(tokens))


def test_nnx_optimizer_in_the_worker():
    """nnx.Optimizer with zen.synchronize in its chain."""

    def train(transform):
        def worker(tokens):
            model = NnxModel(nnx.Rngs(0))
            optimizer = nnx.Optimizer(model, transform, wrt=nnx.Param)
            gradients = nnx.grad(lambda m: loss_of(m(tokens), tokens))(model)
            optimizer.update(model, gradients)
            return nnx.to_pure_dict(nnx.state(model, nnx.Param))

        return harness.spmd(worker, "vmap", N)(TOKENS)

    seen, transform = [], zen.synchronize(harness.AXIS, dense_below=0)

    def watched(updates, state, params=None):
        updates, state = transform.update(updates, state, params)
        seen.append(set(state.info))
        return updates, state

    watching = optax.GradientTransformation(transform.init, watched)
    assert_same_step(train(optax.chain(watching, optax.sgd(0.5))), train(optax.chain(PMEAN, optax.sgd(0.5))))
    assert {"embed/embedding", "out/bias", "out/kernel"} in seen  # and none is mistaken for a leaf to fuse


def test_nnx_step_in_place():
    """nnx.shard_map and nnx.jit around a step that changes model and optimizer."""

    def train(transform):
        model = NnxModel(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, transform, wrt=nnx.Param)

        def step(model, optimizer, tokens):
            gradients = nnx.grad(lambda m: loss_of(m(tokens), tokens))(model)
            optimizer.update(model, gradients)

        specs = {"in_specs": (PartitionSpec(), PartitionSpec(), PartitionSpec(harness.AXIS)), "out_specs": None}
        run = nnx.jit(nnx.shard_map(step, mesh=harness.mesh(N), check_vma=False, **specs))
        for _ in range(2):
            run(model, optimizer, TOKENS.reshape(-1, TOKENS.shape[-1]))
        return jax.tree.map(lambda x: np.stack([shard.data for shard in x.addressable_shards]), nnx.state(model))

    ours = train(optax.chain(zen.synchronize(harness.AXIS, dense_below=0), optax.sgd(0.5, momentum=0.9)))
    assert_same_step(ours, train(optax.chain(PMEAN, optax.sgd(0.5, momentum=0.9))))


def test_nnx_step_under_autotune():
    """The guide's way: an nnx.Optimizer would keep the transformation that it was made with."""
    model = NnxModel(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.5), wrt=nnx.Param)

    def make_step(plan):
        transform = zen.synchronize(harness.AXIS, plan=plan)

        def step(model, optimizer, tokens):
            gradients = nnx.grad(lambda m: loss_of(m(tokens), tokens))(model)
            gradients, _ = transform.update(gradients, None)
            optimizer.update(model, gradients)

        specs = {"in_specs": (PartitionSpec(), PartitionSpec(), PartitionSpec(harness.AXIS)), "out_specs": None}
        return nnx.jit(nnx.shard_map(step, mesh=harness.mesh(N), check_vma=False, **specs))

    step = zen.autotune(make_step, cluster=zen.Cluster(N), steps=1)
    for _ in range(2):
        step(model, optimizer, TOKENS.reshape(-1, TOKENS.shape[-1]))
    assert step.plan is not None and "embed/embedding" in step.plan.leaves
    shards = jax.tree.map(lambda x: np.stack([shard.data for shard in x.addressable_shards]), nnx.state(model))
    assert all((leaf == leaf[:1]).all() for leaf in jax.tree.leaves(shards))


def test_nnx_value_and_grad_under_jit():
    """zen.value_and_grad on the state of an NNX model, over a mesh."""
    model = NnxModel(nnx.Rngs(0))
    graph, params = nnx.split(model, nnx.Param)

    def loss(params, tokens):
        return loss_of(nnx.merge(graph, params)(tokens), tokens)

    batch = TOKENS.reshape(-1, TOKENS.shape[-1])
    value, gradients = jax.jit(zen.value_and_grad(loss, mesh=harness.mesh(N, "data"), scheme="zen", dense_below=0))(
        params, batch
    )
    expected_value, expected = jax.value_and_grad(loss)(params, batch)
    np.testing.assert_allclose(value, expected_value, 1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-7), gradients, expected)
    touched = oracle.is_nonzero(np.asarray(gradients["embed"]["embedding"][...]))
    np.testing.assert_array_equal(np.flatnonzero(touched), np.unique(TOKENS))
