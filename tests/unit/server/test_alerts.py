"""Alerts and an address that nobody can have: each is tried and told in the log, and the next one goes out, too; and by
Apprise, where it is there."""

from __future__ import annotations

import http.server
import importlib.util
import json
import logging
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from egs_core.server.watching import alerts as module
from egs_core.server.watching.alerts import Alerts
from egs_core.server.watching.rules import Alert
from tests.unit.server.real_site import wait_for


@pytest.mark.parametrize("host", ["chat..example.org", f"{'x' * 64}.example.org"])
def test_a_host_that_nobody_can_have_ends_no_thread(
    host: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its client raises an error of its own for such a name. The log says so for each alert, without the address."""
    monkeypatch.setattr(module, "PAUSES_S", ())
    alerts = Alerts(f"http://{host}/secret", "site")
    with caplog.at_level(logging.WARNING, "uvicorn.error"):
        alerts.start()
        try:
            for rule in ("hot", "idle"):
                alerts.send(Alert(0.0, rule, "0", "too hot"))
            wait_for(lambda: len(caplog.records) == 2, "both are told")
        finally:
            alerts.close()
    told = [record.getMessage() for record in caplog.records]
    assert [one.split(" was not taken")[0] for one in told] == [f"an alert of rule {rule}" for rule in ("hot", "idle")]
    assert "secret" not in caplog.text


@contextmanager
def served(handler: Callable[..., Any], got: list[str]) -> Iterator[int]:
    """A receiver on a port of its own; got: what handlers have received."""
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    vars(server)["got"] = got
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Post(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        vars(self.server)["got"].append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Not to the test's output."""


class Mail(socketserver.StreamRequestHandler):
    """As much of a mail server as a message needs."""

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline():
            if line.upper().startswith(b"DATA"):
                self.wfile.write(b"354 go on\r\n")
                message = b"".join(iter(self.rfile.readline, b".\r\n"))
                vars(self.server)["got"].append(message.decode())
            self.wfile.write(b"250 taken\r\n")


@pytest.mark.skipif(importlib.util.find_spec("apprise") is None, reason="the extra `alerts` is not installed here")
def test_by_apprise_to_a_service_and_by_mail(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """One alert, three addresses: a service and a mailbox have it, with the rule in its title; an address of which
    Apprise knows nothing is told in the log by its kind, without what it has of secrets. The library is not in this
    process."""
    monkeypatch.setattr(module, "PAUSES_S", ())
    posted, mailed = list[str](), list[str]()
    with served(Post, posted) as port, served(Mail, mailed) as smtp:
        mail = f"mailto://127.0.0.1:{smtp}/?from=egs@example.org&to=ops@example.org&mode=insecure"
        alerts = Alerts("", "site", ["nosuch://secret", f"json://127.0.0.1:{port}/", mail])
        with caplog.at_level(logging.WARNING, "uvicorn.error"):
            alerts.start()
            try:
                alerts.send(Alert(0.0, "hot", "0", "GPU 0 has 95 degrees"))
                wait_for(lambda: posted and mailed, "both have it")
            finally:
                alerts.close()
    told = json.loads(posted[0])
    assert (told["title"], told["message"], told["type"]) == (
        "EGS at site: rule hot",
        "GPU 0 has 95 degrees",
        "warning",
    )
    assert "apprise" not in sys.modules
    assert "ops@example.org" in mailed[0]
    assert "EGS at site: rule hot" in mailed[0]
    assert [record.getMessage() for record in caplog.records] == [
        "an alert of rule hot was not taken by nosuch:// (Apprise): it is no address that this version of Apprise knows"
    ]


def test_without_apprise_it_is_said_once_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The webhook has the alert, as before."""
    monkeypatch.setattr(module, "is_there", lambda: False)
    posted: list[str] = []
    with served(Post, posted) as port:
        alerts = Alerts(f"http://127.0.0.1:{port}/", "site", ["mailto://secret@example.org"])
        with caplog.at_level(logging.WARNING, "uvicorn.error"):
            alerts.start()
            try:
                for rule in ("hot", "idle"):
                    alerts.send(Alert(0.0, rule, "0", "too hot"))
                wait_for(lambda: len(posted) == 2, "both are there")
            finally:
                alerts.close()
    (said,) = [record.getMessage() for record in caplog.records]
    assert "pip install 'egs-core[alerts]'" in said
    assert "secret" not in said
