"""`egs server backup`, `restore` and `check`, on real databases, and on one of a real server."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from egs_core.cli import app
from egs_core.client import hosts as h
from egs_core.client import messages as c
from egs_core.client.processes import process
from egs_core.errors import InputError
from egs_core.server.database import FILE_NAME
from egs_core.server.principals import Principal
from egs_core.server.serving import folder_lock
from egs_core.server.store import SqlStore
from egs_core.server.upkeep import REPLACED, Found, Unsound, backup, check, restore
from egs_core.server.writer import Turns
from tests.unit.server.real_site import PATIENCE_S, RealSite, wait_for
from tests.unit.server.site_world import OFFER

ANN = Principal("ann")
NOBODY = c.Process(pid=1 << 22, started=1)  # more than Linux gives a process
HOLDS = "import os, sys, time\nopen(sys.argv[1], 'w').close()\nwhile not os.path.exists(sys.argv[2]): time.sleep(0.05)"


class Kept:
    """A site's database in a folder, that somebody has open as a server has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.store = SqlStore(folder, 1000.0)
        self.turns = Turns(self.store, OFFER, clock=lambda: 1000.0)

    def submit(self, key: str, supervisor: c.Process = NOBODY) -> None:
        """It gets a GPU, of which there are three."""
        ask = c.RunRequest(key=key, supervisor=supervisor, gpus=1)
        self.turns.take([lambda logic: logic.submit(ANN, ask)])


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    found = Kept(tmp_path / "data")
    for number in range(4):
        found.submit(f"some-key-{number}")
    yield found
    found.store.close()


def runs(found: Found) -> tuple[int, int, int]:
    return found.runs, found.open, found.held


def spoiled(kept: Kept, statement: str) -> Path:
    """A copy of the database after an SQL statement."""
    copy = kept.folder.parent / "spoiled.db"
    backup(kept.folder, copy)
    with sqlite3.connect(copy) as connection:
        connection.execute(statement)
    connection.close()
    return copy


def test_a_copy_is_whole_and_its_owners_alone(kept: Kept, tmp_path: Path) -> None:
    """While somebody writes: one file, without a log beside it, that no other user may read; it has what was there at
    its moment. A file that is there is not written over, and the database is as it was."""
    copy = tmp_path / "copy.db"
    found = backup(kept.folder, copy)
    assert runs(found) == (4, 4, 3)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    kept.submit("some-key-later")
    assert (runs(check(copy)), runs(check(kept.folder))) == ((4, 4, 3), (5, 5, 3))
    before = copy.read_bytes()
    with pytest.raises(InputError, match="already exists"):
        backup(kept.folder, copy)
    assert copy.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.db", "data"]


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("DELETE FROM runs WHERE number = 2", "do not agree"),
        ("DELETE FROM entries WHERE number = 3", "the journal"),
        ("UPDATE entries SET entry = x'00' WHERE number = 2", "the journal entry 2: is not a journal entry"),
        ("UPDATE runs SET run = x'7b7d' WHERE number = 1", "missing required field"),
        ("UPDATE meta SET value = x'39' WHERE name = 'version'", "is of format 9"),
        ("DELETE FROM meta", "no site"),
        ("DROP TABLE meta", "something else"),
    ],
)
def test_what_no_server_could_go_on_from(kept: Kept, tmp_path: Path, statement: str, told: str) -> None:
    """It is said what is wrong; it is put in nobody's place."""
    copy = spoiled(kept, statement)
    with pytest.raises(Unsound, match=told):
        check(copy)
    with pytest.raises(Unsound, match=told):
        restore(tmp_path / "new", copy)
    assert not (tmp_path / "new" / FILE_NAME).exists()


def test_a_damaged_file(kept: Kept, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes that are no database, and a page that is another's; the command says so with exit code 1, on one line."""
    copy = tmp_path / "copy.db"
    backup(kept.folder, copy)
    whole = copy.read_bytes()
    for damaged in (b"no database" * 1000, whole[: len(whole) // 2], whole[:4096] + whole[8192:12288] + whole[8192:]):
        copy.write_bytes(damaged)
        with pytest.raises(Unsound):
            check(copy)
        assert app.run(["server", "check", str(copy)]) == 1
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert app.run(["server", "check", str(tmp_path / "none.db")]) == 2


def test_a_copy_takes_the_databases_place(kept: Kept, tmp_path: Path) -> None:
    """The one before is kept beside it, whole; what came after the copy is not there any more."""
    copy = tmp_path / "copy.db"
    backup(kept.folder, copy)
    kept.submit("some-key-later")
    kept.store.close()
    assert runs(restore(kept.folder, copy)) == (4, 4, 3)
    assert runs(check(kept.folder)) == (4, 4, 3)
    assert runs(check(kept.folder / REPLACED)) == (5, 5, 3)
    assert runs(restore(tmp_path / "elsewhere", copy)) == (4, 4, 3)
    assert copy.exists()


def test_nothing_is_replaced_under_a_server(kept: Kept, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    backup(kept.folder, copy)
    lock = folder_lock(kept.folder)
    with pytest.raises(InputError, match="another server uses it"):
        restore(kept.folder, copy)
    os.close(lock)


def test_nothing_is_replaced_while_processes_live(kept: Kept, tmp_path: Path) -> None:
    """Of a run that waits, and came after the copy: its client would go on with a number that is another's then."""
    copy = tmp_path / "copy.db"
    backup(kept.folder, copy)
    own = process(os.getpid())
    assert own is not None
    kept.submit("some-key-mine", own)
    kept.store.close()
    with pytest.raises(InputError, match=rf"processes of its runs live: run 5 \(process {os.getpid()}\)"):
        restore(kept.folder, copy, force=True)
    assert runs(check(kept.folder)) == (5, 5, 3)


def test_nothing_is_replaced_while_a_run_of_another_host_is_open(kept: Kept, tmp_path: Path) -> None:
    """Nobody can look there; a copy with it is sound."""
    offer = h.HostOffer(host="far", devices=(h.OfferedDevice(id="0"),), cpus=1)
    ask = c.RunRequest(key="some-key-far", supervisor=NOBODY, gpus=1)
    agent, user = Principal("far", "agent", host="far"), Principal("ann", host="far")
    kept.turns.take([lambda logic: logic.join_host(agent, offer), lambda logic: logic.submit(user, ask)])
    copy = tmp_path / "copy.db"
    assert runs(backup(kept.folder, copy)) == (5, 5, 3)
    kept.store.close()
    with pytest.raises(InputError, match=r"run 5 \(on host far, where nobody can look from here\)"):
        restore(kept.folder, copy)


def test_a_database_that_cannot_be_read_is_replaced_by_force(kept: Kept, tmp_path: Path) -> None:
    """Nobody knows then who runs. What SQLite has left of it beside it is not taken for the copy's."""
    copy = tmp_path / "copy.db"
    backup(kept.folder, copy)
    present = kept.folder / FILE_NAME
    log = Path(f"{present}-wal")
    kept.store.close()
    present.write_bytes(b"no database" * 1000)
    log.write_bytes(b"no log" * 1000)
    with pytest.raises(InputError, match=r"nobody knows which runs live.*--force"):
        restore(kept.folder, copy)
    assert runs(restore(kept.folder, copy, force=True)) == (4, 4, 3)
    assert not log.exists()
    assert runs(check(kept.folder)) == (4, 4, 3)
    assert (kept.folder / REPLACED).read_bytes().startswith(b"no database")


@pytest.mark.slow
def test_a_real_server_is_copied_and_restored(tmp_path: Path) -> None:
    """Copied while a command holds a GPU; restored neither under the server nor while the command lives, though the
    server and `egs run` are killed; then it is, and a server goes on from it: the run of the copy has lost its
    processes, and its GPU is free."""
    site = RealSite(tmp_path / "site", gpus=1)
    copy, here, go = tmp_path / "copy.db", tmp_path / "here", tmp_path / "go"
    data = ("--data", str(site.folder / "data"))
    try:
        site.start()
        begun = site.run("--gpus", "1", "--name", "held", "--", sys.executable, "-c", HOLDS, str(here), str(go))
        wait_for(here.exists, "it runs")
        found = site.told("server", "backup", str(copy), *data)
        assert (found["runs"], found["open"], found["held"]) == (1, 1, 1)
        assert site.egs("run", "--", "true").returncode == 0
        assert "2 runs, 1 of them open" in site.egs("server", "check", *data).stdout
        refused = site.egs("server", "restore", str(copy), *data)
        assert (refused.returncode, "another server uses it" in refused.stderr) == (2, True)
        site.kill()
        begun.send_signal(signal.SIGKILL)
        begun.wait(PATIENCE_S)
        refused = site.egs("server", "restore", str(copy), *data)
        assert (refused.returncode, "processes of its runs live: run 1" in refused.stderr) == (2, True), refused.stderr
        go.touch()
        wait_for(lambda: site.egs("server", "restore", str(copy), *data).returncode == 0, "it may be restored")
        site.start()
        wait_for(lambda: site.devices() == {"0": ""}, "the server sees that nobody is left")
        assert [(view.id, view.outcome) for view in site.client.runs(with_ended=True).runs] == [("1", "lost")]
        assert site.egs("run", "--gpus", "1", "--", "true").returncode == 0
    finally:
        site.close()
