"""The line between driver and workers: authenticated, ordered, and its end is noticed on both sides. No Ray needed."""

from __future__ import annotations

import contextlib
import itertools
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from egs_ray import link
from egs_ray.link import Message, Peer, Server, connect, forget

HOST, LIMIT_S = "127.0.0.1", 150.0
Said = "queue.Queue[tuple[Peer, Message]]"


class Line:
    """A server and what it heard."""

    def __init__(self) -> None:
        self.heard: queue.Queue[tuple[Peer, Message]] = queue.Queue()
        self.gone: queue.Queue[Peer] = queue.Queue()
        self.server = Server(HOST, lambda peer, message: self.heard.put((peer, message)), self.gone.put)

    @property
    def address(self) -> tuple[str, int, str]:
        return self.server.address


@pytest.fixture
def line() -> Iterator[Line]:
    """A server with nobody connected; everything is closed afterwards."""
    made = Line()
    try:
        yield made
    finally:
        made.server.close()
        forget(made.address)


def until(condition: Callable[[], bool]) -> bool:
    """Whether the condition comes true in time."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def link_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("egs-link")]


def test_messages_go_both_ways_in_order(line: Line) -> None:
    """What one end sends arrives at the other, in order, and a process has one connection."""
    peer = connect(line.address)
    assert connect(line.address) is peer
    for number in range(200):
        peer.send({"n": number})
    heard = [line.heard.get(timeout=LIMIT_S) for _ in range(200)]
    assert [message["n"] for _, message in heard] == list(range(200))
    heard[0][0].send({"text": "ä" * 1000})
    assert peer.receive() == {"text": "ä" * 1000}


def test_end_of_worker_is_noticed(line: Line) -> None:
    """A worker that hangs up, as the kernel does for one that died, is reported once."""
    connect(line.address).send({"m": "hello"})
    there, _ = line.heard.get(timeout=LIMIT_S)
    forget(line.address)
    assert line.gone.get(timeout=LIMIT_S) is there
    assert line.gone.empty()


def test_closing_the_server_wakes_waiting_workers(line: Line) -> None:
    """A worker that waits for an answer gets the end of the line, not silence, and no thread stays behind."""
    before = len(link_threads())
    peer = connect(line.address)
    ended = threading.Event()

    def wait() -> None:
        with contextlib.suppress(EOFError, OSError):
            peer.receive()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    peer.send({"m": "hello"})
    line.heard.get(timeout=LIMIT_S)
    line.server.close()
    assert ended.wait(LIMIT_S)
    assert until(lambda: len(link_threads()) < before)
    assert line.gone.empty(), "the server's own close is not a worker's end"


def test_wrong_key_is_refused_on_both_sides(line: Line) -> None:
    """A process with another key gets an OSError, the server hears nothing from it and goes on serving."""
    host, port, _ = line.address
    with pytest.raises(OSError, match="not this run's driver"):
        connect((host, port, "00" * 32))
    connect(line.address).send({"m": "still here"})
    assert line.heard.get(timeout=LIMIT_S)[1] == {"m": "still here"}


def test_nobody_listens() -> None:
    """An address without a driver is an OSError at once, again and again."""
    with socket.create_server((HOST, 0)) as closed_soon:
        port = closed_soon.getsockname()[1]
    for _ in range(2):
        with pytest.raises(OSError, match=r".+"):
            connect((HOST, port, "00" * 32))


@pytest.fixture
def dropping() -> Iterator[int]:
    """A port of this machine whose packets are dropped, as a firewall does: its queue of connections is full."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server((HOST, 0), backlog=0))
        for _ in range(8):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(full.getsockname())
        yield full.getsockname()[1]


def test_dropped_packets_are_waited_for_once(dropping: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where packets are dropped, a process's first task waits for the driver; the next ones go on at once. Then it is
    tried again, after ever longer rests."""
    monkeypatch.setattr(link, "REACH_S", 0.2)
    clock = [1000.0]

    def dial(host: str, port: int, key: bytes) -> Peer:
        clock[0] += 5.0
        dialled.append(clock[0])
        return dial_really(host, port, key)

    dialled, dial_really = list[float](), link._dial
    monkeypatch.setattr(link, "_dial", dial)
    monkeypatch.setattr(link, "_now", lambda: clock[0])
    for _ in range(300):  # a task a second, each with a connection of its own to make
        with pytest.raises(OSError, match=r"timed out|not tried again yet"):
            connect((HOST, dropping, "00" * 32))
        clock[0] += 1.0
    rests = [round(later - earlier - 5.0) for earlier, later in itertools.pairwise(dialled)]
    assert rests == [50, 100], "of 300 tasks three have waited"


def test_a_driver_that_is_reached_after_all_is_a_fresh_start(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rests begin anew once the driver was reached."""

    def refuse(*_: object, **__: object) -> socket.socket:
        raise ConnectionRefusedError("refused")

    with monkeypatch.context() as patch:
        patch.setattr("egs_ray.link.socket.create_connection", refuse)
        with pytest.raises(OSError, match="refused"):
            connect(line.address)
    monkeypatch.setattr(link, "_now", lambda: time.monotonic() + link.MOST_REST_S)
    connect(line.address).send({"m": "here"})
    assert line.heard.get(timeout=LIMIT_S)[1] == {"m": "here"}
    assert all(address != line.address for _, address in link._failed)


def test_a_listener_that_is_no_driver_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something that accepts and then says nothing is given up after a while."""
    monkeypatch.setattr(link, "REACH_S", 1.0)
    with socket.create_server((HOST, 0)) as silent, pytest.raises(OSError, match="not this run's driver"):
        connect((HOST, silent.getsockname()[1], "00" * 32))


def test_silent_stranger_costs_nothing_for_long(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who connects and says nothing is dropped; workers are served meanwhile."""
    monkeypatch.setattr(link, "REACH_S", 1.0)
    before = len(link_threads())
    with socket.create_connection((HOST, line.address[1])) as stranger:
        connect(line.address).send({"m": "hello"})
        assert line.heard.get(timeout=LIMIT_S)[1] == {"m": "hello"}
        assert until(lambda: len(link_threads()) == before + 1), "only the worker's reader is left"
        stranger.settimeout(LIMIT_S)
        while stranger.recv(100):
            pass


@pytest.mark.parametrize("data", [b"\xff\xfe", b"[1]", b"[" * 100_000, b"x" * (link.MAX_BYTES + 1)])
def test_garbage_ends_only_its_own_connection(line: Line, data: bytes) -> None:
    """What is no JSON object, or too long, ends that worker's connection; a new one works."""
    peer = connect(line.address)
    with contextlib.suppress(OSError):  # the server may hang up before all of it is written
        peer._connection.send_bytes(data)
    assert line.gone.get(timeout=LIMIT_S)
    forget(line.address)
    connect(line.address).send({"m": "hello"})
    assert line.heard.get(timeout=LIMIT_S)[1] == {"m": "hello"}


def test_sending_to_a_closed_peer_raises_oserror(line: Line) -> None:
    """Whoever sends after the end gets an OSError, which callers expect."""
    peer = connect(line.address)
    forget(line.address)
    with pytest.raises(OSError, match=r".+"):
        peer.send({"m": "late"})


def test_what_cannot_be_read_ends_its_line() -> None:
    """A worker of another version, whose words its reader does not know, is as one that is gone: what it had asked for
    is not kept for it."""

    def read(_peer: Peer, message: Message) -> None:
        seen.put(message["strategy"])

    seen: queue.Queue[str] = queue.Queue()
    gone: queue.Queue[Peer] = queue.Queue()
    server = Server(HOST, read, gone.put)
    try:
        peer = connect(server.address)
        peer.send({"strategy": "PACK"})
        assert seen.get(timeout=LIMIT_S) == "PACK"
        peer.send({"close": True})
        gone.get(timeout=LIMIT_S)
        with pytest.raises((EOFError, OSError)):
            peer.receive()
    finally:
        server.close()
        forget(server.address)
