"""The cluster: how many hosts and devices it has, and how fast its links and devices are."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from zen_jax import errors
from zen_jax.planning.documents import JsonDocument, each_entry

COLLECTIVES = ("all_to_all", "all_gather", "psum", "permute", "send")  # partners permute both ways, and send one way
KERNELS = ("partition", "aggregate", "encode", "aggregate_encode", "for_others", "decode", "sum", "copy")
# Beyond these, as in a file with a slip, seconds would overflow to infinity.
GBPS = (1e-9, 1e9)
LATENCY_US = (0.0, 1e12)
SECONDS_PER_BYTE = (0.0, 1e3)
_DIRECT = ("permute", "send")
_POINT_TO_POINT = ("all_to_all", *_DIRECT)


@dataclass(frozen=True)
class Link:
    """A measured collective: each of its steps takes `latency_us`, and each worker's bytes travel at `gbps`.

    Raises a ValueError for a latency or rate that no link has.

    >>> cluster = Cluster(hosts=4, collectives={"psum": Link(latency_us=20, gbps=8)})
    >>> round(cluster.seconds("psum", 1e6, n=4), 6)
    0.00104
    """

    latency_us: float
    gbps: float

    def __post_init__(self) -> None:
        errors.check_between("gbps", self.gbps, *GBPS)
        errors.check_between("latency_us", self.latency_us, *LATENCY_US)


@dataclass(frozen=True)
class KernelCost:
    """A measured kernel: seconds per byte of the dense tensor, and per byte of its non-zero units.

    Raises a ValueError for rates that no kernel has.

    >>> cluster = Cluster(hosts=4, kernels={"partition": KernelCost(dense=1e-10, nonzero=2e-10)})
    >>> round(cluster.seconds_computing("partition", dense=1e6, nonzero=1e4, n=4), 9)
    0.000102
    """

    dense: float
    nonzero: float

    def __post_init__(self) -> None:
        errors.check_between("dense", self.dense, *SECONDS_PER_BYTE)
        errors.check_between("nonzero", self.nonzero, *SECONDS_PER_BYTE)


@dataclass(frozen=True)
class Cluster(JsonDocument):
    """Workers on hosts, for the cost model. Enter the figures you know, or measure them with `zen_jax.calibrate`.

    Args:
      hosts: number of machines.
      devices_per_host: devices on each machine; each device is a worker.
      inter_gbps: bandwidth of one machine's link, each way, in Gbit/s.
      intra_gbps: bandwidth from one device to others on its machine, each way, in Gbit/s; None for `inter_gbps`.
      latency_us: time of one step of a collective, in microseconds.
      collectives: measured links of one device, a `Link` by name of collective; they replace the figures above.
      kernels: measured rates, a `KernelCost` by name of kernel; without them computing is assumed to take no time.
      intra_latency_us: time of one step of a collective inside a machine, in microseconds; None for `latency_us`.

    Raises:
      ValueError: for counts, bandwidths or latencies that no cluster has, or collectives or kernels that are unknown or
        not measured.

    >>> cluster = Cluster(hosts=4, inter_gbps=8, latency_us=100)
    >>> cluster.workers, round(cluster.seconds("psum", 1e6, n=4), 6)
    (4, 0.0012)
    """

    kind = "cluster"

    hosts: int
    devices_per_host: int = 1
    inter_gbps: float = 25.0
    intra_gbps: float | None = None
    latency_us: float = 50.0
    collectives: dict[str, Link] = field(default_factory=dict, hash=False)
    kernels: dict[str, KernelCost] = field(default_factory=dict, hash=False)
    intra_latency_us: float | None = None

    def __post_init__(self) -> None:
        errors.check_workers(self.hosts, "hosts")
        errors.check_workers(self.devices_per_host, "devices_per_host")
        errors.check_between("inter_gbps", self.inter_gbps, *GBPS)
        if self.intra_gbps is not None:
            errors.check_between("intra_gbps", self.intra_gbps, *GBPS)
        errors.check_between("latency_us", self.latency_us, *LATENCY_US)
        if self.intra_latency_us is not None:
            errors.check_between("intra_latency_us", self.intra_latency_us, *LATENCY_US)
        for argument, measured, kind, names in (
            ("collectives", self.collectives, Link, COLLECTIVES),
            ("kernels", self.kernels, KernelCost, KERNELS),
        ):
            errors.check_entries(argument, measured, kind)
            for name in measured:
                errors.check_choice(argument, name, names)

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        links = each_entry("collectives", document["collectives"], lambda link: Link(**link))
        kernels = each_entry("kernels", document["kernels"], lambda cost: KernelCost(**cost))
        known = {field.name: document[field.name] for field in fields(cls)}
        return cls(**known | {"collectives": links, "kernels": kernels})

    @property
    def workers(self) -> int:
        return self.hosts * self.devices_per_host

    def check_workers(self, n: int, devices: int = 1, whose: str = "the profile has") -> None:
        """Raises a ValueError unless n is the number of devices, or of hosts, all of whose `devices` reduce first."""
        own = self.hosts, self.devices_per_host
        if (n, devices) not in ((self.workers, 1), own):
            raise ValueError(
                f"{whose} {counted(n, devices)}, but the cluster has {own[0]} hosts with {own[1]} devices each. Give a "
                "cluster of as many; devices that share a model are one worker. Where a host's devices reduce first "
                "(intra_axis), profile with devices_per_host."
            )

    def seconds(self, collective: str, nbytes: float, n: int, distance: int | None = None) -> float:
        """Time of one collective among n workers that each send and receive `nbytes` bytes.

        Where several devices share a machine's link, an all-gather and a psum run as a ring and cross it once; the
        bytes that the others send to other machines compete for it. The partners of a permute or send are `distance`
        workers apart, a power of two; None if they may be anywhere.
        """
        steps = collective_steps(collective, n)
        if collective in self.collectives:
            link = self.collectives[collective]
            return steps * link.latency_us * 1e-6 + _transfer(nbytes / self.devices_of_worker(n), link.gbps)
        inside = self.intra_gbps or self.inter_gbps
        devices = self.devices_per_host if n == self.workers else 1
        outside_share = (n - devices) / max(1, n - 1)
        if distance is not None:
            # Worker i's partner is i ^ distance: on its own machine if 2 * distance divides the number of devices.
            outside_share = float(devices < n and devices % (2 * distance) > 0)
        crossing = nbytes * outside_share * devices if collective in _POINT_TO_POINT else nbytes * (self.hosts > 1)
        staying = nbytes * (1 - outside_share)
        transfer = max(_transfer(crossing, self.inter_gbps), _transfer(staying, inside))
        latency_us = self.latency_us if outside_share else self._latency_inside_us
        return steps * latency_us * 1e-6 + transfer

    def seconds_inside(self, nbytes: float) -> float:
        """Time to reduce-scatter and all-gather a dense tensor of `nbytes` bytes among the devices of each machine."""
        devices = self.devices_per_host
        if devices == 1:
            return 0.0
        steps = 2 * math.ceil(math.log2(devices))
        moved = 2 * (devices - 1) / devices * nbytes
        return steps * self._latency_inside_us * 1e-6 + _transfer(moved, self.intra_gbps or self.inter_gbps)

    @property
    def _latency_inside_us(self) -> float:
        return self.latency_us if self.intra_latency_us is None else self.intra_latency_us

    def seconds_computing(self, kernel: str, dense: float, nonzero: float, n: int) -> float:
        """Time of one kernel on a tensor of `dense` and `nonzero` bytes (see `KernelCost`); 0 if not measured."""
        cost = self.kernels.get(kernel, KernelCost(0.0, 0.0))
        return (cost.dense * dense + cost.nonzero * nonzero) / self.devices_of_worker(n)

    def devices_of_worker(self, n: int) -> int:
        """Devices that share a worker's tensor: all of a machine's if the workers are machines."""
        return 1 if n == self.workers else self.devices_per_host

    def fastest_gbps(self, n: int) -> float:
        """The highest rate at which one of n workers can receive, for lower bounds."""
        rates = [link.gbps * self.devices_of_worker(n) for link in self.collectives.values()]
        if len(rates) < len(COLLECTIVES):
            rates.append(self.inter_gbps if self.hosts > 1 else self.intra_gbps or self.inter_gbps)
        return max(rates)


def counted(n: int, devices: int) -> str:
    """How messages name n workers or, if `devices` is above 1, hosts.

    >>> counted(8, 1), counted(2, 4)
    ('8 workers', '2 hosts with 4 devices each')
    """
    return f"{n} workers" if devices == 1 else f"{n} hosts with {devices} devices each"


def even_hosts(workers: int, hosts: int) -> tuple[int, int]:
    """Hosts and devices of each, or as many hosts as workers if hosts differ in their devices.

    >>> even_hosts(workers=8, hosts=4), even_hosts(workers=5, hosts=2)
    ((4, 2), (5, 1))
    """
    return (hosts, workers // hosts) if workers % hosts == 0 else (workers, 1)


def check_cluster(cluster: Any) -> None:
    errors.check_instance("cluster", cluster, Cluster, "Use zen_jax.Cluster(hosts=...), or zen_jax.calibrate(mesh).")


def collective_steps(collective: str, n: int) -> int:
    """Messages, one after another, that a collective among n workers waits for: ceil(log2 n), or 1 between partners."""
    return 1 if collective in _DIRECT else max(1, math.ceil(math.log2(n)))


def _transfer(nbytes: float, gbps: float) -> float:
    return nbytes * 8 / (gbps * 1e9)
