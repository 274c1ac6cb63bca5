"""Several hosts on one Linux machine: network namespaces on a switch, every link rate-limited in both directions.

    with emulated_hosts(4) as hosts:
        set_rate(hosts, "200mbit")
        subprocess.run(hosts[0].command(["python", "-c", "import socket; print(socket.gethostname())"]))

Each host is a namespace with a hostname that resolves to its address, as jax.distributed's gloo needs. The switch is
a bridge in a namespace of its own, so the machine's own network is not touched. Needs root, `ip`, `tc`, `unshare`,
`chrt` and `hostname`. Rates are limited by the token bucket filter; latency stays the kernel's own (tens
of microseconds), because shaping it needs netem, which not every kernel has.
"""

import fcntl
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PREFIX = "zenbench"
SWITCH = f"{PREFIX}-switch"
INTERFACE = "eth0"  # every host's
TOOLS = ("ip", "tc", "unshare", "chrt", "hostname")
LOCK = Path("/run/lock/zen_jax_emulated_hosts")
HOSTS_FILES = Path("/etc/netns")
MAX_HOSTS = 250

# A burst of one large segment (64 KiB) is the least that lets offloaded segments through whole, and all that a link
# gets beyond its rate. The queue holds what n - 1 hosts may send at once: a drop would cost TCP's retransmission
# timeout, 200 ms.
BURST, QUEUE = "72kb", "64mb"


class HostsError(RuntimeError):
    """Emulated hosts cannot be made here; the message says why in one line."""


@dataclass(frozen=True)
class Host:
    """One emulated host: the name of its namespace, which is also its hostname, and its address."""

    name: str
    address: str

    def command(self, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` on this host.

        Batch scheduling is for hosts that share cores, as in `zen_jax.cli.launch.share_cores`.
        """
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.name]
        return ["ip", "netns", "exec", self.name, *named, "chrt", "--batch", "0", *command]


def nth_host(i: int) -> Host:
    """The i-th host, so that a process on any host can name them all."""
    return Host(f"{PREFIX}-{i}", f"10.77.0.{i + 1}")


def why_not() -> str | None:
    """Why this machine cannot emulate hosts, or None where it can."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"emulated hosts need {', '.join(missing)} (Debian packages: iproute2, util-linux, hostname)"
    if os.geteuid() != 0:
        return "emulated hosts need root, to make network namespaces and limit their links"
    if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode:
        return "emulated hosts need network namespaces, which this kernel or container does not allow"
    return None


@contextmanager
def emulated_hosts(count: int) -> Iterator[list[Host]]:
    """Makes `count` hosts with unlimited links and removes them at the end, whatever happens in between.

    First removes what a killed earlier run left behind: its namespaces and the processes in them.

    Raises:
      HostsError: if `why_not` has a reason, another run is using its hosts, or the kernel refuses.
      ValueError: for a count outside 1 to 250.
    """
    if not 1 <= count <= MAX_HOSTS:
        raise ValueError(f"count={count} must be from 1 to {MAX_HOSTS} hosts.")
    if reason := why_not():
        raise HostsError(reason)
    with LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HostsError("another run is using its emulated hosts: wait until it ends") from None
        _remove()
        try:
            yield _make([nth_host(i) for i in range(count)])
        finally:
            _remove()


def set_rate(hosts: Sequence[Host], rate: str | None) -> None:
    """Limits every link to `rate` ("200mbit", as tc writes it) in each direction; None lifts the limit."""
    if rate is not None:
        rate_in_bits(rate)
    for host in hosts:
        for namespace, interface in ((host.name, INTERFACE), (SWITCH, host.name)):
            tc = ["tc", "-n", namespace, "qdisc"]
            if rate is not None:
                _run(*tc, "replace", "dev", interface, *f"root tbf rate {rate} burst {BURST} limit {QUEUE}".split())
            elif "tbf" in _run(*tc, "show", "dev", interface):
                _run(*tc, "del", "dev", interface, "root")


def rate_in_bits(rate: str) -> float:
    """Bits per second of a rate such as "200mbit" or "1.5gbit"; a ValueError for anything else.

    >>> rate_in_bits("200mbit")
    200000000.0
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg])bit", rate)
    if not match or not float(match[1]):
        raise ValueError(f"rate {rate!r} must be a number with kbit, mbit or gbit, as in 200mbit.")
    return float(match[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[match[2]]


def _make(hosts: list[Host]) -> list[Host]:
    _run("ip", "netns", "add", SWITCH)
    _run("ip", "-n", SWITCH, "link", "add", "switch", "type", "bridge")
    _run("ip", "-n", SWITCH, "link", "set", "switch", "up")
    names = "".join(f"{host.address} {host.name}\n" for host in hosts)
    for host in hosts:
        folder = HOSTS_FILES / host.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + names)
        _run("ip", "netns", "add", host.name)
        veth = ["type", "veth", "peer", "name", INTERFACE, "netns", host.name]
        _run("ip", "-n", SWITCH, "link", "add", host.name, *veth)
        _run("ip", "-n", SWITCH, "link", "set", host.name, "master", "switch", "up")
        _run("ip", "-n", host.name, "addr", "add", f"{host.address}/24", "dev", INTERFACE)
        for interface in ("lo", INTERFACE):
            _run("ip", "-n", host.name, "link", "set", interface, "up")
    return hosts


def _remove() -> None:
    """Removes all our namespaces, the processes in them, and their hosts files."""
    ours = [line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line.startswith(f"{PREFIX}-")]
    for name in ours:
        for pid in _run("ip", "netns", "pids", name).split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass  # it ended by itself
        _run("ip", "netns", "delete", name)
    for folder in HOSTS_FILES.glob(f"{PREFIX}-*"):
        shutil.rmtree(folder)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
    if done.returncode:
        raise HostsError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.returncode}")
    return done.stdout
