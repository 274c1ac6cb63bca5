"""Collectives over a named axis, which behave alike in shard_map (check_vma on or off), pmap and vmap."""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jax.sharding import AbstractMesh, AxisType, Mesh

from zen_jax import errors
from zen_jax._typing import Array, AxisName


def axis_names(axis_name: AxisName, argument: str = "axis_name") -> tuple:
    """The names in an axis; raises a ValueError for anything that cannot be one."""
    names = axis_name if isinstance(axis_name, tuple) else (axis_name,)
    # JAX reads integers as positions of dimensions, not as named axes, and None as no axis.
    named = all(isinstance(name, Hashable) and not isinstance(name, int | None) for name in names)
    if not names or not named or len(set(names)) < len(names):
        raise ValueError(
            f"{argument}={axis_name!r} is not an axis name. Give a name, or several different ones as a tuple."
        )
    return names


def combined_axes(axis_name: AxisName, intra_axis: AxisName | None) -> AxisName:
    """The axis of all devices, by machine and then by device. Raises a ValueError if the two axes overlap."""
    outer = axis_names(axis_name)
    if intra_axis is None:
        return axis_name
    inner = axis_names(intra_axis, "intra_axis")
    if set(outer) & set(inner):
        raise ValueError(
            f"intra_axis={intra_axis!r} must differ from axis_name={axis_name!r}. Give the axis of one machine's "
            "devices as intra_axis and the axis of machines as axis_name."
        )
    return outer + inner


def axis_size(axis_name: AxisName, argument: str = "axis_name") -> int:
    """Number of workers n; raises a ValueError if the axis is not bound or no collective could take it."""
    names = axis_names(axis_name, argument)
    try:
        n = lax.axis_size(axis_name)
    except NameError as error:
        raise ValueError(
            f"{argument}={axis_name!r} is not a named axis here. Call inside shard_map, pmap or vmap(axis_name=...) "
            "with that axis, or use zen_jax.value_and_grad under jit."
        ) from error
    if len(names) > 1 and not is_manual(axis_name):
        raise ValueError(
            f"{argument}={axis_name!r} names several axes, but vmap takes only one at a time. Use shard_map."
        )
    return n


def mesh_size(mesh: Mesh | AbstractMesh, axis_name: AxisName, argument: str = "axis_name") -> int:
    """Number of workers along an axis of a mesh; raises a ValueError if the mesh lacks it, or is none."""
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise ValueError(f"mesh is a {type(mesh).__name__}, but must be a Mesh. Use jax.make_mesh(sizes, names).")
    names = axis_names(axis_name, argument)
    for name in names:
        errors.check_choice(argument, name, tuple(mesh.shape))
    return math.prod(mesh.shape[name] for name in names)


def is_manual(axis_name: AxisName) -> bool:
    """Whether the axes belong to an enclosing shard_map."""
    manual = jax.sharding.get_abstract_mesh().manual_axes
    return all(axis in manual for axis in axis_names(axis_name))


def varying(x: Array) -> frozenset:
    """The axes of an enclosing shard_map(check_vma=True) along which x is known to vary."""
    return jax.typeof(x).manual_axis_type.varying


def varying_like(x: Array, *likes: Array, apart_from: Sequence[str] = ()) -> Array:
    """x, typed to vary wherever any of `likes` does, as branches of a `lax.cond` and carries of a loop must.

    Axes in `apart_from` do not count.
    """
    missing = tuple(frozenset().union(*map(varying, likes)) - varying(x) - {*apart_from})
    return lax.pcast(x, missing, to="varying") if missing else x


def check_not_reduced(name: str, x: Array, axis_name: AxisName) -> None:
    """Refuses a gradient that shard_map(check_vma=True) knows to be the same on every worker."""
    axes = axis_names(axis_name)
    reduced = [axis for axis in axes if axis in varying(lax.axis_index(axis)) and axis not in varying(x)]
    if pending := [axis for axis in reduced if axis in jax.typeof(x).manual_axis_type.unreduced]:
        raise ValueError(
            f"{name} is unreduced over axis {pending[0]!r}, as gradients of parameters cast to 'reduced' are, and only "
            f"psum takes it. Make the parameters vary instead (jax.lax.pcast(params, {axis_name!r}, to='varying')), "
            "set check_vma=False, or use zen_jax.value_and_grad."
        )
    if reduced:
        raise ValueError(
            f"{name} does not vary over axis {reduced[0]!r}: it is already reduced, and averaging it again would give "
            "the sum. Under shard_map(check_vma=True) jax.grad itself sums the gradients of replicated parameters: "
            f"make the parameters vary first (jax.lax.pcast(params, {axis_name!r}, to='varying')), set "
            "check_vma=False, or use zen_jax.value_and_grad."
        )


def check_not_sharded(name: str, x: Array) -> None:
    """Refuses a gradient sharded along an Explicit axis, which zen would have to gather on every worker."""
    sharding = jax.typeof(x).sharding
    if AxisType.Explicit not in sharding.mesh.axis_types:
        return
    sharded = [axis for axis in sharding.spec if axis is not None]
    if sharded:
        raise ValueError(
            f"{name} is sharded over axis {sharded[0]!r}, but must be whole on its worker. Make that axis manual too "
            "(name it in the axis_names of shard_map, or leave axis_names out), so that each device reduces its shard. "
            "In place of vmap over sharded workers, use shard_map."
        )
    unmapped = jax.custom_batching.custom_vmap(lambda x: x)

    @unmapped.def_vmap
    def _(size: int, mapped: list[bool], x: Array) -> tuple[Array, bool]:
        check_not_sharded(name, x)  # now that it has the axis of an enclosing vmap, which may be sharded too
        return x, True

    unmapped(lax.stop_gradient(x))


def connects_cpus(axis_name: AxisName) -> bool:
    """Whether the axis may connect CPUs of several processes."""
    return is_manual(axis_name) and jax.process_count() > 1 and jax.default_backend() == "cpu"


def check_not_cached(axis_name: AxisName) -> None:
    """Refuses to compile for several processes on CPUs what JAX's compilation cache would hold.

    A program that XLA for CPUs (of jaxlib 0.10.2) loads from there has lost the order between collectives inside a
    conditional and those outside. Then one process waits in one of them, the others in another, for ever.
    """
    cached = jax.config.jax_enable_compilation_cache and jax.config.jax_compilation_cache_dir
    if cached and any(map(connects_cpus, axis_names(axis_name))):
        raise ValueError(
            f"JAX's compilation cache is on ({jax.config.jax_compilation_cache_dir}). Programs loaded from it do not "
            "keep collectives in order on CPUs, and processes would wait for each other for ever. Call "
            "jax.config.update('jax_enable_compilation_cache', False) in every process before anything is compiled, or "
            "unset JAX_COMPILATION_CACHE_DIR."
        )


def other_manual_axes(axis_name: AxisName) -> tuple:
    """All other axes of an enclosing shard_map."""
    return tuple(axis for axis in jax.sharding.get_abstract_mesh().manual_axes if axis not in axis_names(axis_name))


def pmax_over_other_axes(x: Array, axis_name: AxisName) -> Array:
    """The maximum of x over all other axes of an enclosing shard_map, on which all devices of the program agree."""

    def may_vary(axis: str) -> bool:
        # With check_vma, what does not vary is equal already. Without it nothing is known to vary.
        tracked = axis in varying(lax.axis_index(axis))
        return axis in varying(x) or not tracked

    axes = tuple(axis for axis in other_manual_axes(axis_name) if may_vary(axis))
    return lax.pmax(x, axes) if axes else x


def all_gather(x: Array, axis_name: AxisName) -> Array:
    """[...] to [n, ...], the same on every worker and typed as such where shard_map tracks it."""
    tracked = any(axis in varying(lax.axis_index(axis)) for axis in axis_names(axis_name))
    to = "invarying" if tracked else "varying"
    return _send(lambda x: lax.all_gather(x, axis_name, to=to), x)


def all_to_all(x: Array, axis_name: AxisName) -> Array:
    """Sends row i of x [n, ...] to worker i; row i of the result comes from worker i."""
    if not is_manual(axis_name):
        # Given a value that is the same for all of vmap's workers, JAX returns an array of another shape.
        x = jnp.where(lax.axis_index(axis_name) >= 0, x, x)
    return _send(lambda x: lax.all_to_all(x, axis_name, split_axis=0, concat_axis=0), x)


def permute(x: Array, axis_name: AxisName, pairs: Sequence[tuple[int, int]]) -> Array:
    """Sends x from source to target of each pair; workers that are not a target receive unspecified values."""
    if not is_manual(axis_name):
        # vmap, where nothing is sent, only accepts full permutations.
        workers = range(axis_size(axis_name))
        sources, targets = ([pair[end] for pair in pairs] for end in (0, 1))
        idle = zip(sorted(set(workers) - set(sources)), sorted(set(workers) - set(targets)), strict=True)
        pairs = [*pairs, *idle]
    elif len(axis_names(axis_name)) > 1:
        axis_name, pairs = _in_mesh_order(axis_names(axis_name), pairs)
    return _send(lambda x: lax.ppermute(x, axis_name, pairs), x)


def _in_mesh_order(names: tuple, pairs: Sequence[tuple[int, int]]) -> tuple[tuple, list[tuple[int, int]]]:
    """Several axes in mesh order, pairs renumbered to match: all but ppermute number workers in the order of names."""
    ordered = tuple(axis for axis in jax.sharding.get_abstract_mesh().axis_names if axis in names)
    sizes = [lax.axis_size(name) for name in names]
    workers = np.arange(math.prod(sizes)).reshape(sizes).transpose([names.index(axis) for axis in ordered])
    place = np.argsort(workers.reshape(-1)).tolist()
    return ordered, [(place[source], place[target]) for source, target in pairs]


def _send(collective: Callable[[Array], Array], x: Array) -> Array:
    """`collective(x)`, with bfloat16 sent as integers: XLA on CPUs would send it as float32."""
    if x.dtype != jnp.bfloat16:
        return collective(x)

    @jax.custom_jvp
    def sent(x: Array) -> Array:
        return lax.bitcast_convert_type(collective(lax.bitcast_convert_type(x, jnp.uint16)), x.dtype)

    sent.defjvp(lambda primals, tangents: (sent(*primals), collective(*tangents)))  # that of a bitcast is zero
    return sent(x)


def replicated(x: Array, axis_name: AxisName) -> Array:
    """x, which is the same on every worker, typed as such where JAX tracks it; nothing is sent."""
    if not is_manual(axis_name):
        return all_gather(x, axis_name)[0]  # how vmap expresses it
    if not any(axis in varying(x) for axis in axis_names(axis_name)):
        return x
    return _replicated_p.bind(x, axes=axis_names(axis_name))


# JAX's own conversion from varying to invarying is a collective; recursive doubling ends with equal sums without one.
_replicated_p = Primitive("zen_replicated")
_replicated_p.def_impl(lambda x, axes: x)
mlir.register_lowering(_replicated_p, lambda context, x, axes: [x])
batching.defvectorized(_replicated_p)


@_replicated_p.def_abstract_eval
def _(x: Any, axes: tuple) -> Any:
    kind = x.manual_axis_type
    return x.update(manual_axis_type=kind.update(varying=kind.varying - frozenset(axes)))
