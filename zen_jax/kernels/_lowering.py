"""How a primitive reaches its platform: a custom call where one is built, pure JAX everywhere else."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from zen_jax import _native
from zen_jax._typing import Array


def custom_call_or(
    reference: Callable[..., Any],
    target: str,
    operands: Sequence[Array],
    results: Sequence[tuple[tuple[int, ...], Any]],
    cuda_scratch: Callable[[Any], int] | None = None,
    aliases: Mapping[int, int] | None = None,
    **attributes: Any,
) -> Any:
    """Calls the XLA FFI target where the platform has it, else `reference`.

    Args:
      reference: the pure-JAX lowering, from `operands` to as many results.
      target: name of the custom call.
      operands: arrays; leading batch dimensions come from `vmap` alone.
      results: shape and dtype of each result.
      cuda_scratch: from the native library to the bytes of scratch that CUDA needs as one more result.
      aliases: from operands to the results that take over their buffers.
      attributes: attributes of the custom call, NumPy scalars.

    Returns:
      A tuple with an array for each of `results`.
    """
    operands = [jnp.asarray(array) for array in operands]
    operand = jax.typeof(operands[0])
    mesh = operand.sharding.mesh

    def result_type(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        # A result typed by shape and dtype alone would count as replicated inside shard_map.
        sharding = None if mesh.empty else NamedSharding(mesh, PartitionSpec())
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding, manual_axis_type=operand.manual_axis_type)

    def call(scratch_bytes: int | None = None) -> Callable[..., Any]:
        shapes = list(results) + ([((scratch_bytes,), "uint8")] if scratch_bytes is not None else [])
        types = [result_type(shape, dtype) for shape, dtype in shapes]
        options = {"vmap_method": "broadcast_all", "input_output_aliases": dict(aliases or {})}
        ffi_call = jax.ffi.ffi_call(target, types, **options)
        return lambda *arrays: tuple(ffi_call(*arrays, **attributes)[: len(results)])

    lowerings = {}
    if _native.library("cpu", target) is not None:
        lowerings["cpu"] = call()
    cuda = _native.library("cuda", target)
    if cuda is not None:
        lowerings["cuda"] = call(cuda_scratch(cuda) if cuda_scratch else None)
    if not lowerings:
        return reference(*operands)
    return lax.platform_dependent(*operands, default=reference, **lowerings)
