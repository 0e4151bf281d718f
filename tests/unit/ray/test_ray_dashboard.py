"""Asking a dashboard: only GET, page by page, and one clear error for each way it can refuse."""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from egs_core.audit.observed import AuditRequest, observed_of
from egs_core.cli.app import run
from egs_core.errors import InputError
from egs_core.runlog.records import TaskAdded
from egs_ray.audit import read as asked
from egs_ray.audit.read import read_history

FILES = Path(__file__).parents[2] / "fixtures" / "ray_history"
Answer = Callable[[str, dict[str, str]], tuple[int, Any]]


class Dashboard(ThreadingHTTPServer):
    """Answers as a recorded Ray did, or as a test wants; remembers what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str]] = []  # method, path, token
        self.answer: Answer = recorded
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Dashboard

    def do_GET(self) -> None:
        """Whatever the test has set."""
        self.server.requests.append((self.command, self.path, self.headers.get("Authorization", "")))
        parts = urllib.parse.urlsplit(self.path)
        code, body = self.server.answer(parts.path, dict(urllib.parse.parse_qsl(parts.query)))
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_PUT = do_DELETE = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


RECORDED = json.loads((FILES / "dashboard.json").read_text())


def recorded(path: str, _query: dict[str, str]) -> tuple[int, Any]:
    """What the recorded Ray said."""
    name = "version" if path == "/api/version" else path.rpartition("/")[2]
    return (200, RECORDED[name]) if name in RECORDED else (404, {})


@pytest.fixture
def dashboard() -> Iterator[Dashboard]:
    """A dashboard on a free port."""
    server = Dashboard()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_reads_only(dashboard: Dashboard) -> None:
    """An audit sends GET requests and nothing else, no more than one for each table."""
    found = observed_of(read_history(AuditRequest(dashboard.url)))
    assert sum(isinstance(record, TaskAdded) for record in found.records) == 21
    assert {method for method, _, _ in dashboard.requests} == {"GET"}
    assert len(dashboard.requests) == 6


def test_tasks_that_ray_no_longer_knows_are_said(dashboard: Dashboard, capsys: pytest.CaptureFixture[str]) -> None:
    """Ray keeps so many task events; what it dropped it counts, and so does the audit."""

    def dropped(path: str, query: dict[str, str]) -> tuple[int, Any]:
        code, body = recorded(path, query)
        if path.endswith("/tasks"):
            body = json.loads(json.dumps(body))
            body["data"]["result"]["total"] += 777
        return code, body

    dashboard.answer = dropped
    assert run(["audit", "--ray", dashboard.url, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["tasks_lost"] == 777
    assert "777 tasks are missing" in " ".join(shown["unknown"])


def test_full_answers_are_asked_for_job_by_job(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer has so many rows at most; a job's own are asked for then."""
    monkeypatch.setattr(asked, "MOST_ROWS", 10)

    def paged(path: str, query: dict[str, str]) -> tuple[int, Any]:
        code, body = recorded(path, query)
        if path.endswith("/tasks") and "filter_keys" not in query:
            body = json.loads(json.dumps(body))
            body["data"]["result"]["result"] = body["data"]["result"]["result"][: int(query["limit"])]
        return code, body

    dashboard.answer = paged
    found = observed_of(read_history(AuditRequest(dashboard.url)))
    assert sum(isinstance(record, TaskAdded) for record in found.records) == 21
    assert found.tasks_lost == 0
    assert any("filter_values=01000000" in path for _, path, _ in dashboard.requests)


def test_token(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The token of Ray's own commands is sent; one that is refused is said with what to set."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "one")
    read_history(AuditRequest(dashboard.url))
    (tmp_path / "token").write_text("two\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    read_history(AuditRequest(dashboard.url))
    assert {token for _, _, token in dashboard.requests} == {"Bearer one", "Bearer two"}
    dashboard.answer = lambda _path, _query: (401, {})
    with pytest.raises(InputError, match="refuses the request") as caught:
        read_history(AuditRequest(dashboard.url))
    assert "RAY_AUTH_TOKEN" in caught.value.hint
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(InputError, match="cannot be read"):
        read_history(AuditRequest(dashboard.url))


@pytest.mark.parametrize(
    ("code", "body", "said"),
    [
        (200, {"hello": 1}, "is no Ray dashboard"),
        (200, b"<html>", "no answer from a Ray dashboard"),
        (500, {}, "answers 500"),
    ],
)
def test_other_servers(
    code: int, body: Any, said: str, dashboard: Dashboard, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is not Ray's dashboard, or a broken one, is one line and exit code 2."""
    dashboard.answer = lambda _path, _query: (code, body)
    assert run(["audit", "--ray", dashboard.url]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_answers_of_another_shape(dashboard: Dashboard) -> None:
    """A Ray whose rows are not known is named with its version."""

    def changed(path: str, query: dict[str, str]) -> tuple[int, Any]:
        return (200, {"data": {}}) if path.endswith("/workers") else recorded(path, query)

    dashboard.answer = changed
    with pytest.raises(InputError, match=r"Ray 2\.60\.0 answers in a way that is not known"):
        read_history(AuditRequest(dashboard.url))


def test_empty_cluster(dashboard: Dashboard, capsys: pytest.CaptureFixture[str]) -> None:
    """A cluster on which nothing ran: said in one line."""

    def empty(path: str, query: dict[str, str]) -> tuple[int, Any]:
        if path.rpartition("/")[2] in ("tasks", "jobs"):
            return 200, {"data": {"result": {"total": 0, "result": []}}}
        return recorded(path, query)

    dashboard.answer = empty
    assert run(["audit", "--ray", dashboard.url]) == 2
    assert "no task of any job is known there" in capsys.readouterr().err
