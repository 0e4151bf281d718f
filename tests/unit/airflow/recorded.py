"""An HTTP server that answers as a recorded Airflow 3.3.2 did (here: yesterday), and remembers what it was asked."""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[2] / "fixtures" / "airflow_rest" / "answers.json"
RECORDED_ON = "2026-11-22T"
Answer = Callable[[str, dict[str, str]], tuple[int, Any]]


def recording() -> dict[str, Any]:
    """What was recorded, moved to yesterday: DAG `train` once, with a full pool `gpus` of two slots."""
    yesterday = (datetime.now(UTC) - timedelta(days=1)).strftime("%Y-%m-%dT")
    recorded: dict[str, Any] = json.loads(FILE.read_text().replace(RECORDED_ON, yesterday))
    return recorded


class RecordedAirflow(ThreadingHTTPServer):
    """has_cursors: as Airflow 3.3; else pages by offset, as before. token: asked for where it is set."""

    daemon_threads = True

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        self.tokens: list[str] = []
        self.has_cursors = True
        self.token = ""
        self.gives_token_to_all = False
        self.users: dict[str, str] = {}
        self.variables: dict[str, dict[str, Any]] = {}
        self.data = recording()
        self.answer: Answer = self.recorded
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def recorded(self, path: str, query: dict[str, str]) -> tuple[int, Any]:
        """What the recorded Airflow said."""
        where = urllib.parse.unquote(path.removeprefix("/api/v2/")).split("/")
        match where:
            case ["version"]:
                return 200, self.data["version"]
            case ["pools" | "dags" as what]:
                return 200, self._page(what, self.data[what], query, cursors=False)
            case ["dags", dag, "dagRuns"] if dag in ("~", *self.data["details"]):
                return 200, self._page("dag_runs", self.data["runs"], query, self.has_cursors)
            case ["dags", _, "dagRuns", "~", "taskInstances"]:
                return 200, self._page("task_instances", self.data["instances"], query, self.has_cursors)
            case ["dags", _, "dagRuns", _, "taskInstances", task, *_, "tries"]:
                return 200, {"task_instances": self.data["tries"][task], "total_entries": len(self.data["tries"][task])}
            case ["dags", dag, "details" | "tasks" as what] if dag in self.data[what]:
                found = self.data[what][dag]
                return 200, found if what == "details" else {"tasks": found, "total_entries": len(found)}
        return 404, {"detail": "Not Found"}

    def _page(self, key: str, rows: list[Any], query: dict[str, str], cursors: bool) -> dict[str, Any]:
        begin = int(query.get("cursor") or 0) if cursors else int(query.get("offset", 0))
        end = begin + min(int(query["limit"]), 100)
        page = {key: rows[begin:end], "total_entries": len(rows)}
        return {**page, "next_cursor": str(end) if end < len(rows) else None} if cursors else page


class _Handler(BaseHTTPRequestHandler):
    server: RecordedAirflow

    def do_GET(self) -> None:
        """As the server answers; a token where it gives one."""
        self.server.requests.append((self.command, self.path))
        self.server.tokens.append(self.headers.get("Authorization", ""))
        parts = urllib.parse.urlsplit(self.path)
        if parts.path == "/auth/token":
            self._say(*self._log_in())
        elif self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
            self._say(401 if not self.headers.get("Authorization") else 403, {"detail": "no"})
        elif parts.path.startswith("/api/v2/variables") and (changed := self._set_variable(parts.path)):
            self._say(*changed)
        else:
            self._say(*self.server.answer(parts.path, dict(urllib.parse.parse_qsl(parts.query))))

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _set_variable(self, path: str) -> tuple[int, Any] | None:
        """What Airflow does with its Variables; None where none is changed."""
        kept, name = self.server.variables, path.rpartition("/")[2]
        if self.command == "GET":
            return (200, kept[name]) if name in kept else None
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if (self.command == "PATCH") != (body["key"] in kept):
            return (404, {}) if self.command == "PATCH" else (409, {})
        kept[body["key"]] = body
        return 200, body

    def _log_in(self) -> tuple[int, Any]:
        if self.command == "GET":
            return (201, {"access_token": self.server.token}) if self.server.gives_token_to_all else (403, {})
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.users.get(body["username"]) == body["password"]:
            return 201, {"access_token": self.server.token}
        return 401, {"detail": "Invalid credentials"}

    def _say(self, code: int, body: Any) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@contextmanager
def recorded_airflow() -> Iterator[RecordedAirflow]:
    """One on a free port, gone at the end."""
    server = RecordedAirflow()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
