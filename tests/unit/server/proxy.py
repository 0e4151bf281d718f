"""A way to a port of this machine that can be cut: nothing is closed, but no byte passes any more."""

from __future__ import annotations

import contextlib
import socket
import threading

PIECE = 1 << 16


class Proxy:
    """Listens on a free port of its own, and passes on what comes to the other one."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._is_open = threading.Event()
        self._is_open.set()
        self._gates = [self._is_open]  # of connections of now and of before
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._listen, name="proxy", daemon=True).start()

    def cut(self) -> None:
        """What comes from now on, over connections old and new, is kept, and nobody hears that."""
        self._is_open.clear()

    def mend(self) -> None:
        """All passes that was kept, and what comes."""
        self._is_open.set()

    def forget(self) -> None:
        """The connections of before stay cut for ever; new ones pass."""
        self._is_open = threading.Event()
        self._is_open.set()
        self._gates.append(self._is_open)

    def close(self) -> None:
        for gate in self._gates:
            gate.set()
        for one in [self._listening, *self._sockets]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _listen(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                if self._listening.fileno() < 0:
                    return
                near.close()  # nobody listens there
                continue
            self._sockets += [near, far]
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, target, self._is_open), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, is_open: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE):
                is_open.wait()
                target.sendall(piece)
        is_open.wait()
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
