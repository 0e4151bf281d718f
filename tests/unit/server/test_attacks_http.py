"""Attacks by paths, HTTP, bodies and connections, and on the side of the client; numbered on from `test_attacks.py`."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from egs_core.client.http import SiteClient
from egs_core.client.places import Address
from egs_core.errors import EgsError
from egs_core.server import access, serving
from egs_core.server.access import MOST_HEAD_BYTES
from egs_core.server.bounds import MOST_BODY_BYTES, Rates
from tests.unit.server.attacked import Teams, refused, two_teams
from tests.unit.server.real_app import RealApp
from tests.unit.server.real_site import RealSite

site = pytest.fixture(scope="module")(two_teams)


# --- paths and HTTP ---


@pytest.mark.parametrize(
    "path",
    [
        "/v1/runs/../tokens",
        "/v1/runs/..%2ftokens",
        "/v1//tokens",
        "//v1/tokens",
        "/V1/TOKENS",
        "/v1/tokens/",
        "/v1/tokens%00",
        "/v1/tokens;a=b",
        "/v1/./tokens",
        "/healthz/../v1/tokens",
        "/healthz?/v1/tokens",
        "/%76%31/tokens",
    ],
)
def test_a_path_with_a_trick(site: Teams, path: str) -> None:
    """33. No other way of writing a path has other rights."""
    for asker in (site.app.over_tcp(), site.seer):
        answer = asker.get(path)
        assert answer.status in (307, 400, 401, 403, 404, 405, 422) or answer.told.keys() == {
            "ok",
            "version",
            "protocol",
        }
        assert b"created_by" not in answer.body


@pytest.mark.parametrize(
    "run", ["1%2F..%2F2", "%2e%2e", "1%00", "*", "1 OR 1=1".replace(" ", "%20"), "%F0%9F%92%A9", "01"]
)
def test_a_run_number_with_a_trick(site: Teams, run: str) -> None:
    """34. It is looked up as it stands, and not found."""
    assert site.speech.get(f"/v1/runs/{run}").status in (404, 405)
    assert site.speech.post(f"/v1/runs/{run}/abort").status in (404, 405)
    assert site.is_untouched()


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "TRACE", "CONNECT", "OPTIONS", "PROPFIND"])
def test_another_method(site: Teams, method: str) -> None:
    """35. No method changes or tells more than those of the protocol; none is overridden by a header."""
    for path in (f"/v1/runs/{site.run['id']}", "/v1/tokens"):
        request = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
        assert site.app.raw(request).split(b" ")[1] in (b"400", b"405")
    refused(site.speech.get(f"/v1/runs/{site.run['id']}", X_HTTP_Method_Override="DELETE"), 404)
    assert site.is_untouched()


def test_a_request_in_a_request(site: Teams) -> None:
    """36. Smuggling: two lengths, or a length beside chunks. What follows is never taken for another's request."""
    inner = f"POST /v1/runs/{site.run['id']}/abort HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}"
    length = len(inner)
    for header in (
        "Content-Length: 0\r\nTransfer-Encoding: chunked",
        f"Content-Length: 0\r\nContent-Length: {length}",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: xchunked",
        "Content-Length: +5",
        "Content-Length: -1",
    ):
        request = f"POST /v1/runs/1/abort HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}\r\n\r\n0\r\n\r\n{inner}"
        for over_socket in (False, True) if os.getuid() != 0 else (False,):
            answer = site.app.raw(request.encode(), over_socket=over_socket)
            assert b"HTTP/1.1 200" not in answer, (header, answer)
    assert site.is_untouched()


def test_a_header_without_end(site: Teams) -> None:
    """37. Headers larger than a request may have are refused before anybody is asked who it is."""
    request = b"GET /v1/runs HTTP/1.1\r\nHost: x\r\nX: " + b"a" * (2 * MOST_HEAD_BYTES)
    with contextlib.suppress(ConnectionError):  # it has hung up while there was more
        assert b" 400 " in site.app.raw(request)
    assert site.vision.get("/healthz").status == 200


@pytest.mark.parametrize("is_known", [True, False])
def test_a_body_without_end(site: Teams, is_known: bool) -> None:
    """38. Longer than any request: with a length, and in chunks that state none; whether or not it has a token."""
    asker = site.speech if is_known else site.app.over_tcp()
    long = b'{"key": "' + b"a" * MOST_BODY_BYTES + b'"}'
    refused(asker.ask("POST", "/v1/runs", content=long), 413, str(MOST_BODY_BYTES))
    token = f"Authorization: Bearer {asker.token}\r\n" if is_known else ""
    head = (
        f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{token}Transfer-Encoding: chunked\r\n\r\n".encode()
    )
    chunk, last = b"8000\r\n" + b" " * 0x8000 + b"\r\n", b"1\r\n \r\n"
    # Just over the bound: what a server closes on unread resets the connection, and its answer with it.
    assert b" 413 " in site.app.raw(head + chunk * (MOST_BODY_BYTES // 0x8000) + last)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "text/json", None]
)
def test_a_body_of_another_kind(site: Teams, kind: str | None) -> None:
    """39. What a page in a browser may send without asking is refused, though it is JSON; and says what to send."""
    body = b'{"reason": "csrf"}'
    answer = site.speech.ask("POST", f"/v1/runs/{site.own['id']}/abort", content=body, Content_Type=kind)
    refused(answer, 415, "application/json")
    assert site.speech.get(f"/v1/runs/{site.own['id']}").told["state"] == "granted"


def test_no_other_page_may_read(site: Teams) -> None:
    """40. A page in a browser gets no leave from the server, whatever its origin."""
    answer = site.speech.get("/v1/runs", Origin="http://evil.example", Host="evil.example")
    assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"1",
        b'"x"',
        b"[" * 100_000,
        b'{"key": ' * 20_000,
        b'{"key": "\\ud800\\ud800", "supervisor": {"pid": 1, "started": 1}}',
        b'{"\\ud800": 1}',
        b'{"key": NaN}',
        b'{"key": 1e999}',
        b'{"cpus": NaN, "gpus": -Infinity}',
        b'{"gpus": ' + b"9" * 5000 + b"}",
        b"\xff\xfe{}",
        b"\x00",
        b'{"key": "aaaaaaaa", "key": "bbbbbbbb"}',
    ],
)
def test_a_body_that_is_no_request(site: Teams, body: bytes) -> None:
    """41. What is no JSON, too deep, no text, no number: 4xx with what is wrong, never a failure, and no echo of it."""
    answer = site.speech.ask("POST", "/v1/runs", content=body)
    assert answer.status in (400, 422), answer
    assert answer.detail
    assert len(answer.body) < 2000


def test_more_requests_than_a_server_can_answer() -> None:
    """42. One principal asks without pause: refused, with when to come back; others are answered meanwhile. Its
    heartbeats count as a tenth, and not as nothing."""
    app = RealApp(rates=Rates(1.0))
    try:
        flood = app.token("submitter", name="flood")
        run = flood.submit("flood-key").told
        answers = [flood.get("/v1/queue") for _ in range(20)]
        late = next(one for one in answers if one.status == 429)
        assert (late.headers["retry-after"], "ask less often" in late.detail) == ("1", True)
        assert app.admin.get("/v1/queue").status == 200
        statuses = [flood.post(f"/v1/runs/{run['id']}/beat", {}).status for _ in range(20)]
        assert 429 in statuses, "a flood of heartbeats is one too"
        assert app.over_tcp().get("/v1/runs").status == 401
    finally:
        app.close()


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"", b""),
        (b"", b"\r\n"),
        (b"GET /v1/runs HTTP/1.1\r\nHost: x\r\n", b"X: y\r\n"),
        (b"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n", b" "),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"\r\n"),
    ],
)
@pytest.mark.parametrize("over_socket", [False, True])
def test_a_request_that_comes_byte_by_byte(
    begin: bytes, more: bytes, over_socket: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """51. Nothing, empty lines, headers and a body that never end, and the same after an answer: the server hangs up,
    and does not wait as long as somebody keeps it waiting."""
    monkeypatch.setattr(access, "HEAD_S", 0.5)
    monkeypatch.setattr(access, "BODY_S", 0.5)
    app = RealApp()
    try:
        answer = app.slowly(begin, more, over_socket=over_socket)
        assert (b"408 Request Timeout" in answer, b"not there in 0.5 s" in answer) == (True, True)
        assert app.admin.get("/v1/runs").status == 200
    finally:
        app.close()


def test_connections_of_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """52. Somebody without a token opens connections without end, and asks nothing: the oldest of them are closed, so
    who has a token gets in, and stays in."""
    monkeypatch.setattr(access, "MOST_STRANGERS", 8)
    app = RealApp()
    opened: list[socket.socket] = []
    known = http.client.HTTPConnection("127.0.0.1", app.port, timeout=60)

    def asks() -> int:
        known.request("GET", "/v1/runs", headers={"Authorization": f"Bearer {app.admin.token}"})
        answer = known.getresponse()
        answer.read()
        return answer.status

    try:
        assert asks() == 200
        first = known.sock
        for _ in range(40):
            opened.append(app.connection())
        assert app.admin.get("/v1/runs").status == 200  # one more, after all of them
        for one in opened[:32]:
            one.settimeout(60)
            with contextlib.suppress(ConnectionError):
                assert one.recv(1) == b""
        assert (asks(), known.sock is first) == (200, True)
    finally:
        known.close()
        for one in opened:
            one.close()
        app.close()


def test_connections_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """53. The same over the socket, where everybody is known: a user who has too many loses the oldest."""
    monkeypatch.setattr(access, "MOST_OF_A_USER", 8)
    app = RealApp()
    opened: list[socket.socket] = []
    try:
        for _ in range(40):
            opened.append(app.connection(over_socket=True))
        assert app.admin.get("/v1/runs").status == 200
        for one in opened[:32]:
            one.settimeout(60)
            with contextlib.suppress(ConnectionError):
                assert one.recv(1) == b""
        assert app.over_socket(os.getuid()).get("/v1/runs").status == 200
    finally:
        for one in opened:
            one.close()
        app.close()


@pytest.mark.slow
def test_as_many_open_files_as_the_system_lets() -> None:
    """54. The usual bound of 1,024, which 512 commands would reach, is not the server's."""
    program = "import resource as r; from egs_core.server.serving import allow_connections as allow\n"
    program += "most = r.getrlimit(r.RLIMIT_NOFILE)[1]; r.setrlimit(r.RLIMIT_NOFILE, (64, most))\n"
    program += "allow(); print(r.getrlimit(r.RLIMIT_NOFILE) == (most, most))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout == "True\n", done.stderr


# --- on the client's side ---


def test_a_link_in_the_sockets_place(site: Teams, tmp_path: Path) -> None:
    """48. The place of the socket is a link to another user's server: the client asks the kernel whose the
    server is, not the file system, and sends nothing."""
    link = tmp_path / "egs.sock"
    link.symlink_to(site.app.path)
    client = SiteClient(Address(f"unix://{link}", link), owners=frozenset({os.getuid() + 1}))
    with pytest.raises(EgsError, match="whom nobody trusts"):
        client.runs()
    client.close()


def test_a_link_where_the_server_makes_its_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """49. A link there, to a file that somebody needs: it is left alone, and so is what it leads to; one that leads to
    nothing is replaced, and nothing is made at its end."""
    monkeypatch.setenv("EGS_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    (tmp_path / "data").mkdir()
    victim, link = tmp_path / "victim", tmp_path / "run" / "egs.sock"
    victim.write_text("needed")
    victim.chmod(0o600)
    link.symlink_to(victim)
    path, made = serving.local_socket(tmp_path / "data")
    made.close()
    assert (path, victim.read_text(), victim.stat().st_mode & 0o777) == (
        tmp_path / "data" / "egs.sock",
        "needed",
        0o600,
    )
    link.unlink()
    link.symlink_to(tmp_path / "nothing")
    path, made = serving.local_socket(tmp_path / "data")
    made.close()
    assert (path, link.is_symlink(), (tmp_path / "nothing").exists()) == (link, False, False)


@pytest.mark.slow
def test_a_command_that_reads_its_environment(tmp_path: Path) -> None:
    """50. A command gets the mark of its lease and no token, though its `egs run` has one; the mark opens nothing."""
    real = RealSite(tmp_path / "site", gpus=1)
    try:
        real.start()
        token = real.told("token", "create", "--role", "submitter")["token"]
        program = "import os; print(os.environ.get('EGS_TOKEN'), os.environ['EGS_LEASE'])"
        command = ("run", "--gpus", "1", "--", sys.executable, "-c", program)
        done = real.egs(*command, EGS_URL=real.ready["url"], EGS_TOKEN=token)
        shown, mark = done.stdout.split()
        assert (shown, token in done.stdout + done.stderr) == ("None", False)
        refused = real.egs("ps", EGS_URL=real.ready["url"], EGS_TOKEN=mark)
        assert (refused.returncode, "the token in EGS_TOKEN is not known there" in refused.stderr) == (2, True)
    finally:
        real.close()
