"""Real servers of one real PostgreSQL, and real commands: one server is killed, one is stopped and goes on, and the
database is restarted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from egs_core.client import messages as c
from egs_core.client.http import SiteClient, Unreachable, trusted_owners
from egs_core.client.places import parse_url
from egs_core.client.supervise import request_of
from tests.postgres import Postgres
from tests.unit.server.databases import server
from tests.unit.server.real_site import EGS, PATIENCE_S, RealSite, wait_for
from tests.unit.server.served import UNTIL, content

__all__ = ["server"]


class Pair(RealSite):
    """Servers of one database, by name; commands know all of them."""

    def __init__(self, folder: Path, database: str, gpus: int = 1) -> None:
        super().__init__(folder, gpus)
        self.database = database
        self.servers: dict[str, subprocess.Popen[str]] = {}
        self.urls: dict[str, str] = {}

    def start_one(self, name: str) -> None:
        words = ("serve", "--emulated-gpus", str(self.gpus), "--port", "0", "--json")
        begun = self._begin([*EGS, *words, "--database", self.database, "--data", str(self.folder / name)])
        assert begun.stdout is not None
        line = begun.stdout.readline()
        assert line, begun.communicate()[1]
        self.servers[name], self.urls[name] = begun, f"unix://{json.loads(line)['socket']}"
        self.environment["EGS_URL"] = ",".join(self.urls.values())

    @property
    def client(self) -> SiteClient:
        return SiteClient(parse_url(self.environment["EGS_URL"]), trusted_owners())

    def answers(self, name: str) -> bool:
        """Whether that one is active."""
        try:
            SiteClient(parse_url(self.urls[name]), trusted_owners()).runs()
        except Unreachable:
            return False
        return True

    def wait_for_active(self, name: str) -> None:
        wait_for(lambda: self.answers(name), f"{name} is active")

    def close(self) -> None:
        for one in self.servers.values():
            one.send_signal(signal.SIGCONT)
        if any(one.poll() is None for one in self.servers.values()):
            for run in wait_for(lambda: [self.client.runs()], "a server answers")[0].runs:
                self.client.control(run.id, "abort", c.Control(grace_s=0))
            wait_for(lambda: not self.open(), "all runs end")
        for one in self.servers.values():
            one.terminate()
            one.wait(PATIENCE_S)
        super().close()


@pytest.fixture
def pair(server: Postgres, tmp_path: Path) -> Iterator[Pair]:
    found = Pair(tmp_path / "p", server.new_database())
    try:
        found.start_one("one")
        found.wait_for_active("one")
        yield found
    finally:
        found.close()


def words(file: Path, go: Path, code: int) -> tuple[str, ...]:
    return ("--", sys.executable, "-c", UNTIL, str(file), str(go), str(code))


def begin(pair: Pair, folder: Path) -> tuple[list[subprocess.Popen[str]], Path]:
    """One that runs on the only GPU until a file is there, and one that waits for it."""
    go, has = folder / "go", folder / "first"
    first = pair.run("--gpus", "1", "--name", "first", *words(has, go, 3))
    wait_for(lambda: content(has), "the first runs")
    second = pair.run("--gpus", "1", "--name", "second", *words(folder / "second", go, 0))
    wait_for(lambda: "second" in pair.queued(), "the second waits")
    return [first, second], go


def lease(pair: Pair, name: str) -> tuple[str, int]:
    view = pair.client.view(pair.open()[name])
    return view.state, view.lease.token if view.lease else 0


@pytest.mark.slow
def test_a_standby_takes_over_from_one_that_is_killed(pair: Pair, tmp_path: Path) -> None:
    """While commands run and wait: the second server has their leases and the queue, goes on with both commands, whose
    exit codes are their own, and takes new ones; nothing is given twice. Before that it says who is to be asked."""
    pair.start_one("two")
    with pytest.raises(Unreachable, match=r"503: this server stands by: http://127\.0\.0\.1:\d+ \(process"):
        wait_for(lambda: SiteClient(parse_url(pair.urls["two"]), trusted_owners()).runs() is None, "it refuses")
    begun, go = begin(pair, tmp_path)
    held = lease(pair, "first")
    pair.servers["one"].kill()
    pair.wait_for_active("two")
    assert lease(pair, "first") == held
    third = pair.run("--gpus", "1", "--name", "third", *words(tmp_path / "third", go, 7))
    wait_for(lambda: {"second", "third"} <= set(pair.queued()), "both wait")
    assert not (tmp_path / "second").exists()
    go.touch()
    assert [one.wait(PATIENCE_S) for one in (*begun, third)] == [3, 0, 7]
    ended = {run.name: (run.outcome, run.exit_code) for run in pair.client.runs(with_ended=True).runs}
    assert ended == {"first": ("failed", 3), "second": ("succeeded", 0), "third": ("failed", 7)}


@pytest.mark.slow
def test_one_that_was_stopped_for_longer_than_its_lease_grants_nothing(pair: Pair, tmp_path: Path) -> None:
    """SIGSTOP, until the other one is active, then SIGCONT: a request that it got while it was stopped is not taken,
    and it ends with an error that says why."""
    pair.start_one("two")
    begun, go = begin(pair, tmp_path)
    stopped = pair.servers["one"]
    stopped.send_signal(signal.SIGSTOP)
    answers: list[str] = []

    def ask() -> None:
        try:
            client = SiteClient(parse_url(pair.urls["one"]), trusted_owners())
            answers.append(client.submit(request_of({"name": "late", "gpus": 0})).state)
        except Unreachable as error:
            answers.append(str(error))

    asking = threading.Thread(target=ask)
    asking.start()
    pair.wait_for_active("two")
    stopped.send_signal(signal.SIGCONT)
    asking.join(PATIENCE_S)
    assert len(answers) == 1
    assert answers[0] not in ("granted", "waiting")
    assert stopped.wait(PATIENCE_S) == 2
    assert stopped.stderr is not None
    assert "has become active: start this one again as a standby" in stopped.stderr.read()
    assert set(pair.open()) == {"first", "second"}
    go.touch()
    assert [one.wait(PATIENCE_S) for one in begun] == [3, 0]


@pytest.mark.slow
def test_a_server_goes_on_when_its_database_was_restarted(pair: Pair, server: Postgres, tmp_path: Path) -> None:
    """What runs goes on meanwhile; the same server has its leases and its queue afterwards, and `egs server check`
    finds the database sound."""
    begun, go = begin(pair, tmp_path)
    held = lease(pair, "first")
    server.stop()
    wait_for(lambda: not pair.answers("one"), "it says that its database is away")
    assert [one.poll() for one in begun] == [None, None]
    server.start()
    pair.wait_for_active("one")
    assert lease(pair, "first") == held
    go.touch()
    assert [one.wait(PATIENCE_S) for one in begun] == [3, 0]
    done = pair.egs("server", "check", "--database", pair.database, "--json")
    assert (done.returncode, json.loads(done.stdout)["runs"]) == (0, 2), done.stderr


@pytest.mark.slow
def test_a_copy_of_postgresql_is_made_by_its_own_program(pair: Pair) -> None:
    """Said with the command to use, before anything is done."""
    for what, program in (("backup", "pg_dump"), ("restore", "pg_restore")):
        done = pair.egs("server", what, "file", EGS_DATABASE=pair.database)
        assert (done.returncode, program in done.stderr) == (2, True)
