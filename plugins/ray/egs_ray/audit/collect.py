"""`egs collect`: a small HTTP server that Ray's aggregator agents push their events to, so that they outlive Ray.

Ray sends a batch again until it is answered with 200, for ever. So 200 means that it is on disk; a full disk is 503,
and Ray tries again; a body that is no batch of events at all, which no Ray sends, is 400.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from egs_core.adapter import CollectRequest
from egs_core.errors import InputError
from egs_core.history.opened import open_history
from egs_ray.audit.spool import Spool

MOST_BODY_BYTES = 32 * 1024 * 1024
MOST_AT_ONCE = 4
PATIENCE_S = 30.0
LOOK_EVERY_S = 1.0


class Receiver(ThreadingHTTPServer):
    """Listens from its creation on; `serve_forever` in a thread, `shutdown` from another."""

    daemon_threads = True

    def __init__(self, host: str, port: int, spool: Spool) -> None:
        self.spool = spool
        self.lock = threading.Lock()
        self.places = threading.BoundedSemaphore(MOST_AT_ONCE)
        self.refused = 0
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}"

    def handle_error(self, *_: Any) -> None:
        """A sender that went away in the middle is its own affair."""
        self.refused += 1


class _Handler(BaseHTTPRequestHandler):
    timeout = PATIENCE_S
    server: Receiver

    def do_POST(self) -> None:
        """A batch of events."""
        if not self.server.places.acquire(blocking=False):
            self._answer(503, "busy")
            return
        try:
            self._answer(*self._take())
        finally:
            self.server.places.release()

    def do_GET(self) -> None:
        """How it is doing."""
        spool = self.server.spool
        counts = {"events": spool.events, "left_out": spool.left_out, "refused": self.server.refused}
        self._answer(200, json.dumps(counts))

    def _take(self) -> tuple[int, str]:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            return self._refuse(411, "a batch has a Content-Length")
        if int(length) > MOST_BODY_BYTES:
            return self._refuse(413, f"at most {MOST_BODY_BYTES} bytes")
        try:
            batch = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError) as error:
            return self._refuse(400, f"not JSON: {error}")
        if not isinstance(batch, list):
            return self._refuse(400, "a batch is a list of events")
        try:
            with self.server.lock:
                self.server.spool.take(batch, time.time())
        except OSError as error:
            return self._refuse(503, f"cannot be kept: {error.strerror}")
        return 200, "kept"

    def _refuse(self, code: int, why: str) -> tuple[int, str]:
        self.server.refused += 1
        self.close_connection = True
        return code, why

    def _answer(self, code: int, text: str) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a cluster sends several batches a second."""


def collect(request: CollectRequest) -> None:
    """Receive until SIGTERM or SIGINT; then write what is there. InputError where it cannot listen or write."""
    history = open_history(request.history)
    try:
        spool = Spool(request.folder, history)
    except OSError as error:
        raise InputError(str(request.folder), f"cannot be written: {error.strerror}") from None
    try:
        receiver = Receiver(request.host, request.port, spool)
    except (OSError, OverflowError) as error:
        raise InputError(f"--listen {request.host}:{request.port}", f"cannot listen there: {error}") from None
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    threading.Thread(target=receiver.serve_forever, name="egs-collect", daemon=True).start()
    request.told(_how_to_send(receiver.url))
    while not stop.wait(LOOK_EVERY_S):
        _tell(request, receiver, lambda: spool.write_settled(time.time()))
    receiver.shutdown()
    _tell(request, receiver, spool.write_all)
    receiver.server_close()
    history.close()
    request.told(f"{spool.events} events kept, {spool.left_out} left out, {spool.rows} durations in the history")


def _tell(request: CollectRequest, receiver: Receiver, write: Any) -> None:
    """Write run logs; a job that cannot be written is one line, and the collector goes on."""
    try:
        with receiver.lock:
            written = write()
    except (OSError, ValueError, InputError) as error:
        request.told(f"a run log could not be written: {error}")
        return
    for path in written:
        request.told(f"run log: {path}")


def _how_to_send(url: str) -> str:
    settings = f"RAY_DASHBOARD_AGGREGATOR_AGENT_EVENTS_EXPORT_ADDR={url} "
    settings += "RAY_enable_core_worker_ray_event_to_aggregator=1 RAY_enable_ray_event=1"
    return f"listening on {url}; for `ray start` on every node, and for drivers from outside: {settings}"
