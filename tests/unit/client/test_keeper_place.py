"""The keeper of `egs run --keep-ready`: one at a place, however many start at once, what is left of its files, and what
runs are told."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from egs_core.client import surroundings
from egs_core.client.keeper import UNFIT_S, Known, is_session, listening
from egs_core.client.processes import LEASE_VARIABLE, process
from egs_core.client.ready import Answer, Ask, Line, Standing, _close_words, connected
from egs_core.client.stock import FIRST_WORTH_S
from egs_core.demand import how_many

PATIENCE_S = 60.0
NOTHING = Ask(Line(["python3"], ".", "/", [], {}, [], ["null 4096"] * 3), most=0, waited_s=0.0)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short one: the path of a socket has 107 bytes."""
    with tempfile.TemporaryDirectory() as found:
        yield Path(found)


class Keepers:
    """Real ones, as `egs run` starts them."""

    def __init__(self) -> None:
        self.begun: list[subprocess.Popen[bytes]] = []

    def begin(self, path: Path, ask: Ask = NOTHING, unfit_s: float = UNFIT_S) -> subprocess.Popen[bytes]:
        program = f"from egs_core.client import keeper; keeper.UNFIT_S = {unfit_s}; keeper.main([{str(path)!r}])"
        one = subprocess.Popen([sys.executable, "-P", "-c", program], stdin=subprocess.PIPE, start_new_session=True)
        assert one.stdin is not None
        one.stdin.write(msgspec.json.encode(ask))
        one.stdin.close()
        self.begun.append(one)
        return one

    def close(self) -> None:
        for one in self.begun:
            one.kill()
            one.wait(PATIENCE_S)


@pytest.fixture
def keepers() -> Iterator[Keepers]:
    found = Keepers()
    yield found
    found.close()


def answering(path: Path) -> int:
    """The number of the keeper there; 0 for none."""
    try:
        with connected(path) as to:
            to.send(msgspec.json.encode(Ask()))
            return msgspec.json.decode(to.recv(1 << 16), type=Answer).keeper
    except OSError:
        return 0


def wait_for(what: Callable[[], bool], text: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < until, text
        time.sleep(0.02)


@pytest.mark.slow
def test_of_keepers_that_start_at_once_one_stays_and_leaves_nothing(folder: Path, keepers: Keepers) -> None:
    """The others tell it of their runs, and end. What killed ones have left, also for other surroundings, goes at the
    next start; what lives stays; at the end of the last nothing is there. One that is begun while another ends takes
    its place."""
    path, other, left = (folder / f"ready-{name}.sock" for name in ("a", "b", "c"))
    for place in (path, left):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as killed:
            killed.bind(str(place))
    alive = listening(other)
    assert alive is not None
    begun = [keepers.begin(path) for _ in range(3)]
    wait_for(lambda: sum(one.poll() is None for one in begun) == 1, "two have ended")
    (stays,) = [one for one in begun if one.poll() is None]
    wait_for(lambda: answering(path) == stays.pid, "the third answers")
    assert [one.poll() for one in begun if one is not stays] == [0, 0]
    assert sorted(folder.iterdir()) == [path, other]
    stays.send_signal(signal.SIGSTOP)
    follows = keepers.begin(path)
    stays.send_signal(signal.SIGTERM)
    stays.send_signal(signal.SIGCONT)
    assert stays.wait(PATIENCE_S) == 0
    wait_for(
        lambda: follows.poll() is not None or answering(path) == follows.pid, "the next one is there, or was heard"
    )
    follows.send_signal(signal.SIGTERM)
    assert follows.wait(PATIENCE_S) == 0
    assert list(folder.iterdir()) == [other]
    alive.close()


@pytest.mark.slow
@pytest.mark.skipif(is_session(Path("/proc/self/cgroup").read_text()), reason="one run alone loads nothing there")
@pytest.mark.parametrize("unfit_s", [UNFIT_S, 0.0])
def test_runs_are_told_of_a_module_that_is_not_there(folder: Path, keepers: Keepers, unfit_s: float) -> None:
    """Also those that come when it may be tried again, as each hour from cron."""
    path = folder / "ready-a.sock"
    line = Line([sys.executable, "-c", ""], "", "/", ["json", "no_such_module"], {}, [], ["null 4096"] * 3)
    keepers.begin(path, Ask(line, most=1, waited_s=0.0), unfit_s)

    def told() -> str:
        try:
            with connected(path) as to:
                to.send(msgspec.json.encode(Ask(line, most=1, wants=True)))
                return msgspec.json.decode(to.recv(1 << 16), type=Answer).why
        except OSError:
            return ""

    wait_for(lambda: told() != "", "a run is told")
    assert told() == "no_such_module: ModuleNotFoundError: No module named 'no_such_module'"


@pytest.mark.slow
@pytest.mark.skipif(is_session(Path("/proc/self/cgroup").read_text()), reason="one run alone loads nothing there")
def test_how_long_runs_take_is_learned_and_one_that_still_loads_is_handed_over(folder: Path, keepers: Keepers) -> None:
    """A run takes what has loaded, and is over at once, so the next one is told to begin to load sooner. It takes what
    began to load meanwhile, and goes on when that has loaded. Of a line of which none has loaded yet none is taken."""
    path = folder / "ready-a.sock"
    (folder / "slow.py").write_text("import time\ntime.sleep(1.0)")
    os.utime(folder / "slow.py", (1e9, 1e9))
    line = Line([sys.executable, "-c", ""], "", "/", ["slow"], {"PYTHONPATH": str(folder)}, [], ["null 4096"] * 3)
    keepers.begin(path, Ask(line, most=1, waited_s=0.0))

    def asked(ask: Ask) -> tuple[Answer, list[int]]:
        with connected(path) as to:
            to.send(msgspec.json.encode(ask))
            message, handles, _, _ = socket.recv_fds(to, 1 << 16, 2)
            return msgspec.json.decode(message, type=Answer), handles

    def stands(*, has_loaded: bool) -> bool:
        return any(one.pid and (one.loaded_s is not None) == has_loaded for one in asked(Ask())[0].standing)

    def run() -> str:
        """What is said of its end."""
        answer, handles = asked(Ask(line, most=1, comes=True, wants=True, waited_s=0.0))
        one = process(answer.pid)
        assert one is not None
        standing = Standing(one, answer.holder, handles, line, [])
        standing.begin({LEASE_VARIABLE: "1", **line.environment}, None)
        standing.control.settimeout(PATIENCE_S)
        said = standing.control.recv(1 << 12).decode()
        standing.end()
        return said

    wait_for(lambda: answering(path) != 0, "it answers")
    wait_for(lambda: stands(has_loaded=False), "one loads")
    assert asked(Ask(line, most=1, wants=True))[0].pid == 0
    wait_for(lambda: stands(has_loaded=True), "one has loaded")
    assert not asked(Ask(line, most=1))[0].is_short
    assert run() == "ended 0"
    wait_for(lambda: asked(Ask(line, most=1))[0].is_short, "how long it took is known")
    wait_for(lambda: stands(has_loaded=False), "another one loads")
    assert run() == "ended 0"


@pytest.mark.slow
@pytest.mark.skipif(is_session(Path("/proc/self/cgroup").read_text()), reason="one run alone loads nothing there")
def test_what_loads_for_longer_than_anybody_knows_is_left_to_it(folder: Path, keepers: Keepers) -> None:
    """Between runs that come every 20 s none should stand for 10 s: what loads for the first time goes on all the same.
    Once it has loaded it ends, as all do of which nobody has need."""
    path = folder / "ready-a.sock"
    (folder / "slow.py").write_text(
        f"import os, time\nwhile not os.path.exists({str(folder)!r} + '/go'): time.sleep(0.02)"
    )
    os.utime(folder / "slow.py", (1e9, 1e9))
    line = Line([sys.executable, "-c", ""], "", "/", ["slow"], {"PYTHONPATH": str(folder)}, [], ["null 4096"] * 3)
    keepers.begin(path, Ask(line, most=1, waited_s=0.0, came_ago_s=64.0))

    def asked(ask: Ask) -> Answer:
        with connected(path) as to:
            to.send(msgspec.json.encode(ask))
            return msgspec.json.decode(to.recv(1 << 16), type=Answer)

    wait_for(lambda: answering(path) != 0, "it answers")
    wait_for(lambda: any(one.pid for one in asked(Ask()).standing), "one loads")
    (loads,) = asked(Ask()).standing
    for ago_s in (44.0, 24.0, 4.0):
        asked(Ask(line, most=1, waited_s=0.0, came_ago_s=ago_s))
    known = Known(line)
    known.came_s, known.most = [-64.0, -44.0, -24.0, -4.0], 1
    assert how_many(known, 0.0, 1, FIRST_WORTH_S) == 0
    for _ in range(2):  # before the second answer it has looked how many should stand
        assert [one.pid for one in asked(Ask()).standing] == [loads.pid]
    (folder / "go").touch()
    wait_for(lambda: asked(Ask()).standing == [], "it has loaded and ends")
    assert asked(Ask(line, most=1, wants=True)).why == ""


def test_what_a_command_would_inherit_is_said_with_its_number(tmp_path: Path) -> None:
    """A file, a pipe, a socket, a folder: which it is, and how a shell closes it; of many the first."""
    file = tmp_path / "train\x1b.lock"
    before = surroundings.handed_down()
    reading, writing = os.pipe()
    ours, theirs = socket.socketpair()
    opened = [os.open(file, os.O_CREAT | os.O_RDWR), os.open(tmp_path, os.O_RDONLY), reading, ours.fileno()]
    for number in opened:
        os.set_inheritable(number, True)
    found = surroundings.handed_down()
    for number in (*opened[:2], reading, writing):
        os.close(number)
    ours.close()
    theirs.close()
    whats = [f"the file {tmp_path}/train?.lock", f"the folder {tmp_path}", "a pipe", "a socket"]
    assert found == before | dict(zip(opened, whats, strict=True))
    assert _close_words({3: "a pipe", 9: "a socket"}) == (
        "its command would inherit file descriptors 3 (a pipe), 9 (a socket): close them (egs run … 3>&- 9>&-)"
    )
    assert _close_words(dict.fromkeys(range(3, 9), "a pipe")).endswith(
        "6 (a pipe) and 2 more: close them (egs run … 3>&- 4>&- 5>&- 6>&-)"
    )
