"""A client that knows several servers of a site, at servers whose answers are written here."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from egs_core.client import messages as c
from egs_core.client.http import Refused, SiteClient, Unreachable, trusted_owners
from egs_core.client.places import parse_url
from egs_core.errors import InputError

GOOD = c.Runs(runs=(), devices=()).model_dump_json()


class Server(socketserver.ThreadingUnixStreamServer):
    """Answers each request with `answer`: a status, whether it says that it stands by, and a body."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        self.answer = (200, False, GOOD)
        self.asked = 0
        super().__init__(str(path), Handler)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def address_string(self) -> str:
        return ""

    def log_message(self, *_args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.server.asked += 1
        status, stands_by, body = self.server.answer
        self.send_response(status)
        if stands_by:
            self.send_header(c.STANDBY_HEADER, "1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


@contextmanager
def served(path: Path) -> Iterator[Server]:
    with Server(path) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        try:
            yield found
        finally:
            found.shutdown()
            thread.join()


@contextmanager
def client_of(*paths: Path) -> Iterator[SiteClient]:
    client = SiteClient(parse_url(", ".join(f"unix://{path}" for path in paths)), trusted_owners())
    try:
        yield client
    finally:
        client.close()


def test_the_next_is_asked_where_nobody_is_or_one_stands_by(tmp_path: Path) -> None:
    """At once, and from then on first: as long as it answers."""
    with served(tmp_path / "b") as standby, served(tmp_path / "c") as active:
        standby.answer = (503, True, '{"detail": "this server stands by: c is active"}')
        with client_of(tmp_path / "a", tmp_path / "b", tmp_path / "c") as client:
            client.runs()
            client.runs()
            assert (standby.asked, active.asked) == (1, 2)
            active.answer = standby.answer
            standby.answer = (200, False, GOOD)
            client.runs()
            assert (standby.asked, active.asked) == (2, 3)


def test_what_may_have_been_taken_is_not_sent_to_two(tmp_path: Path) -> None:
    """A server whose database fails may have done it: who asked is told, and the next request goes to the next one."""
    with served(tmp_path / "a") as failing, served(tmp_path / "b") as other:
        failing.answer = (503, False, '{"detail": "its database cannot be used"}')
        with client_of(tmp_path / "a", tmp_path / "b") as client:
            with pytest.raises(Unreachable, match="503: its database cannot be used"):
                client.runs()
            assert other.asked == 0
            client.runs()
            assert (failing.asked, other.asked) == (1, 1)


def test_where_none_takes_it_each_says_why(tmp_path: Path) -> None:
    with served(tmp_path / "a") as standby:
        standby.answer = (503, True, '{"detail": "stands by"}')
        with (
            client_of(tmp_path / "a", tmp_path / "b") as client,
            pytest.raises(Unreachable, match=r"stands by; .*/b: no"),
        ):
            client.runs()


def test_a_server_that_does_not_know_who_asks_is_not_the_end(tmp_path: Path) -> None:
    """Another may be the site's: while one stands by, or is away, who waits goes on waiting and is told what each says;
    once that one is active it is asked. Where all refuse, it is the end."""
    unknown = (401, False, '{"detail": "who asks"}')
    with served(tmp_path / "a") as first, served(tmp_path / "b") as other:
        first.answer, other.answer = (503, True, '{"detail": "stands by"}'), unknown
        with client_of(tmp_path / "a", tmp_path / "b") as client:
            with pytest.raises(Unreachable, match=r"stands by; .*/b: the server does not know who asks"):
                client.runs()
            first.answer = (200, False, GOOD)
            client.runs()
            client.runs()
            assert (first.asked, other.asked) == (3, 1)
            first.answer = unknown
            with pytest.raises(Refused, match=r"/a: .* does not know who asks: .*/b: .* does not know who asks"):
                client.runs()
        with (
            client_of(tmp_path / "b", tmp_path / "nobody") as client,
            pytest.raises(Unreachable, match=r"does not know who asks.*/nobody: no answer"),
        ):
            client.runs()


def test_each_address_of_a_list_must_be_one() -> None:
    with pytest.raises(InputError, match="'ftp://x' is not the address"):
        parse_url("http://127.0.0.1:1,ftp://x")
