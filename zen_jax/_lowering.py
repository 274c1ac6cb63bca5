"""How a kernel is lowered: a custom call where one is built, pure JAX everywhere else."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import PartitionSpec

from zen_jax import _native
from zen_jax._typing import Array

Lowering = Callable[..., tuple[Array, ...]]
Result = tuple[tuple[int, ...], Any]  # shape and dtype


def custom_call_or(
    reference: Lowering,
    target: str,
    operands: Sequence[Array],
    results: Sequence[Result],
    cuda_scratch: Callable[[Any], int] | None = None,
    aliases: Mapping[int, int] | None = None,
    cpu_rows: bool = False,
    **attributes: np.generic,
) -> tuple[Array, ...]:
    """Calls the XLA FFI target where the platform has it, else `reference`.

    Args:
      reference: the pure-JAX lowering, from `operands` to an array for each of `results`; traced only where it is used.
      target: name of the custom call.
      operands: arrays; only `vmap` adds leading batch dimensions.
      results: shape and dtype of each result.
      cuda_scratch: maps the native library to the bytes of scratch that CUDA needs, as one more result.
      aliases: maps operands to the results that take over their buffers.
      cpu_rows: whether the CPU custom call returns each row of its only result as a separate result.
      attributes: attributes of the custom call.

    Returns:
      A tuple with an array for each of `results`.
    """
    return tuple(
        _kernel.bind(
            *map(jnp.asarray, operands),
            reference=reference,
            target=target,
            results=tuple((shape, jax.dtypes.canonicalize_dtype(dtype)) for shape, dtype in results),
            cuda_scratch=cuda_scratch,
            aliases=tuple((aliases or {}).items()),
            cpu_rows=cpu_rows,
            attributes=tuple(attributes.items()),
            batch=(),
        )
    )


# One primitive for all kernels. `lax.platform_dependent` would trace `reference` on every platform, for each message
# size of a ladder, which would be most of the tracing. `batch` holds the sizes of the dimensions that vmap added.
_kernel = Primitive("zen_jax_kernel")
_kernel.multiple_results = True


def _pure_jax(*operands: Array, reference: Lowering, batch: tuple[int, ...], **_: Any) -> tuple[Array, ...]:
    return _mapped(reference, batch)(*operands)


def _custom_call(
    platform: str,
    *operands: Array,
    target: str,
    results: Sequence[Result],
    cuda_scratch: Callable[[Any], int] | None,
    aliases: Sequence[tuple[int, int]],
    cpu_rows: bool,
    attributes: Sequence[tuple[str, np.generic]],
    batch: tuple[int, ...],
    **others: Any,
) -> tuple[Array, ...]:
    library = _native.library(platform, target)
    if library is None:
        _native.warn_of_pure_jax(platform)
        return _pure_jax(*operands, batch=batch, **others)
    types = [jax.ShapeDtypeStruct(*result) for result in results]
    if platform == "cuda" and cuda_scratch is not None:
        types.append(jax.ShapeDtypeStruct((cuda_scratch(library),), jnp.uint8))
    if by_row := platform == "cpu" and cpu_rows:
        types = [jax.ShapeDtypeStruct(whole.shape[1:], whole.dtype) for whole in types for _ in range(whole.shape[0])]
    ffi_call = jax.ffi.ffi_call(target, types, vmap_method="broadcast_all", input_output_aliases=dict(aliases))

    def call(*operands: Array) -> list[Array]:
        found = ffi_call(*operands, **dict(attributes))
        return [jnp.stack(found)] if by_row else found

    return tuple(_mapped(call, batch)(*operands)[: len(results)])


def _mapped(fun: Lowering, batch: tuple[int, ...]) -> Lowering:
    for _size in batch:
        fun = jax.vmap(fun)
    return fun


_custom_calls = {platform: partial(_custom_call, platform) for platform in ("cpu", "cuda")}


@_kernel.def_impl
def _impl(*operands: Array, **params: Any) -> tuple[Array, ...]:
    calls = {platform: partial(call, **params) for platform, call in _custom_calls.items()}
    # Outside jit, `platform_dependent` would consult the default device, not the one that holds the operands.
    arrays = [x for x in operands if isinstance(x, jax.Array)]
    device = next(iter(arrays[0].sharding.addressable_devices)) if arrays else jax.config.jax_default_device
    with jax.default_device(device):
        return lax.platform_dependent(*operands, default=partial(_pure_jax, **params), **calls)


@_kernel.def_abstract_eval
def _abstract_eval(*operands: Any, results: Sequence[Result], batch: tuple[int, ...], **_: Any) -> list[Any]:
    """Results vary over every shard_map axis that any operand varies over; by shape and dtype alone, over none."""
    varying = [operand.manual_axis_type.varying for operand in operands]
    like = operands[np.argmax([len(axes) for axes in varying])]
    kind = like.manual_axis_type.update(varying=frozenset().union(*varying))

    def typed(shape: tuple[int, ...], dtype: Any) -> Any:
        sharding = like.sharding.update(spec=PartitionSpec(*[None] * len(shape)))
        return like.update(shape=shape, dtype=dtype, weak_type=False, sharding=sharding, manual_axis_type=kind)

    return [typed((*batch, *shape), dtype) for shape, dtype in results]


def _batching_rule(
    operands: Sequence[Array], axes: Sequence[int | None], *, batch: tuple[int, ...], **params: Any
) -> Any:
    (size,) = {x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None}
    leading = [
        jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)
        for x, axis in zip(operands, axes, strict=True)
    ]
    outputs = _kernel.bind(*leading, batch=(size, *batch), **params)
    return outputs, [0] * len(outputs)


def _jvp_rule(*_: Any, target: str, **__: Any) -> None:
    raise ValueError(
        f"{target} has no derivative. Take `jax.grad` first, then reduce the gradients that "
        "it returns; if a value is only reported, reduce its `jax.lax.stop_gradient` (of the argument, not the result)."
    )


ad.primitive_jvps[_kernel] = _jvp_rule
batching.primitive_batchers[_kernel] = _batching_rule
mlir.register_lowering(_kernel, mlir.lower_fun(_pure_jax))
for _platform, _call in _custom_calls.items():
    mlir.register_lowering(_kernel, mlir.lower_fun(_call), platform=_platform)
