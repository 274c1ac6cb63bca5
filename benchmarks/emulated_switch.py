"""The switch between emulated hosts, in user space: links with an exact rate and a latency.

Linux limits a link's rate by a token bucket, which lets through at once what it has saved while the link was idle: at
least one large segment of 64 KiB. A real link saves nothing, and that decides which collectives are fast. Here each
packet takes its time on the sender's link to the switch, then on the receiver's, in the order of arrival at both;
`benchmarks.emulated_hosts` starts one process for all links.
"""

import fcntl
import heapq
import itertools
import math
import os
import select
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x1, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4 = 0x1, 0x2
# Before each packet: flags, kind of segments, bytes of headers, bytes of payload in a segment, place of the checksum.
HEADER = struct.Struct("=BBHHHH")
LARGEST_PACKET = HEADER.size + (1 << 16)
ETHERNET, FRAME = 14, 1514  # bytes of a frame's header, and of a full frame
TAKEN_TOGETHER = 16  # packets of one host, before others get their turn


def open_interface(name: str) -> int:
    """A new network interface, whose packets are read from and written to the file descriptor returned."""
    interface = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(interface, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(interface, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)
    return interface


def wire_bytes(packet: bytes) -> int:
    """Bytes of a packet on the wire, where large ones are cut into segments with headers of their own.

    >>> ip_and_tcp = bytes([0x45]) + bytes(31) + bytes([0x50]) + bytes(7)
    >>> wire_bytes(HEADER.pack(0, 1, 40, 1000, 0, 0) + ip_and_tcp + bytes(2500))  # 1000, 1000 and 500
    2662
    """
    _, in_segments, _, payload, _, _ = HEADER.unpack_from(packet)
    size = len(packet) - HEADER.size
    if not in_segments:
        return ETHERNET + size
    ip = 4 * (packet[HEADER.size] & 0xF)
    headers = ip + 4 * (packet[HEADER.size + ip + 12] >> 4)
    segments = -(-(size - headers) // payload)
    return size + (segments - 1) * headers + segments * ETHERNET


class Switch:
    """Moves packets between the interfaces of hosts, of which the i-th has the IPv4 address x.x.x.(i + 1)."""

    def __init__(self, interfaces: list[int]) -> None:
        self.rate, self.latency = math.inf, 0.0  # bytes per second, and seconds from any host to any other
        self._interfaces = interfaces
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._sent = [0.0] * len(interfaces)  # when each host's link has carried all that it sent
        self._received = [0.0] * len(interfaces)

    def take(self, source: int, packet: bytes) -> None:
        """Takes a packet that a host sends now."""
        is_ipv4, target = packet[HEADER.size] >> 4 == 4, packet[HEADER.size + 19] - 1
        if not is_ipv4 or not 0 <= target < len(self._interfaces):
            return  # multicast and the like
        size = wire_bytes(packet)
        begin = max(time.monotonic(), self._sent[source])
        self._sent[source] = begin + size / self.rate
        self._at(begin + min(size, FRAME) / self.rate, self._forward, target, size, packet)

    def _forward(self, arrived: float, target: int, size: int, packet: bytes) -> None:
        """A switch sends frames on as they come; the packet's first one has arrived."""
        self._received[target] = max(arrived, self._received[target]) + size / self.rate
        self._at(self._received[target] + self.latency, self._deliver, target, packet)

    def _deliver(self, _: float, target: int, packet: bytes) -> None:
        os.write(self._interfaces[target], packet)

    def _at(self, when: float, step: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._events, (when, next(self._order), step, arguments))

    def advance(self) -> float | None:
        """Does all that is due; returns the seconds until there is more to do, None if nothing is under way.

        A step that is late counts as done in time, so that delays do not add up.
        """
        while self._events:
            when, _, step, arguments = self._events[0]
            if (wait := when - time.monotonic()) > 0:
                return wait
            heapq.heappop(self._events)
            step(when, *arguments)
        return None


def main() -> None:
    names, control_path = sys.argv[1:-1], sys.argv[-1]
    try:
        interfaces = [open_interface(name) for name in names]
        control = os.open(control_path, os.O_RDWR | os.O_NONBLOCK)
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # hosts that compute must not hold up the links
    except OSError as error:
        sys.exit(f"the switch between emulated hosts needs TUN interfaces and a real-time priority: {error}")
    print("ready", flush=True)
    switch = Switch(interfaces)
    sources = {interface: i for i, interface in enumerate(interfaces)}
    while True:
        readable, _, _ = select.select([control, *interfaces], [], [], switch.advance())
        for file in readable:
            if file == control:
                bits, switch.latency = map(float, os.read(control, 1 << 16).split(b"\n")[-2].split())
                switch.rate = bits / 8
                continue
            for _ in range(TAKEN_TOGETHER):
                try:
                    packet = os.read(file, LARGEST_PACKET)
                except OSError:  # none is left, or the host is about to be removed
                    break
                switch.take(sources[file], packet)


if __name__ == "__main__":
    main()
