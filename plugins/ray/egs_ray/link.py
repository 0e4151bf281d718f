"""The line between the driver's process and the workers: small JSON messages over TCP, standard library only.

Ray's own ways from a driver to a running task cost an actor and about 2 ms each way; this costs 0.1 ms and needs no
further process. Both ends prove that they know the run's key (`multiprocessing.connection`, HMAC) and nothing is
ever unpickled. One connection a worker process, kept open; the kernel closes it when the process dies, so its end is
how the driver learns of a crash.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

Message = dict[str, Any]
MAX_BYTES = 1 << 20


class Peer:
    """One end of a connection. Any thread may send; one thread reads."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Raises OSError when the other end is gone."""
        data = json.dumps(message).encode()
        with self._lock:
            self._connection.send_bytes(data)

    def receive(self) -> Message:
        """The next message. Raises EOFError or OSError when the other end is gone."""
        message = json.loads(self._connection.recv_bytes(MAX_BYTES))
        if not isinstance(message, dict):
            raise OSError("a message that is no object")
        return message

    def close(self) -> None:
        """End the connection for both sides; a thread that is reading it sees its end, which closing would not do."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)


class Server:
    """The driver's end: accepts workers and calls `on_message(peer, message)` and `on_gone(peer)` on reader threads."""

    def __init__(self, host: str, on_message: Callable[[Peer, Message], None], on_gone: Callable[[Peer], None]) -> None:
        self._key = secrets.token_bytes(32)
        self._listener = Listener((host, 0), family="AF_INET", backlog=128)
        self._on_message, self._on_gone = on_message, on_gone
        self._closed = False
        self._peers: set[Peer] = set()
        self.address: tuple[str, int, str] = (host, self._listener.address[1], self._key.hex())
        threading.Thread(target=self._accept, name="egs-link", daemon=True).start()

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        for peer in list(self._peers):
            peer.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), name="egs-link-peer", daemon=True).start()

    def _serve(self, connection: Connection[Any, Any]) -> None:
        """Authenticate and read one worker. A stranger costs a thread, never the acceptor."""
        from multiprocessing.connection import answer_challenge, deliver_challenge

        peer = Peer(connection)
        try:
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
        except Exception:
            connection.close()
            return
        self._peers.add(peer)
        try:
            while True:
                self._on_message(peer, peer.receive())
        except (EOFError, OSError, ValueError):
            self._peers.discard(peer)
            connection.close()
            if not self._closed:
                self._on_gone(peer)


_connected: dict[tuple[int, str, int], Peer] = {}
_guard = threading.Lock()


def connect(address: tuple[str, int, str]) -> Peer:
    """This process's connection to the driver; made once. Raises OSError when the driver cannot be reached."""
    host, port, key = address
    with _guard:
        peer = _connected.get((os.getpid(), host, port))
        if peer is None:
            peer = _connected[os.getpid(), host, port] = Peer(Client((host, port), authkey=bytes.fromhex(key)))
        return peer


def forget(address: tuple[str, int, str]) -> None:
    """Drop this process's connection after it failed, so that the next task tries again."""
    with _guard:
        peer = _connected.pop((os.getpid(), address[0], address[1]), None)
    if peer is not None:
        peer.close()
