"""Processes that watch each other: when one is killed, gets stuck or fails, all others end and say which one it was.

Every process keeps a TCP connection to process 0, at the port after the coordinator's, and sends a heartbeat over it a
few times per timeout. A connection that closes without a farewell means that its process was killed, one that is silent
for the timeout that its process is stuck. Heartbeats also say how many guarded calls, such as those for its input, a
process has entered and left: one still in a call that another left a timeout ago is stuck, too. Process 0 tells the
others. JAX's own heartbeats would end them too, but by abort() and not always naming the process; they wait longer, and
remain for what this watch cannot see.
"""

import contextlib
import ctypes
import dataclasses
import json
import math
import os
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from examples.common.errors import BadInput
from examples.common.rank import Rank

ARRIVAL = 300.0  # seconds for all processes to arrive, as in jax.distributed
_BEATS = 5  # per timeout
_VERDICT = 3.0  # seconds within which news of a killed process is sure to arrive
_PARTING = 1.0  # seconds for the others to leave before process 0, whose end JAX takes for a crash
_FAILED, _BAD_INPUT, _INTERRUPTED = 1, 2, 130  # exit codes


@dataclasses.dataclass
class _Peer:
    connection: socket.socket
    index: int = 0
    heard: float = math.inf  # time of the last message; silence counts from the first one on
    unread: bytes = b""
    done: bool = False

    def send(self, *words: object) -> None:
        with contextlib.suppress(OSError):  # receive() will find that the peer is gone
            self.connection.sendall(json.dumps(words).encode() + b"\n")

    def receive(self) -> list[list] | None:
        """The messages that have arrived, waiting for the first; None if no more can arrive."""
        lines: list[bytes] = []
        while not lines:
            try:
                received = self.connection.recv(1 << 16)
            except OSError:  # among others, that the network gave up resending
                received = b""
            if not received:
                return None
            *lines, self.unread = (self.unread + received).split(b"\n")
        self.heard = time.monotonic()
        return [json.loads(line) for line in lines]


class Watch:
    """Inside the `with` block the processes watch each other; an exception that leaves it ends them all.

    `sys.exit` with another code than 0 is one, too.

    Args:
      rank: this process.
      timeout: seconds of silence after which a process counts as stuck.

    Raises:
      TimeoutError: if processes do not arrive within five minutes.
      BadInput: if their ranks are inconsistent, or the port is taken.
    """

    def __init__(self, rank: Rank, timeout: float):
        self._rank, self._timeout = rank, timeout
        self._peers: list[_Peer] = []
        self._complete = threading.Event()
        self._ending = threading.Lock()
        self._crossings = 0  # into guarded calls and out of them: odd inside
        self._reached: dict[int, tuple[int, float]] = {}  # the crossings of each process, and since when

    def __enter__(self) -> "Watch":
        _slow_abort()
        first = self._rank.index == 0
        self._peers = _meet_others(self._rank, self._timeout) if first else [_meet_first(self._rank)]
        for peer in self._peers:
            peer.connection.settimeout(self._timeout)
            if first:
                peer.send("complete")
                peer.heard = time.monotonic()  # the last process may have arrived late
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        if not first and not self._complete.wait(2 * ARRIVAL):
            raise TimeoutError(f"{self._rank.name(0)} has not said whether all processes have arrived")
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> None:
        if error is None or (isinstance(error, SystemExit) and not error.code):
            for peer in self._peers:
                peer.send("done")
            return
        if isinstance(error, SystemExit):
            status = isinstance(error.code, int)
            self._fail(error.code if status else _FAILED, f"exit code {error.code}" if status else str(error.code))
        if not isinstance(error, Exception):
            self._fail(_INTERRUPTED, "interrupted")
        time.sleep(_VERDICT)  # Collectives and checkpoints fail when another process dies: wait to learn which one.
        if isinstance(error, BadInput):
            self._fail(_BAD_INPUT, str(error))
        with contextlib.suppress(OSError):
            traceback.print_exception(error)
        self._fail(_FAILED, f"{kind.__name__}: {error}")

    def guard(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `fun`, for every process to call equally often; one that hangs in it while others wait is stuck."""

        def guarded(*args: Any) -> Any:
            self._crossings += 1
            try:
                return fun(*args)
            finally:
                self._crossings += 1

        return guarded

    def _watch(self) -> None:
        interval, next_beat, awake = self._timeout / _BEATS, 0.0, time.monotonic()
        with selectors.DefaultSelector() as selector:
            for peer in self._peers:
                selector.register(peer.connection, selectors.EVENT_READ, peer)
            while selector.get_map():
                for key, _ in selector.select(max(0.0, next_beat - time.monotonic())):
                    if not self._listen(key.data):
                        selector.unregister(key.fileobj)
                now = time.monotonic()
                if now - awake > 2 * interval:
                    self._forget_silence(now)
                awake = now
                if now >= next_beat:
                    next_beat = now + interval
                    self._note(self._rank.index, self._crossings)
                    if self._rank.index == 0:
                        self._check_guarded()
                    for key in selector.get_map().values():
                        key.data.send("beat", self._crossings)
                        if now - key.data.heard > self._timeout:
                            self._end(
                                _FAILED,
                                f"{self._name(key.data)} is stuck: nothing heard from it for {self._timeout:g} s",
                            )

    def _forget_silence(self, now: float) -> None:
        """Others may have been as silent as this process, which was stopped: a job suspended in a terminal, say."""
        self._reached.clear()
        for peer in self._peers:
            peer.heard = max(peer.heard, now)

    def _listen(self, peer: _Peer) -> bool:
        """Handles what a process sends; returns whether more may follow."""
        try:
            messages = peer.receive()
        except ValueError:
            another = f"another program listens on the port after {self._rank.coordinator}"
            self._end(_BAD_INPUT, f"{self._name(peer)} does not answer: {another}; give another --coordinator")
        if messages is None:
            if not peer.done:
                self._end(_FAILED, f"{self._name(peer)} was killed: its connection closed without a word")
            return False
        for word, *rest in messages:
            if word == "complete":
                self._complete.set()
            if word == "beat":
                self._note(peer.index, *rest)
            peer.done = peer.done or word == "done"
            if word == "over":
                self._end(*rest)
        return True

    def _note(self, index: int, crossings: int) -> None:
        if self._reached.get(index, (None, 0.0))[0] != crossings:
            self._reached[index] = crossings, time.monotonic()

    def _check_guarded(self) -> None:
        """Ends all processes if one is in a guarded call that another has left, both for the timeout."""
        past = time.monotonic() - self._timeout
        resting = {index: crossings for index, (crossings, since) in self._reached.items() if since < past}
        for index, crossings in resting.items():
            if crossings % 2 and crossings < max(resting.values()):
                why = f"the others have waited for its input for {self._timeout:g} s"
                self._end(_FAILED, f"{self._rank.name(index)} is stuck: {why}")

    def _fail(self, code: int, text: str) -> None:
        """Ends all processes because of what happened in this one."""
        why = f"{self._rank.name(self._rank.index)} failed: {text}"
        if self._rank.index > 0:
            self._peers[0].send("over", code, why)
            time.sleep(self._timeout)  # process 0 sends it back, and the watch ends this process, too
        self._end(code, why)

    def _end(self, code: int, why: str) -> None:
        """Ends this process and, by way of process 0, all others, without JAX's shutdown, which waits for dead ones."""
        if not self._ending.acquire(blocking=False):
            time.sleep(self._timeout)  # another thread is about to end it
        for peer in self._peers:
            peer.send("over", code, why)
        for stream, words in ((sys.stdout, ""), (sys.stderr, f"{why}\n")):
            with contextlib.suppress(OSError):  # nobody may read it
                print(words, end="", file=stream, flush=True)
        if self._rank.index == 0:
            _wait_for_ends(self._peers)
        os._exit(code)

    def _name(self, peer: _Peer) -> str:
        return self._rank.name(peer.index)


def _meet_others(rank: Rank, timeout: float) -> list[_Peer]:
    """In process 0, waits for all other processes."""
    peers: list[_Peer] = []
    missing, deadline = set(range(1, rank.count)), time.monotonic() + ARRIVAL

    def refuse(error: type[Exception], code: int, why: str) -> Exception:
        for peer in peers:
            peer.send("over", code, why)
        return error(why)

    port = rank.address[1]
    _listen_at(rank, port, 1).close()  # gRPC would share the port with another run, and end that run
    with _listen_at(rank, port + 1, rank.count) as server:
        while missing:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                peer = _Peer(server.accept()[0])
            except TimeoutError:
                names = ", ".join(map(str, sorted(missing)))
                why = f"not all {rank.count} processes arrived within {ARRIVAL:g} s; missing: {names}"
                raise refuse(TimeoutError, _FAILED, why) from None
            hello = _hello(peer, timeout)
            if hello is None:
                peer.connection.close()  # something else on the network
                continue
            peer.index, count = hello
            earlier = [each for each in peers if each.index == peer.index]
            peers.append(peer)
            if count != rank.count:
                others = f"process {peer.index} was started as one of {count}"
                raise refuse(BadInput, _BAD_INPUT, f"{others}, but process 0 as one of {rank.count}")
            for each in earlier:
                if not _is_gone(each):
                    raise refuse(BadInput, _BAD_INPUT, f"two processes were started as {rank.name(peer.index)}")
                each.connection.close()
                peers.remove(each)
            missing.discard(peer.index)
    return peers


def _is_gone(peer: _Peer) -> bool:
    """Whether a process that waits for others has ended; what it said meanwhile is only that it lives."""
    peer.connection.setblocking(False)
    try:
        while peer.connection.recv(1 << 16):
            pass
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True


def _listen_at(rank: Rank, port: int, backlog: int) -> socket.socket:
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, backlog=backlog, dualstack_ipv6=both)
    except OSError as error:
        raise BadInput(
            f"{rank.name(0)} cannot listen on port {port}: {error.strerror}; give another --coordinator"
        ) from error


def _hello(peer: _Peer, timeout: float) -> tuple[int, int] | None:
    """The index and count that a process reports; None for anything else that connects."""
    peer.connection.settimeout(timeout)
    try:
        word, index, count = peer.receive()[0]
        return (index, count) if word == "hello" else None
    except (OSError, TypeError, ValueError):
        return None


def _meet_first(rank: Rank) -> _Peer:
    """Connects to process 0."""
    host, port = rank.address
    deadline = time.monotonic() + ARRIVAL
    while True:
        try:
            peer = _Peer(socket.create_connection((host, port + 1), timeout=ARRIVAL))
            break
        except OSError as error:  # not listening yet, or its name does not resolve yet
            if time.monotonic() > deadline:
                raise TimeoutError(f"{rank.name(0)} does not answer at {host}:{port + 1}: {error}") from error
            time.sleep(0.2)
    peer.send("hello", rank.index, rank.count)
    return peer


def _slow_abort() -> None:
    """Makes abort() take 6 seconds.

    JAX aborts a process the moment that process 0 is gone, possibly before the watch ends it. A Python signal handler
    would run too late; C's sleep() is async-signal-safe and, as the handler, sleeps for the number of the signal.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # not POSIX
        libc = ctypes.CDLL(None)
        libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        libc.signal.restype = ctypes.c_void_p
        libc.signal(signal.SIGABRT, ctypes.cast(libc.sleep, ctypes.c_void_p))


def _wait_for_ends(peers: list[_Peer]) -> None:
    deadline = time.monotonic() + _PARTING
    for peer in peers:
        with contextlib.suppress(OSError):
            while (left := deadline - time.monotonic()) > 0:
                peer.connection.settimeout(left)
                if not peer.connection.recv(1 << 16):
                    break
