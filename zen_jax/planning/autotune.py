"""`autotune`: a training step that profiles its first calls, makes a plan, and continues with it."""

from collections.abc import Callable, Collection
from typing import Any

from zen_jax import errors
from zen_jax.agreement import check_agreement
from zen_jax.planning.cluster import Cluster, check_cluster
from zen_jax.planning.plan import WORKER_ORDER_SCHEMES, Plan, candidate_schemes, plan
from zen_jax.planning.profiler import Profiler
from zen_jax.planning.sparsity import SparsityProfile

Step = Callable[..., Any]

PATIENCE = 8  # how many times `steps` other leaves are synchronised before rare ones are waited for no longer


class Autotuned:
    """The step that `autotune` makes. `profile` and `plan` are None until it has planned."""

    def __init__(
        self, make_step: Callable[[Plan | Profiler], Step], cluster: Cluster, steps: int, schemes: Collection[str]
    ) -> None:
        self.profile: SparsityProfile | None = None
        self.plan: Plan | None = None
        self._make_step, self._cluster, self._steps, self._schemes = make_step, cluster, steps, schemes
        self._calls = 0
        self._start()

    def _start(self) -> None:
        self._profiler = Profiler(self._cluster)
        self._step = self._made(self._profiler)

    def _made(self, plan: Plan | Profiler) -> Step:
        try:
            step = self._make_step(plan)
        except TypeError as error:  # among others, of a training step, or of jit, in place of make_step
            error.add_note(
                "zen_jax.autotune calls make_step with a plan, for it to build, compile and return the step."
            )
            raise
        if not callable(step):
            raise ValueError(f"make_step returned {step!r}, but must return the step, a function.")
        return step

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.plan is None and errors.is_traced(args, kwargs):
            raise ValueError(
                "the step from zen_jax.autotune was called inside jit or scan, where it would profile forever. Call it "
                "outside, and compile in make_step."
            )
        # Before the step: if this fails, no results are lost and no argument has been donated.
        if self._calls == 0:
            check_agreement(cluster=self._cluster, steps=self._steps, schemes=self._schemes)
        elif self.plan is None and self._calls >= self._steps and self._has_seen_enough():
            profile = self._profiler.profile(partial=True)
            planned = plan(profile, self._cluster, schemes=self._schemes)
            check_agreement(plan=planned)
            self._step, self.profile, self.plan = self._made(planned), profile, planned
        try:
            results = self._step(*args, **kwargs)
        except Exception:
            if self.plan is None and not self._profiler.most_steps:
                self._start()  # the profiler would wait forever for gradients of a step that was only traced
            raise
        self._calls += 1
        return results

    def _has_seen_enough(self) -> bool:
        """Whether to ask for a profile, also of a step that ignores its plan and will never have one.

        It depends only on what is equal on all processes, because all must plan in the same call.
        """
        rarest, most_often = self._profiler.steps, self._profiler.most_steps
        return rarest is None or rarest >= self._steps or most_often >= PATIENCE * self._steps


def autotune(
    make_step: Callable[[Plan | Profiler], Step],
    *,
    cluster: Cluster,
    steps: int = 4,
    schemes: Collection[str] = WORKER_ORDER_SCHEMES,
) -> Autotuned:
    """Profiles the first calls of a training step, makes a plan, and continues with it: two compilations in all.

    It plans in the call after those, before the step runs: if planning fails, no results are lost. Every process must
    make the same calls; all reach the same plan. If gradients outgrow the plan later, `info` shows it (`rounds` above
    1), and nothing is lost. If they become sparser, as during a `warmup_density`, their messages stay as large: tune
    afterwards.

    Args:
      make_step: a function from a plan to a step, compiled as you like; it passes the plan to `zen_jax.synchronize` or
        `zen_jax.value_and_grad` and does nothing else with it. Called twice, and again if the first call fails.
      cluster: the links, entered by hand or from `zen_jax.calibrate`.
      steps: calls to profile, not counting any that synchronise nothing (under `jax.lax.cond`) or whose gradients
        overflow, as while a loss scale is found. Leaves that fewer calls synchronise are waited for until others have
        been synchronised 8 times as often as that. A leaf that is frozen then is planned as it was seen; one that was
        never seen goes dense.
      schemes: as in `zen_jax.plan`.

    Returns:
      A step with the arguments and results of those that `make_step` makes, and with attributes `profile` and `plan`.

    Raises:
      ValueError: for steps below 1, a cluster that is none, schemes as in `zen_jax.plan`, or a `make_step` that is or
        returns no function; in the first call, before anything runs, for a cluster of another size, or if the
        processes' arguments differ; when planning, for a step that ignored its plan, or if their plans differ; until
        then, in any call inside jit, scan or the like.

    >>> import jax, jax.numpy as jnp
    >>> from zen_jax.transforms.synchronize import synchronize
    >>> def make_step(plan):
    ...     optimizer = synchronize("data", plan=plan)
    ...     return jax.jit(jax.vmap(lambda g: optimizer.update(g, None)[0], axis_name="data"))
    >>> step = autotune(make_step, cluster=Cluster(hosts=2, inter_gbps=1), steps=2)
    >>> gradients = jnp.zeros((2, 5000, 64)).at[:, :50].set(1.0)  # two workers
    >>> for _ in range(3):
    ...     reduced = step(gradients)
    >>> step.plan.leaves["(array)"].scheme
    'agsparse'

    Source: ZEN (OSDI 2025), section 3.
    """
    if not callable(make_step):
        raise ValueError(f"make_step={make_step!r} must be a function from a plan to a step.")
    errors.check_at_least("steps", steps, 1)
    check_cluster(cluster)
    return Autotuned(make_step, cluster, steps, candidate_schemes(schemes))
