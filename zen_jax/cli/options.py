"""Options that several subcommands share, and their types."""

import argparse
import zipfile
from collections.abc import Callable
from pathlib import Path

import zen_jax as zen
from zen_jax.planning.cluster import GBPS, LATENCY_US
from zen_jax.planning.plan import WORKER_ORDER_SCHEMES


def add_profile(parser: argparse.ArgumentParser) -> None:
    """Adds the profile to read."""
    parser.add_argument("profile", type=Path, metavar="PROFILE.json", help="written by zen-jax profile --save")


def profile(options: argparse.Namespace) -> zen.SparsityProfile:
    """The profile that `add_profile` asks for."""
    path = options.profile
    if zipfile.is_zipfile(path):
        raise ValueError(f"{path} holds gradients. Profile them first: zen-jax profile {path} --save profile.json")
    return zen.SparsityProfile.load(path)


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Adds hosts, devices and links; `cluster` reads them."""
    parser.add_argument(
        "--cluster",
        type=Path,
        metavar="CLUSTER.json",
        help="links and kernels from zen-jax bench --save-cluster, instead of the six options below",
    )
    parser.add_argument(
        "--hosts", type=at_least(1), metavar="N", help="number of machines (default: enough for the profile)"
    )
    parser.add_argument(
        "--devices-per-host", type=at_least(1), metavar="N", help="workers per machine (default: the profile's)"
    )
    parser.add_argument(
        "--gbps",
        type=between(*GBPS),
        help=f"bandwidth of a machine's link, each way, in Gbit/s (default: {zen.Cluster.inter_gbps})",
    )
    parser.add_argument(
        "--intra-gbps",
        type=between(*GBPS),
        metavar="GBPS",
        help="bandwidth of a device inside its machine (default: --gbps)",
    )
    parser.add_argument(
        "--latency-us",
        type=between(*LATENCY_US),
        metavar="US",
        help=f"time of one step of a collective, in microseconds (default: {zen.Cluster.latency_us})",
    )
    parser.add_argument(
        "--intra-latency-us",
        type=between(*LATENCY_US),
        metavar="US",
        help="the same inside a machine (default: --latency-us)",
    )


def cluster(options: argparse.Namespace, profile: zen.SparsityProfile) -> zen.Cluster:
    """The cluster that the options describe, for a profile's workers."""
    typed = {
        "hosts": options.hosts,
        "devices_per_host": options.devices_per_host,
        "inter_gbps": options.gbps,
        "intra_gbps": options.intra_gbps,
        "latency_us": options.latency_us,
        "intra_latency_us": options.intra_latency_us,
    }
    typed = {name: value for name, value in typed.items() if value is not None}
    if options.cluster is not None:
        if typed:
            flags = ", ".join("--" + name.removeprefix("inter_").replace("_", "-") for name in typed)
            raise ValueError(f"--cluster describes the whole cluster. Give it or {flags}, not both.")
        return zen.Cluster.load(options.cluster)
    if profile.devices_per_host > 1:
        default = {"hosts": profile.n, "devices_per_host": profile.devices_per_host}
    else:
        default = {"hosts": max(1, profile.n // typed.get("devices_per_host", 1))}
    return zen.Cluster(**default | typed)


def add_schemes(parser: argparse.ArgumentParser, default: tuple[str, ...], meaning: str) -> None:
    """Adds --schemes."""
    shown = "all" if default == zen.schemes.names() else ",".join(default)
    parser.add_argument(
        "--schemes",
        type=_schemes,
        default=default,
        metavar="NAMES",
        help=f"{meaning}, comma-separated (default: {shown})",
    )


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Adds --schemes to choose from for a plan."""
    add_schemes(parser, WORKER_ORDER_SCHEMES, "schemes to choose from")


def at_least(least: int) -> Callable[[str], int]:
    """A type of integers that fit into 64 bits."""

    def parse(word: str) -> int:
        if not word.isdecimal() or not least <= int(word) < 1 << 63:
            raise argparse.ArgumentTypeError(f"{word!r} must be an integer of at least {least} and below 2**63")
        return int(word)

    return parse


def positive(word: str) -> float:
    """A type of numbers above 0."""
    return _number(word, "a number above 0", lambda value: 0 < value < float("inf"))


def between(least: float, most: float) -> Callable[[str], float]:
    """A type of numbers from `least` to `most`."""
    return lambda word: _number(word, f"a number from {least:g} to {most:g}", lambda value: least <= value <= most)


def share(word: str) -> float:
    """A type of numbers above 0 and up to 1."""
    return _number(word, "a number above 0 and up to 1", lambda value: 0 < value <= 1)


def _number(word: str, wanted: str, fits: Callable[[float], bool]) -> float:
    try:
        value = float(word)
    except ValueError:
        value = float("nan")
    if not fits(value):
        raise argparse.ArgumentTypeError(f"{word!r} must be {wanted}")
    return value


def _schemes(word: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(word.split(",")))
    for name in names:
        if name not in zen.schemes.names():
            raise argparse.ArgumentTypeError(f"{name!r} is unknown. Use one or more of {','.join(zen.schemes.names())}")
    return names
