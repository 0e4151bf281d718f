"""The line between the driver's process and the workers: small JSON messages over TCP, standard library only.

Ray's own ways from a driver to a running task cost an actor and about 2 ms each way; this costs 0.1 ms and needs no
further process. Both ends prove that they know the run's key (`multiprocessing.connection`, HMAC), and this
unpickles nothing. One connection a worker process, kept open; the kernel closes it when the process dies, so its end
is how the driver learns of a crash.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

Message = dict[str, Any]
MAX_BYTES = 1 << 20
REACH_S = 5.0  # a driver on the same network answers in milliseconds; a firewall may swallow the question
REST, MOST_REST_S = 10, 600.0
REFUSED = (AuthenticationError, EOFError, OSError, ValueError)


class Peer:
    """One end of a connection. Any thread may send; one thread reads."""

    def __init__(self, wire: socket.socket) -> None:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire.setblocking(True)
        self._wire = wire
        self._connection: Connection[Any, Any] = Connection(os.dup(wire.fileno()))
        self._lock = threading.Lock()

    def prove(self, key: bytes, *, first: bool) -> None:
        """Both ends prove that they know the key, within `REACH_S`; one of them asks first. Raises one of REFUSED."""
        self._limit_reading(REACH_S)
        for asks in (first, not first):
            if asks:
                deliver_challenge(self._connection, key)
            else:
                answer_challenge(self._connection, key)
        self._limit_reading(0)

    def _limit_reading(self, seconds: float) -> None:
        """Let reads fail after this time; 0: never. On the socket itself, as `Connection` has no time-outs."""
        self._wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), 0))

    def send(self, message: Message) -> None:
        """Raises OSError when the other end is gone."""
        data = json.dumps(message).encode()
        with self._lock:
            self._connection.send_bytes(data)

    def receive(self) -> Message:
        """The next message. Raises EOFError or OSError when the other end is gone."""
        try:
            message = json.loads(self._connection.recv_bytes(MAX_BYTES))
        except (ValueError, RecursionError) as error:
            raise OSError(f"a message that is no JSON: {error}") from None
        if not isinstance(message, dict):
            raise OSError("a message that is no object")
        return message

    def has_word(self) -> bool:
        """Whether `receive` would not wait; from any thread. Raises OSError when the connection is closed."""
        return self._connection.poll()

    def hang_up(self) -> None:
        """End the connection for both sides; a thread that is reading it sees its end, which closing would not do."""
        with contextlib.suppress(OSError):
            self._wire.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.hang_up()
        self._wire.close()
        with self._lock:
            self._connection.close()


class Server:
    """The driver's end: accepts workers and calls `on_message(peer, message)` and `on_gone(peer)` on reader threads."""

    def __init__(self, host: str, on_message: Callable[[Peer, Message], None], on_gone: Callable[[Peer], None]) -> None:
        self._key = secrets.token_bytes(32)
        self._listener = socket.create_server((host, 0), backlog=128)
        self._on_message, self._on_gone = on_message, on_gone
        self._closed = False
        self._peers: set[Peer] = set()
        self._guard = threading.Lock()
        self.address: tuple[str, int, str] = (host, self._listener.getsockname()[1], self._key.hex())
        threading.Thread(target=self._accept, name="egs-link", daemon=True).start()

    def close(self) -> None:
        """End all connections: workers then know that they are on their own."""
        with self._guard:
            self._closed = True
            peers = list(self._peers)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the acceptor
        self._listener.close()
        for peer in peers:
            peer.hang_up()  # its reader closes it

    def _accept(self) -> None:
        while not self._closed:
            try:
                wire, _ = self._listener.accept()
            except OSError:
                time.sleep(0 if self._closed else 0.05)  # out of file descriptors, for instance: workers wait a while
                continue
            threading.Thread(target=self._serve, args=(wire,), name="egs-link-peer", daemon=True).start()

    def _serve(self, wire: socket.socket) -> None:
        """Authenticate and read one worker. A stranger costs a thread for a while, never the acceptor."""
        peer = Peer(wire)
        try:
            peer.prove(self._key, first=True)
        except REFUSED:
            peer.close()
            return
        with self._guard:
            self._peers.add(peer)
            if self._closed:
                peer.hang_up()
        try:
            while True:
                self._on_message(peer, peer.receive())
        except Exception:  # the other end is gone, or of another version: it has said what cannot be read
            with self._guard:
                self._peers.discard(peer)
            peer.close()
            if not self._closed:
                self._on_gone(peer)


_connected: dict[tuple[int, str, int], Peer] = {}
_failed: dict[tuple[int, tuple[str, int, str]], tuple[int, float]] = {}  # times in a row, and when to try again
_guard = threading.Lock()
_now = time.monotonic


def connect(address: tuple[str, int, str]) -> Peer:
    """This process's connection to the driver; made once. Raises OSError when the driver cannot be reached.

    After a failure it is not tried again for `REST` times as long as that took, and twice that after each further one:
    where a firewall drops packets, a process's tasks wait for it now and then, not each of them.
    """
    place = (os.getpid(), address[0], address[1])
    with _guard:
        peer = _connected.get(place)
        if peer is None:
            peer = _connected[place] = _dial_unless_resting(address)
        return peer


def _dial_unless_resting(address: tuple[str, int, str]) -> Peer:
    host, port, key = address
    place = (os.getpid(), address)
    times, until_s = _failed.get(place, (0, 0.0))
    began_s = _now()
    if began_s < until_s:
        raise OSError(f"{host}:{port} could not be reached {times} times: not tried again yet")
    try:
        peer = _dial(host, port, bytes.fromhex(key))
    except OSError:
        rest_s = min((_now() - began_s) * REST * 2**times, MOST_REST_S)
        _failed[place] = (times + 1, _now() + rest_s)
        raise
    _failed.pop(place, None)
    return peer


def dial(address: tuple[str, int, str]) -> Peer:
    """A connection of its own, which the caller closes. Raises OSError when the driver cannot be reached."""
    host, port, key = address
    return _dial(host, port, bytes.fromhex(key))


def forget(address: tuple[str, int, str]) -> None:
    """Drop this process's connection after it failed, so that the next task tries again."""
    with _guard:
        peer = _connected.pop((os.getpid(), address[0], address[1]), None)
    if peer is not None:
        peer.close()


def _dial(host: str, port: int, key: bytes) -> Peer:
    peer = Peer(socket.create_connection((host, port), timeout=REACH_S))
    try:
        peer.prove(key, first=False)
    except REFUSED as error:
        peer.close()
        raise OSError(f"{host}:{port} is not this run's driver: {type(error).__name__} {error}") from None
    return peer


def tell(peer: Peer, message: Message) -> None:
    """Send it, if the line still stands."""
    with contextlib.suppress(OSError):
        peer.send(message)
