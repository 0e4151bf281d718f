"""`kill -9` of real servers, of their clients and of commands, again and again; then all that is left is looked at.

What the looking finds is tried first: on what a server leaves whose engine gives one device to two, and on records that
are made wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from egs_core.engine.specs import UNLIMITED, QueueSpec
from egs_core.engine.state.nodes import Node
from egs_core.server.store import SqlStore
from egs_core.server.writer import Turns
from tests.postgres import Postgres
from tests.unit.server.aftermath import Client, Left, Note, Quota, check_journal, problems, read_site
from tests.unit.server.databases import server
from tests.unit.server.havoc import Havoc, Servers
from tests.unit.server.site_steps import end, start
from tests.unit.server.site_world import OFFER

__all__ = ["server"]

QUEUES = tuple([QueueSpec(name, nominal=(UNLIMITED, 2000, UNLIMITED)) for name in ("common", "other")])
QUOTAS = {"common": Quota(2), "other": Quota(2)}
EPOCH = 1000.0


class Records(msgspec.Struct):
    """What is left of three runs: two of `common`, then one of `other` beside them; 10 s lie between all steps."""

    left: Left
    notes: list[Note]
    clients: list[Client]

    def problems(self) -> list[str]:
        return problems(self.left, self.notes, self.clients)


def made(folder: Path) -> Records:
    """By the server's own logic and store, and with the lines that their users would have written."""
    now, notes = EPOCH, []
    with contextlib.closing(SqlStore(folder, EPOCH)) as store:
        turns = Turns(store, OFFER, QUEUES, clock=lambda: now)
        views = []
        for number, queue in ((1, "common"), (2, "common"), (3, "other")):
            now += 10.0
            ((view,), _) = turns.take([lambda site, n=number, q=queue: start(site, n, queue=q)])  # type: ignore[misc]  # bound
            views.append(view)
            notes.append(Note("begin", view.name, view.id, view.lease.token, view.lease.devices, 1.0, now + 1))
        for view, note in zip(views, list(notes), strict=True):
            now += 10.0
            notes.append(replace(note, what="end", at=now - 1))
            turns.take([lambda site, view=view: end(site, view)])  # type: ignore[misc]  # bound
    return Records(read_site(folder, QUOTAS), notes, [Client(view.name, run=view.id, returned=0) for view in views])


def test_where_nothing_was_wrong_nothing_is_found(tmp_path: Path) -> None:
    records = made(tmp_path)
    assert records.problems() == []
    check_journal(records.left)
    leases = [(one.run, one.devices, one.since, one.until, one.is_claimed) for one in records.left.leases.values()]
    assert leases == [
        ("1", (0,), EPOCH + 10, EPOCH + 40, True),
        ("2", (1,), EPOCH + 20, EPOCH + 50, True),
        ("3", (2,), EPOCH + 30, EPOCH + 60, True),
    ]


def test_a_device_that_was_given_twice_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a server whose engine forgets what it has given: its journal says so, and so do the lines of the two users."""
    with monkeypatch.context() as patch:
        patch.setattr(Node, "take", lambda _self, _lease: None)
        patch.setattr(Node, "give_back", lambda _self, _lease: None)
        found = made(tmp_path).problems()
    assert any(text.endswith("device 0 is leased to runs 1, 2 at once") for text in found), found
    assert "device 0 is used by job1, job2 at once" in found


def _collides(records: Records) -> None:
    records.notes.insert(1, replace(records.notes[1], what="collision"))


def _begins_again(records: Records) -> None:
    records.notes += [replace(note, at=note.at + 2) for note in records.notes[0:1]]
    records.notes += [replace(note, at=note.at + 3) for note in records.notes[3:4]]


def _is_started_with_another_lease(records: Records) -> None:
    lease = records.left.leases[min(records.left.leases)]
    records.left.leases[99] = replace(lease, token=99)


def _uses_what_was_not_claimed(records: Records) -> None:
    next(iter(records.left.leases.values())).is_claimed = False


def _uses_another_device(records: Records) -> None:
    records.notes[:] = [replace(one, devices=("2",)) if one.run == "1" else one for one in records.notes]
    del records.notes[2], records.notes[-1]


def _begins_before_its_lease(records: Records) -> None:
    records.notes[0] = replace(records.notes[0], at=EPOCH + 5)


def _outlives_its_lease(records: Records) -> None:
    records.notes[3] = replace(records.notes[3], at=EPOCH + 45)


def _has_no_lease(records: Records) -> None:
    del records.left.leases[min(records.left.leases)]


def _never_ends(records: Records) -> None:
    del records.notes[3]


def _is_lost(records: Records) -> None:
    del records.left.kept.runs[1]


def _is_taken_for_two(records: Records) -> None:
    runs = records.left.kept.runs
    runs[1] = replace(runs[1], name="job1")


def _is_left_open(records: Records) -> None:
    records.left.kept.runs[0].ended_at = None


def _has_another_code(records: Records) -> None:
    records.clients[0].codes, records.clients[0].returned = (7,), 7


def _returns_what_it_may_not(records: Records) -> None:
    records.clients[0].returned = 1


def _was_not_told_of(records: Records) -> None:
    records.left.kept.runs[0].outcome = "lost"


def _did_not_run(records: Records) -> None:
    del records.notes[0], records.notes[2]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_collides, "job2 found that somebody else used one of its devices: 1"),
        (_begins_again, "job1 was started 2 times with lease"),
        (_is_started_with_another_lease, "run 1 was started 2 times, and requeued 0 times"),
        (_uses_what_was_not_claimed, "which was never claimed"),
        (_uses_another_device, "on devices ('2',): the lease is of 1 of (0,)"),
        (_begins_before_its_lease, "5.0 s before that lease began"),
        (_outlives_its_lease, "5.0 s after that lease had ended"),
        (_has_no_lease, "which run 1 has never had"),
        (_never_ends, "nobody knows when job1 has stopped to use device 0"),
        (_is_lost, "run 2 (job2) is lost"),
        (_is_taken_for_two, "what job1 asked for was taken for 2 runs"),
        (_is_left_open, "run 1 (job1) is open, and nobody is there any more"),
        (_has_another_code, "job1 has ended as ('failed', 7), and run 1 as 'succeeded', 0"),
        (_returns_what_it_may_not, "job1 has returned 1, not (0,)"),
        (_was_not_told_of, "job1 has ended as ('succeeded', 0), and run 1 as 'lost'"),
        (_did_not_run, "job1 has returned 0 and was never started"),
    ],
)
def test_what_is_wrong_is_found(tmp_path: Path, change: Callable[[Records], None], text: str) -> None:
    """Each claim, by records that break it."""
    records = made(tmp_path)
    change(records)
    assert any(text in found for found in records.problems()), records.problems()


def test_an_end_that_could_not_be_told_is_no_fault(tmp_path: Path) -> None:
    """The server was away for too long, and the client has said so."""
    records = made(tmp_path)
    _was_not_told_of(records)
    records.clients[0].text = "egs: the end of run 1 could not be told: nobody answers"
    assert records.problems() == []


def test_a_quota_that_was_exceeded_is_found(tmp_path: Path) -> None:
    """Of a queue, and of a cohort; also when that was over again at the end."""
    made(tmp_path)
    found = problems(read_site(tmp_path, {"common": Quota(1), "other": Quota(1)}), [], [])
    assert any("queue common holds 2 GPUs, and may have 1" in text for text in found)
    found = problems(read_site(tmp_path, {"common": Quota(2, "site", 2), "other": Quota(2, "site", 2)}), [], [])
    assert any("cohort site holds 3 GPUs, and may have 2" in text for text in found)


def kill(folder: Path, times: int, database: str = "", seed: int = 17) -> None:
    havoc = Havoc(folder, seed, Servers(folder / "site", database))
    try:
        havoc.kill_servers(times)
        figures = havoc.end()
    finally:
        havoc.site.close()
    print(figures.words())  # with `-s`: the figures of a long run
    assert (figures.kills, figures.runs > times) == (havoc.kills, True)


@pytest.mark.slow
@pytest.mark.timeout(1200)  # half a minute of a processor, which a busy machine does not give at once
def test_a_server_that_is_killed_again_and_again(tmp_path: Path) -> None:
    """While `egs run`, their commands and clients of the protocol are killed, too: no device is leased to two or used
    by two, no quota exceeded, nothing that somebody was told of is lost, nothing starts twice without having been
    requeued, and each that keeps its client ends with its own exit code."""
    kill(tmp_path, 4)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_servers_of_a_postgresql_that_are_killed_again_and_again(server: Postgres, tmp_path: Path) -> None:
    """The same of one of the two, or of both at once."""
    kill(tmp_path, 4, server.new_database())


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_hundred_kills(tmp_path: Path) -> None:
    kill(tmp_path, 100, seed=100)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_hundred_kills_with_postgresql(server: Postgres, tmp_path: Path) -> None:
    kill(tmp_path, 100, server.new_database(), seed=101)
