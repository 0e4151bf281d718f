"""The HTTP client of all adapters, on a real server of the test's own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from egs_core.errors import InputError
from egs_core.web import Api, Refused, Unreachable


class Handler(BaseHTTPRequestHandler):
    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        asked = {"method": self.command, "body": body, "authorization": self.headers.get("Authorization")}
        content = {"/echo": json.dumps(asked).encode(), "/empty": b"", "/page": b"<html>"}.get(self.path, b"what?")
        self.send_response(200 if self.path in ("/echo", "/empty", "/page") else 409)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = answer

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Api(f"http://127.0.0.1:{server.server_port}", "a test", "try another")
        server.shutdown()
        thread.join()


def test_an_answer(api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Method, body and token arrive as given, and nothing of a .netrc; an empty answer is None."""
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert api.ask("/echo") == {"method": "GET", "body": None, "authorization": None}
    told = api.ask("/echo", "POST", {"a": [1]}, token="t")
    assert told == {"method": "POST", "body": {"a": [1]}, "authorization": "Bearer t"}
    assert api.ask("/empty") is None


def test_what_is_no_answer(api: Api) -> None:
    """A status of 400 or more is the caller's to explain; what is not JSON, and silence, are errors with the address,
    the system's own reason and a hint. Only silence may be worth asking again."""
    with pytest.raises(Refused, match="409 Conflict") as refused:
        api.ask("/other")
    assert (refused.value.status, refused.value.text) == (409, "what?")
    with pytest.raises(InputError, match="no answer from a test: Expecting value") as page:
        api.ask("/page")
    assert (page.value.place, page.value.hint, isinstance(page.value, Unreachable)) == (api.url, "try another", False)
    with pytest.raises(Unreachable, match=r"^http://127\.0\.0\.1:1: no answer from a test: \[Errno 111\] Connection"):
        Api("http://127.0.0.1:1", "a test").ask("/")
    with pytest.raises(Unreachable, match=r"no answer from a test: .*Errno"):
        Api("https://no-such-host.invalid", "a test").ask("/")
