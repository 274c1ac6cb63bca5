"""Hierarchy: dense reduce-scatter and all-gather within a machine and, between the two, a scheme across machines."""

import jax.numpy as jnp
from jax import lax

from zen_jax import _axis
from zen_jax._sums import accumulator_dtype, divide, sum_in_order
from zen_jax._typing import Array, AxisName
from zen_jax.info import Info, make_info
from zen_jax.schemes.options import ReduceOptions, Scheme


def hierarchical(run: Scheme, intra_axis: AxisName) -> Scheme:
    """The scheme that runs `run` across machines on the sums over each machine's devices, which lie on `intra_axis`.

    Every device sums its share of the machine's units in device order, reduces it with the devices that have the same
    share on other machines, and gets the other shares from its neighbours. 16-bit floats stay float32 from the first
    sum to the division, including across machines, so they round once.

    Capacities count the units of a machine, of which each device's messages hold an equal part. `Info` counts what
    one device sends to other machines; densities are those of machines' sums, shares padded with zeros.

    Source: ZEN (OSDI 2025), section 4.
    """

    def reduce(x: Array, axis_name: AxisName, options: ReduceOptions) -> tuple[Array, Info]:
        machines, devices = _axis.axis_size(axis_name), _axis.axis_size(intra_axis)
        units, width = x.shape
        # Dealt round-robin: neighbouring units are alike, and runs of them would make some shares far denser.
        shares = jnp.pad(x, ((0, -units % devices), (0, 0))).reshape(-1, devices, width).swapaxes(0, 1)
        parts = _axis.all_to_all(shares, intra_axis).astype(accumulator_dtype(x.dtype))
        share = sum_in_order(parts, divisor=1)
        if machines == 1:
            total, info = lax.psum(share, axis_name), make_info()
        else:
            total, info = run(share, axis_name, _inter_machine_options(options, intra_axis, devices))
        mean = divide(total, options.divisor(machines * devices), x.dtype)
        reduced = _axis.all_gather(mean, intra_axis).swapaxes(0, 1).reshape(-1, width)[:units]
        return reduced, _machine_info(info, intra_axis)

    return reduce


def _inter_machine_options(options: ReduceOptions, intra_axis: AxisName, devices: int) -> ReduceOptions:
    capacity = tuple(planned and -(-planned // devices) for planned in options.capacity)
    return options._replace(op="sum", capacity=capacity, intra_axis=intra_axis)


def _machine_info(info: Info, intra_axis: AxisName) -> Info:
    """The same Info on every device of a machine; bytes and rounds already are, as all take the same branches."""
    largest = Info(*lax.pmax(jnp.stack(info), intra_axis))
    density, density_reduced = lax.pmean(jnp.stack([info.density, info.density_reduced]), intra_axis)
    return largest._replace(density=density, density_reduced=density_reduced)
