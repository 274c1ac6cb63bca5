"""Several hosts on one Linux machine: network namespaces on a switch, with a rate and a latency for every link.

    with emulated_hosts(4) as hosts:
        set_rate(hosts, "200mbit+1ms")
        subprocess.run(hosts[0].command(["python", "-c", "import socket; print(socket.gethostname())"]))

Each host is a namespace with a hostname that resolves to its address, as jax.distributed's gloo needs. The switch
(`benchmarks.emulated_switch`) is a process in a namespace of its own, so the machine's own network is not touched.
Needs root, /dev/net/tun, `ip`, `tc`, `unshare`, `chrt` and `hostname`.
"""

import fcntl
import math
import os
import re
import shutil
import signal
import subprocess
import sys
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
LINKS = Path(f"/run/{PREFIX}-links")  # by which the switch is told how fast links are
TUN = Path("/dev/net/tun")
MAX_HOSTS = 250

# What a host sends waits for the switch in a token bucket, because TCP must see how much has not left yet. A burst of
# one large segment (64 KiB) is the least that lets offloaded segments through whole. The queue holds what n - 1 hosts
# may send at once: a drop would cost TCP's retransmission timeout, 200 ms.
BURST, QUEUE = "72kb", "64mb"
PACKETS = "5000"  # that the switch may let wait, where links have no limit
# Every kernel allows Reno, whatever its default; where nothing is dropped, CUBIC is no different. BBR, too, is some
# kernels' default: after a change of links it took ten seconds to see that they have a latency.
CONGESTION_CONTROL = "reno"


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
    if not TUN.exists():
        return f"emulated hosts need {TUN}, which this kernel or container does not have"
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
        hosts = [nth_host(i) for i in range(count)]
        try:
            _run("ip", "netns", "add", SWITCH)
            with _running_switch(hosts):
                _make(hosts)
                yield hosts
        finally:
            _remove()


def set_rate(hosts: Sequence[Host], rate: str | None) -> None:
    """Limits every link to a rate in each direction, with a latency if one is given ("200mbit+1ms"); None lifts both.

    The latency is the time from any host to any other, added to the switch's own of about 0.2 ms.
    """
    bits, seconds = (math.inf, 0.0) if rate is None else (rate_in_bits(rate), latency_in_seconds(rate))
    for host in hosts:
        tc = ["tc", "-n", host.name, "qdisc"]
        if rate is not None:
            limit = f"root tbf rate {bits:.0f}bit burst {BURST} limit {QUEUE}"
            _run(*tc, "replace", "dev", INTERFACE, *limit.split())
        elif "tbf" in _run(*tc, "show", "dev", INTERFACE):
            _run(*tc, "del", "dev", INTERFACE, "root")
    try:
        links = os.open(LINKS, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        raise HostsError(f"the switch between emulated hosts has ended: {error.strerror}: {LINKS}") from None
    with open(links, "w") as to_switch:
        to_switch.write(f"{bits} {seconds}\n")


def rate_in_bits(rate: str) -> float:
    """Bits per second of a rate such as "200mbit" or "1.5gbit+20us"; a ValueError for anything else.

    >>> rate_in_bits("200mbit"), rate_in_bits("1.5gbit+20us")
    (200000000.0, 1500000000.0)
    """
    number, unit, *_ = _parsed(rate)
    return float(number) * {"k": 1e3, "m": 1e6, "g": 1e9}[unit]


def latency_in_seconds(rate: str) -> float:
    """Seconds of latency of a rate, 0 if it has none.

    >>> latency_in_seconds("200mbit"), latency_in_seconds("1.5gbit+20us")
    (0.0, 2e-05)
    """
    *_, number, unit = _parsed(rate)
    return float(number or 0) / {"u": 1e6, "m": 1e3, None: 1}[unit]


def _parsed(rate: str) -> tuple[str, ...]:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg])bit(?:\+(\d+(?:\.\d+)?)([um])s)?", rate)
    if not match or not float(match[1]):
        raise ValueError(
            f"rate {rate!r} must be a number with kbit, mbit or gbit, as in 200mbit, and may have a latency in us or "
            "ms, as in 200mbit+1ms."
        )
    return match.groups()


@contextmanager
def _running_switch(hosts: Sequence[Host]) -> Iterator[None]:
    """Runs the switch, which makes an interface for each host."""
    os.mkfifo(LINKS)
    script = Path(__file__).with_name("emulated_switch.py")
    command = [sys.executable, str(script), *(host.name for host in hosts), str(LINKS)]
    switch = subprocess.Popen(
        ["ip", "netns", "exec", SWITCH, *command], stdout=subprocess.PIPE, text=True, process_group=0
    )
    try:
        if switch.stdout.readline() != "ready\n":
            raise HostsError(f"the switch between emulated hosts ended with status {switch.wait()}: see above")
        yield
    finally:
        switch.kill()
        switch.wait()
        switch.stdout.close()


def _make(hosts: Sequence[Host]) -> None:
    names = "".join(f"{host.address} {host.name}\n" for host in hosts)
    for host in hosts:
        folder = HOSTS_FILES / host.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + names)
        _run("ip", "netns", "add", host.name)
        _run("ip", "-n", SWITCH, "link", "set", host.name, "netns", host.name, "name", INTERFACE)
        _run("ip", "-n", host.name, "link", "set", INTERFACE, "txqueuelen", PACKETS)
        _run("ip", "-n", host.name, "addr", "add", f"{host.address}/24", "dev", INTERFACE)
        control = f"echo {CONGESTION_CONTROL} > /proc/sys/net/ipv4/tcp_congestion_control"
        _run("ip", "netns", "exec", host.name, "sh", "-c", control)
        for interface in ("lo", INTERFACE):
            _run("ip", "-n", host.name, "link", "set", interface, "up")


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
    LINKS.unlink(missing_ok=True)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
    if done.returncode:
        raise HostsError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.returncode}")
    return done.stdout
