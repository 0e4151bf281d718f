"""The site's application as `egs serve` runs it, in a thread: uvicorn, a TCP port, a Unix socket whose peer the kernel
names. Who asks over the socket may be any user, where the tests are root: a thread may have a user id of its own."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import platform
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from egs_core.client.processes import process
from egs_core.queues import load_teams, parse_queues
from egs_core.server import logic, serving
from egs_core.server.access import Access, Provider
from egs_core.server.app import Site
from egs_core.server.dashboard import Dashboard
from egs_core.server.doors import Door
from egs_core.server.ordering import Ordering
from egs_core.server.runs import Offer
from egs_core.server.store import SqlStore
from egs_core.server.writer import Turns, Writer
from tests.unit.server.real_site import PATIENCE_S
from tests.unit.server.site_world import OFFER

T = TypeVar("T")
SETRESUID = {"x86_64": 117, "aarch64": 147}.get(platform.machine())
CAN_BE_OTHERS = os.getuid() == 0 and SETRESUID is not None

FILE = """
teams:
  - name: vision
    users: [uid70001, uid70002]
  - name: speech
    users: ["70003"]
queues:
  - name: common
  - name: images
    team: vision
  - name: sounds
    team: speech
"""


class Answer(msgspec.Struct):
    """What came back."""

    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def told(self) -> Any:
        return json.loads(self.body)

    @property
    def detail(self) -> str:
        """What a refusal says, of each field where there are several."""
        found = self.told["detail"]
        return found if isinstance(found, str) else "; ".join(f"{one['loc']}: {one['msg']}" for one in found)


class RealApp:
    """One site. file: its YAML of queues and teams, "" for none; ordering: of those that have their order learned."""

    def __init__(
        self,
        file: str = "",
        offer: Offer = OFFER,
        provider: Provider | None = None,
        ordering: Ordering | None = None,
        **limits: Any,
    ) -> None:
        folder = self.folder = Path(tempfile.mkdtemp())  # pytest's own folders are closed to other users
        folder.chmod(0o755)
        (folder / "site.yaml").write_text(file)
        teams = load_teams(folder / "site.yaml") if file else None
        queues = parse_queues(file) if file else ()
        self.store = SqlStore(folder, time.time())
        self.access = Access(self.store, teams, provider)
        turns = Turns(self.store, offer, queues, team_of_queue=teams.of_queue if teams else None)
        turns.tally.slos.objectives = teams.slos if teams else {}
        self.site = Site(lambda changed: Writer(turns, changed), self.access, **limits)
        self.site.ordering = ordering
        self.tcp = Door().listen()
        self.port = self.tcp.getsockname()[1]
        self.path = folder / "egs.sock"
        self.dashboard = self.site.dashboard = Dashboard(folder, self.port, self.path)
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        local.bind(str(self.path))
        self.path.chmod(serving.SOCKET_MODE)
        local.listen(128)
        self._patience = pytest.MonkeyPatch()
        self._patience.setattr(logic, "SILENT_S", PATIENCE_S)  # a file's tests share a lease that nobody beats
        began = threading.Event()
        self._sockets = [self.tcp, local]
        self._server = serving._Server(serving._config(self.site), self.site, began.set)
        self._thread = threading.Thread(target=self._server.run, args=(self._sockets,), daemon=True)
        self._thread.start()
        assert began.wait(PATIENCE_S)
        self.admin = self.over_tcp(self.access.own_token(time.time()))

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)
        self.dashboard.close()
        for one in self._sockets:
            one.close()
        self.store.close()
        self._patience.undo()
        shutil.rmtree(self.folder)

    def over_tcp(self, token: str = "") -> Asker:
        return Asker(lambda: http.client.HTTPConnection("127.0.0.1", self.port, timeout=60), token)

    def over_socket(self, uid: int) -> Asker:
        """A user of the host."""
        return Asker(lambda: _Local(self.path, uid))

    def token(self, role: str, team: str = "", name: str = "") -> Asker:
        """Somebody with a new token."""
        made = self.admin.post(
            "/v1/tokens", {"role": role, "team": team, "name": name, **({"host": "far"} if role == "agent" else {})}
        )
        assert made.status == 200, made.body
        return self.over_tcp(made.told["token"])

    def raw(self, sent: bytes, *, over_socket: bool = False) -> bytes:
        """Bytes as they are, and all that comes back."""
        with self.connection(over_socket=over_socket) as connection:
            connection.settimeout(60)
            connection.sendall(sent)
            found = b""
            while piece := connection.recv(65536):
                found += piece
            return found

    def slowly(self, begin: bytes, more: bytes, *, over_socket: bool = False) -> bytes:
        """`begin`, then `more` again and again; all that comes back until the server hangs up."""
        until = time.monotonic() + PATIENCE_S
        with self.connection(over_socket=over_socket) as connection:
            connection.settimeout(0.05)
            connection.sendall(begin)
            found = b""
            while time.monotonic() < until:
                try:
                    if not (piece := connection.recv(65536)):
                        return found
                    found += piece
                except TimeoutError:
                    with contextlib.suppress(ConnectionError):
                        connection.sendall(more)
                except ConnectionError:
                    return found
        raise AssertionError(f"after {PATIENCE_S:g} s the server waits still; it has said {found!r}")

    def connection(self, *, over_socket: bool = False) -> socket.socket:
        if not over_socket:
            return socket.create_connection(("127.0.0.1", self.port))
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(str(self.path))
        return connection


class Asker:
    """Somebody, at the other end of connections of their own."""

    def __init__(self, connect: Callable[[], http.client.HTTPConnection], token: str = "") -> None:
        self._connect = connect
        self.token = token

    def ask(
        self, method: str, path: str, told: Any = None, content: bytes | None = None, **headers: str | None
    ) -> Answer:
        """told: as JSON; content: as it stands. A header that is None is not sent; `_` stands for `-`."""
        sent: dict[str, str | None] = {"Content-Type": "application/json"}
        if self.token:
            sent["Authorization"] = f"Bearer {self.token}"
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        body = content if told is None else msgspec.json.encode(told)
        connection = self._connect()
        try:
            connection.request(method, path, body, {name: one for name, one in sent.items() if one is not None})
            found = connection.getresponse()
            return Answer(found.status, found.read(), {name.lower(): one for name, one in found.getheaders()})
        finally:
            connection.close()

    def get(self, path: str, **headers: str | None) -> Answer:
        return self.ask("GET", path, None, None, **headers)

    def post(self, path: str, told: Any = None, **headers: str | None) -> Answer:
        return self.ask("POST", path, {} if told is None else told, None, **headers)

    def submit(self, key: str, **more: Any) -> Answer:
        """A run whose supervisor is this process."""
        own = process(os.getpid())
        assert own is not None
        return self.post("/v1/runs", {"key": key, "supervisor": own.model_dump(), "name": "job", **more})

    def runs(self) -> list[str]:
        found = self.get("/v1/runs")
        assert found.status == 200, found.body
        return [run["id"] for run in found.told["runs"]]


class _Local(http.client.HTTPConnection):
    def __init__(self, path: Path, uid: int) -> None:
        super().__init__("site", timeout=60)
        self._path, self._uid = path, uid

    def connect(self) -> None:
        self.sock = as_user(self._uid, self._connected)

    def _connected(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(60)
        connection.connect(str(self._path))
        return connection


def as_user(uid: int, what: Callable[[], T]) -> T:
    """The value of `what`, called by a thread whose user id, for the kernel, is this."""
    if uid == os.getuid():
        return what()
    found: list[T] = []

    def other() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.syscall(SETRESUID, uid, uid, uid) == 0  # the system call is the thread's; C's function all threads'
        found.append(what())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(PATIENCE_S)
    return found[0]
