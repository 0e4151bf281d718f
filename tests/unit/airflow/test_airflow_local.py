"""The client of an Airflow of our own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from egs_airflow.local import LOCKED, TRIES, LocalAirflow, LocalAirflowError

ANSWERS: list[tuple[int, object]] = []


class Answering(BaseHTTPRequestHandler):
    """Gives the next of ANSWERS, an emulated api-server's."""

    def do_GET(self) -> None:
        """One answer."""
        code, body = ANSWERS.pop(0)
        content = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def airflow(tmp_path: Path) -> Iterator[LocalAirflow]:
    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield LocalAirflow(f"http://127.0.0.1:{server.server_port}", tmp_path, {})
        server.shutdown()
        thread.join()
    ANSWERS.clear()


@pytest.mark.parametrize("said", LOCKED)
def test_a_locked_database_is_asked_again(airflow: LocalAirflow, said: str) -> None:
    """What Airflow gave up for a lock of its own is tried again, not for ever; any other error is said at once."""
    locked = (500, {"detail": {"reason": said}})
    ANSWERS.extend([locked, locked, (200, {"name": "gpu"})])
    assert airflow.rest("GET", "/pools/gpu") == {"name": "gpu"}
    ANSWERS.extend([locked] * (TRIES + 1))
    with pytest.raises(LocalAirflowError, match=said):
        airflow.rest("GET", "/pools/gpu")
    assert len(ANSWERS) == 1
    ANSWERS[:] = [(500, "out of luck"), (200, "never asked")]
    with pytest.raises(LocalAirflowError, match="out of luck"):
        airflow.rest("GET", "/pools/gpu")
    assert len(ANSWERS) == 1
