"""The client by itself: addresses, tokens, whom it trusts, and which processes it finds."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from egs_core.cli.run import name_of
from egs_core.client import messages as c
from egs_core.client.http import SiteClient, Unreachable, connected, trusted_owners
from egs_core.client.outlines import Earlier
from egs_core.client.places import Address, find_address, parse_url, read_token, token_file, write_token
from egs_core.client.processes import descendants, is_alive, living, process
from egs_core.client.waiting_words import evicted_words, why_words
from egs_core.errors import EgsError, InputError
from tests.unit.run_views import run_view


@pytest.mark.parametrize(
    "text",
    ["ftp://host:1", "http://", "http://h:x", "http://h:99999999", "http://h/path", "unix://host/x", "egs", "unix:"],
)
def test_what_is_no_address_is_an_error(text: str) -> None:
    with pytest.raises(InputError, match="EGS_URL"):
        parse_url(text)


def test_the_environment_names_the_server_before_a_socket_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is no socket is no server."""
    monkeypatch.setenv("EGS_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "egs.sock").touch()
    assert find_address() is None
    (tmp_path / "egs.sock").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "egs.sock"))
        assert find_address() == Address(f"unix://{tmp_path}/egs.sock", tmp_path / "egs.sock")
        monkeypatch.setenv("EGS_URL", "http://gpu01:8470/")
        assert find_address() == Address("http://gpu01:8470")
        monkeypatch.setenv("EGS_TOKEN", "abc")
        assert find_address() == Address("http://gpu01:8470", token="abc")


def test_a_token_is_found_by_its_address_and_kept_from_others() -> None:
    """By any name of the loopback address; never read where others could have read or written it."""
    path = write_token("http://127.0.0.1:8470", "abc")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert read_token("http://localhost:8470") == "abc"
    assert read_token("http://localhost:8471") == ""
    assert write_token("http://127.0.0.1:8470", "def") == token_file("http://[::1]:8470")
    path.chmod(0o640)
    with pytest.raises(EgsError, match="must be yours alone"):
        read_token("http://localhost:8470")


def test_a_server_that_was_killed_while_it_wrote_its_token_is_in_nobodys_way() -> None:
    """In a container the next one has the same process number, and finds the other's half of a file."""
    path = token_file("http://127.0.0.1:8470")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.with_name(f"{path.name}.{os.getpid()}.part").write_text("egs_ha")
    write_token("http://127.0.0.1:8470", "whole")
    assert read_token("http://127.0.0.1:8470") == "whole"
    assert not list(path.parent.glob("*.part"))


def test_a_sockets_server_must_be_trusted(tmp_path: Path) -> None:
    """Nothing is sent to a server of another user; the kernel says whose it is."""
    path, received = tmp_path / "s", []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(1)

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                received.append(connection.recv(100))

        thread = threading.Thread(target=serve)
        thread.start()
        client = SiteClient(Address(f"unix://{path}", path), owners=frozenset({os.getuid() + 1}))
        with pytest.raises(EgsError, match=f"its server is of user {os.getuid()}, whom nobody trusts"):
            client.runs()
        thread.join(30)
    assert received == [b""]
    client.close()


def test_whom_root_has_named_is_trusted(tmp_path: Path) -> None:
    """A file that others could have written is refused."""
    file = tmp_path / "server-uid"
    assert trusted_owners(file) == {0, os.getuid()}
    file.write_text("4242\n")
    if os.getuid() == 0:
        file.chmod(0o644)
        assert trusted_owners(file) == {0, 4242}
    file.chmod(0o666)
    with pytest.raises(EgsError, match="must be root's"):
        trusted_owners(file)


@contextmanager
def answering(path: Path, answer: bytes) -> Iterator[None]:
    """A server at the socket that answers so to one request, whatever it is."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            thread.join(30)


def test_nobody_there_is_unreachable(tmp_path: Path) -> None:
    client = SiteClient(Address(f"unix://{tmp_path}/none", tmp_path / "none"), frozenset({0}))
    with pytest.raises(Unreachable, match="no answer from an EGS server"):
        client.runs()


def test_a_command_says_what_to_do_where_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the server was named, that the name may be wrong; else how one is started. Of one that is there and cannot,
    nothing of the kind: a proxy's 502."""
    path = tmp_path / "none"

    def said() -> str:
        with pytest.raises(Unreachable) as raised, connected(Address(f"unix://{path}", path)) as client:
            client.runs()
        return str(raised.value)

    monkeypatch.delenv("EGS_URL", raising=False)
    assert said().endswith(": `egs serve` starts one")
    monkeypatch.setenv("EGS_URL", f"unix://{path}")
    assert "is EGS_URL right?" in said()
    with answering(path, b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 2\r\n\r\n{}"):
        there = said()
    assert "502" in there
    assert "EGS_URL" not in there


def test_a_server_that_was_too_slow_to_listen_is_asked_again(tmp_path: Path) -> None:
    """It says that the request was late (408), as after it was suspended: no refusal, which would end an `egs run`."""
    path = tmp_path / "s"
    answer = b'HTTP/1.1 408 Request Timeout\r\ncontent-length: 18\r\n\r\n{"detail": "late"}'
    with answering(path, answer), pytest.raises(Unreachable, match="408: late"):
        SiteClient(Address(f"unix://{path}", path), frozenset({os.getuid()})).runs()


def test_processes_are_found_by_name_by_mark_and_by_parent() -> None:
    """A marked process, its unmarked child, and one that is named; not one whose number another has now."""
    waits = "import sys; print(1, flush=True); sys.stdin.read()"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {waits!r}], env={{}})"
    command, pipe = [sys.executable, "-c", child], subprocess.PIPE
    marked = subprocess.Popen(command, env={"EGS_LEASE": "mark-1"}, stdin=pipe, stdout=pipe)
    assert marked.stdin is not None
    assert marked.stdout is not None
    try:
        marked.stdout.readline()
        own = process(os.getpid())
        assert own is not None
        assert is_alive(own)
        found = [one.pid for one in living([], "mark-1")]
        assert found[0] == marked.pid
        assert [one.pid for one in descendants(marked.pid)] == found[1:]
        assert len(found) == 2
        assert marked.pid in [one.pid for one in living([own], "other")]  # below this one
        assert living([c.Process(pid=own.pid, started=own.started + 1)], "other") == []
    finally:
        marked.stdin.close()
        marked.wait(240)
        marked.stdout.close()
    assert living([], "mark-1") == []


def test_a_commands_name_has_no_argument() -> None:
    """The program, or the script that an interpreter is given."""
    assert name_of(["python3.12", "jobs/train.py", "--password", "x"]) == "train.py"
    assert name_of(["/opt/tool", "secret"]) == "tool"
    assert name_of(["python", "-c", "print('secret')"]) == "python"
    assert name_of(["bash", "a\nb.sh"]) == "a?b.sh"


def waiting(**more: Any) -> c.RunView:
    return run_view(id="2", name="fit", state="waiting", reason="no room", **more)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "when it starts is not known"),
        (25.2, "it should start in 25 s"),
        (600.0, "in 10 min"),
        (9000.0, "in 2.5 h"),
    ],
)
def test_the_line_that_says_why_it_waits(seconds: float | None, words: str) -> None:
    view = waiting(starts_in_s=seconds)
    assert why_words(view).startswith("waits: no room; ")
    assert why_words(view).endswith(words)


def test_the_line_that_says_that_it_was_evicted() -> None:
    """How often, when, after how long, and for whom; of an older server's, that it was; nothing where it was not."""
    today = time.time()
    hour = f"{datetime.fromtimestamp(today):%H:%M:%S}"
    last = Earlier(started_at=today - 6, ended_at=today, gpus=2, why="preempted for 15 (hi5): priority")
    old = Earlier(started_at=86400.0, ended_at=86490.0, gpus=2)
    then = f"{datetime.fromtimestamp(86490.0):%Y-%m-%d %H:%M:%S}"
    assert not list(evicted_words(waiting()))
    assert list(evicted_words(waiting(evictions=1))) == ["evicted once"]
    one = waiting(evictions=1, earlier=(last,))
    assert list(evicted_words(one)) == [f"evicted once: {hour} after 6 s, for 15 (hi5): priority"]
    several = waiting(evictions=3, earlier=(old, last))
    told = f"evicted 3 times, the last 2: {then} after 2 min; {hour} after 6 s, for 15 (hi5): priority"
    assert list(evicted_words(several)) == [told]
