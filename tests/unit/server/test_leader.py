"""Which of several servers is active: the logic on a simulated clock and row, and the row in a real PostgreSQL."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from egs_core.errors import InputError
from egs_core.server import leader_row
from egs_core.server.leader import BEAT_S, LEASE_S, SURE_S, Leader, NotActive, Row
from egs_core.server.leader_row import LeaderRow
from egs_core.server.logic import CLAIM_S, Batch, Seen
from egs_core.server.store import SqlStore, StoreError
from egs_core.server.writer import Turns
from tests.unit.server.databases import database, server
from tests.unit.server.real_site import wait_for
from tests.unit.server.site_steps import ANN, request
from tests.unit.server.site_world import OFFER, MemoryStore

__all__ = ["database", "server"]
WITHIN_S = 5.0  # what is promised of a takeover


class MemoryRows:
    """The row as a database has it. cut: names of servers that do not reach it."""

    def __init__(self) -> None:
        self.row = Row(0, 0, "", "")
        self.cut: set[str] = set()

    def of(self, name: str) -> OneRows:
        return OneRows(self, name)


class OneRows:
    """The row as one server has it."""

    def __init__(self, rows: MemoryRows, name: str) -> None:
        self._rows, self._name = rows, name

    def _reach(self) -> None:
        if self._name in self._rows.cut:
            raise StoreError("cut off")

    def read(self) -> Row:
        self._reach()
        return self._rows.row

    def beat(self, epoch: int) -> bool:
        self._reach()
        is_own = self._rows.row.epoch == epoch
        if is_own:
            self._rows.row = replace(self._rows.row, beat=self._rows.row.beat + 1)
        return is_own

    def take(self, may: Callable[[Row], bool], holder: str, place: str) -> tuple[Row, bool]:
        self._reach()
        row = self._rows.row
        if not may(row):
            return row, False
        self._rows.row = Row(row.epoch + 1, row.beat + 1, holder, place)
        return self._rows.row, True

    def release(self, epoch: int) -> None:
        self._reach()
        if self._rows.row.epoch == epoch:
            self._rows.row = replace(self._rows.row, holder="")

    def check(self, _connection: sa.Connection, epoch: int) -> bool:
        self._reach()
        return self._rows.row.epoch == epoch


class Servers:
    """Leaders of one row, whose threads and writers are played: each has its turn every BEAT_S, from a moment of its
    own on."""

    def __init__(self, **places: str) -> None:
        self.now, self.rows = 100.0, MemoryRows()
        self.ended: dict[str, str] = {}
        self.begun: list[str] = []
        self.stopped: set[str] = set()
        self.begin: Callable[[Row], None] = lambda _: None
        self.all = {name: self.make(name, place) for name, place in places.items()}
        self.next = {name: self.now + number * 0.1 for number, name in enumerate(self.all)}

    def make(self, name: str, place: str) -> Leader:
        def begin(before: Row) -> None:
            self.begin(before)
            self.begun.append(name)

        return Leader(self.rows.of(name), name, place, begin, partial(self.ended.__setitem__, name), lambda: self.now)

    def turn(self, name: str) -> None:
        """What its thread, and its writer, do; nothing while it is stopped."""
        if name in self.stopped or name in self.ended:
            return
        for what in (self.all[name].step, self.all[name].take):
            try:
                if what != self.all[name].take or name not in self.active():
                    what()
            except StoreError:
                pass

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while (name := min(self.next, key=lambda one: self.next[one])) and self.next[name] <= until:
            self.now = max(self.now, self.next[name])
            self.next[name] += BEAT_S
            self.turn(name)
            assert len(self.active()) <= 1, f"two are active: {self.active()}"
        self.now = until

    def active(self) -> list[str]:
        """Those that would answer now."""
        found = []
        for name, one in self.all.items():
            try:
                one.check_quickly()
                found.append(name)
            except NotActive:
                pass
        return found

    def until(self, is_so: Callable[[], bool], most_s: float) -> float:
        """How long it took."""
        begin = self.now
        while not is_so():
            assert self.now - begin < most_s, f"not so in {most_s:g} s"
            self.pass_time(0.05)
        return self.now - begin


def refusal(leader: Leader) -> str:
    with pytest.raises(NotActive) as raised:
        leader.check_quickly()
    return str(raised.value)


def test_the_first_is_active_and_the_second_says_who_is() -> None:
    servers = Servers(one="host/1", two="host/1")
    servers.pass_time(20)
    assert (servers.active(), servers.begun, servers.ended) == (["one"], ["one"], {})
    assert refusal(servers.all["two"]) == "this server stands by: one is active"


@pytest.mark.parametrize("moment", [0.0, 0.13, 0.3, 0.45])
def test_a_standby_takes_over_from_one_that_is_gone(moment: float) -> None:
    """In five seconds, at whatever moment between two beats it was killed; not before the lease is over."""
    servers = Servers(one="host/1", two="host/1")
    servers.pass_time(10 + moment)
    servers.stopped.add("one")
    took = servers.until(lambda: servers.active() == ["two"], WITHIN_S)
    assert took > LEASE_S - 2 * BEAT_S
    assert servers.rows.row.epoch == 2


def test_one_that_was_stopped_ends_and_answers_nothing() -> None:
    """SIGSTOP for longer than its lease: what it is asked before it has even looked is refused, and it ends."""
    servers = Servers(one="host/1", two="host/1")
    servers.pass_time(10)
    servers.stopped.add("one")
    servers.pass_time(10)
    servers.stopped.clear()
    assert "another server may be active" in refusal(servers.all["one"])
    with pytest.raises(NotActive):
        servers.all["one"].guard(None)  # type: ignore[arg-type]  # no connection is needed here
    servers.pass_time(2)
    assert servers.ended == {"one": "two has become active: start this one again as a standby"}
    servers.all["one"].close()
    assert (servers.active(), servers.rows.row.holder) == (["two"], "two")


@pytest.mark.parametrize("moment", [0.0, 0.13, 0.3, 0.45])
def test_one_that_is_cut_off_is_silent_before_another_speaks(moment: float) -> None:
    servers = Servers(one="host/1", two="host/1")
    servers.pass_time(10 + moment)
    servers.rows.cut.add("one")
    silent = servers.until(lambda: servers.active() == [], WITHIN_S)
    assert silent <= SURE_S + BEAT_S
    servers.until(lambda: servers.active() == ["two"], WITHIN_S)
    servers.rows.cut.clear()
    servers.pass_time(2)
    assert (list(servers.ended), servers.active()) == (["one"], ["two"])


def test_a_database_that_was_away_for_all_changes_nobodys_part() -> None:
    """A beat that nobody could see is none that stood still."""
    servers = Servers(one="host/1", two="host/1")
    servers.pass_time(10)
    servers.rows.cut |= {"one", "two"}
    servers.pass_time(60)
    assert servers.active() == []
    servers.rows.cut.clear()
    servers.pass_time(10)
    assert (servers.active(), servers.begun, servers.ended) == (["one"], ["one"], {})


def test_a_standby_that_was_stopped_has_not_watched() -> None:
    """Both stop, as on a machine that does nothing else for a while: the standby goes on first, and waits."""
    servers = Servers(one="host/1", two="host/1")
    servers.pass_time(10)
    servers.stopped |= {"one", "two"}
    servers.now += 30
    servers.stopped.remove("two")
    servers.turn("two")
    servers.stopped.clear()
    servers.pass_time(10)
    assert (servers.active(), servers.ended) == (["one"], {})


def test_one_that_ends_leaves_the_row_to_the_next() -> None:
    """A standby need not wait for a lease then."""
    servers = Servers(one="host/1", two="host/1")
    servers.pass_time(10)
    servers.stopped.add("one")
    servers.all["one"].close()
    assert servers.until(lambda: servers.active() == ["two"], WITHIN_S) <= 2 * BEAT_S


def test_a_standby_elsewhere_ends() -> None:
    """It would see none of the processes; where the active one is gone it may begin, if nothing keeps it from that."""
    servers = Servers(one="host/1", two="host/2")
    servers.pass_time(10)
    assert "one is active: a standby has to run on its host" in servers.ended["two"]
    later = Servers(one="host/1")
    later.pass_time(10)
    later.stopped.add("one")
    before = later.rows.row
    seen: list[Row] = []
    later.begin = seen.append
    later.all["two"], later.next["two"] = later.make("two", "other/1"), later.now
    later.pass_time(10)
    assert (later.active(), seen) == (["two"], [before])


def test_one_that_must_not_begin_ends() -> None:
    def refuse(_before: Row) -> None:
        raise InputError("egs serve", "other devices")

    servers = Servers(one="host/1")
    servers.begin = refuse
    servers.pass_time(5)
    assert (servers.active(), servers.ended) == ([], {"one": "egs serve: other devices"})


def test_a_recovery_is_an_epoch_of_its_own() -> None:
    """What was begun before it can commit no more."""
    servers = Servers(one="host/1")
    servers.pass_time(2)
    epoch = servers.rows.row.epoch
    servers.all["one"].take()
    assert servers.rows.row.epoch == epoch + 1
    assert (servers.rows.of("one").check(None, epoch), servers.begun) == (False, ["one"])  # type: ignore[arg-type]  # no connection
    servers.pass_time(5)
    assert servers.active() == ["one"]


@pytest.mark.parametrize("seed", range(40))
def test_never_two_whatever_stops_and_is_cut_off(seed: int) -> None:
    """Three servers, stopped and cut off at any moment; those that ended are started again. At most one would answer at
    any moment (`pass_time` looks), and when all is well again one does."""
    chosen, servers = random.Random(seed), Servers(one="host/1", two="host/1", three="host/1")
    epochs = set()
    for _ in range(60):
        name = chosen.choice(list(servers.all))
        places = chosen.choice((servers.stopped, servers.rows.cut))
        (places.discard if name in places else places.add)(name)
        for ended in list(servers.ended):
            if chosen.random() < 0.5:
                del servers.ended[ended]
                servers.all[ended] = servers.make(ended, "host/1")
        servers.pass_time(chosen.uniform(0, 6))
        epochs.add(servers.rows.row.epoch)
    servers.stopped.clear()
    servers.rows.cut.clear()
    servers.pass_time(WITHIN_S)
    assert len(servers.active()) == 1 or len(servers.ended) == len(servers.all)
    assert len(epochs) > 1


def test_leases_have_a_full_time_to_live_after_a_takeover() -> None:
    """A grant that nobody claimed is not taken back because no server was there to be told."""
    store, now = MemoryStore(), [1000.0]
    (view,), _ = Turns(store, OFFER, clock=lambda: now[0]).take([lambda site: site.submit(ANN, request(1))])
    assert view.lease is not None
    now[0] += 10 * CLAIM_S
    again = Turns(store, OFFER, clock=lambda: now[0])
    seen = [Seen(view.id, view.lease.token, has_supervisor=True)]
    again.take([lambda site: site.seen(seen)])
    assert again.logic.view(ANN, view.id).lease == view.lease
    now[0] += 2 * CLAIM_S
    again.take([lambda site: site.seen(seen)])
    (later,), _ = again.take([lambda site: site.view(ANN, view.id)])
    assert later.lease is None or later.lease.token != view.lease.token


# --- the row in PostgreSQL ---


def led(database: sa.URL, name: str) -> tuple[SqlStore, Leader]:
    store = SqlStore(database, 0.0)
    leader = Leader(LeaderRow(store), name, "host/1", lambda _: None, lambda _: None)
    store.guard = leader.guard
    return store, leader


def batch(*entries: bytes) -> Batch:
    return Batch(list(entries), [])


def test_every_commit_checks_the_epoch(database: sa.URL) -> None:
    """Of two servers with one database only the active one can write anything; the one before it can no more."""
    (first, one), (second, two) = led(database, "one"), led(database, "two")
    writes: list[Callable[[], None]] = [
        lambda: second.commit(batch(b"x")),
        lambda: second.set_devices(("0",)),
        lambda: second.compact(b""),
    ]
    for write in writes:
        with pytest.raises(NotActive):
            write()
    one.step()
    one.take()
    first.commit(batch(b"1"))
    with second.begin() as connection:
        connection.execute(sa.text("UPDATE leader SET holder = ''"))
    two.step()
    two.take()
    with pytest.raises(NotActive):
        first.commit(batch(b"2"))
    second.commit(batch(b"3"))
    assert second.load().entries == [b"1", b"3"]
    one.close()
    two.close()
    first.close()
    second.close()


def test_a_commit_that_hangs_for_ever_does_not_keep_the_row(database: sa.URL, monkeypatch: pytest.MonkeyPatch) -> None:
    """An active server is stopped in the middle of a commit, after several rows and before COMMIT: its session holds
    the leader's row, and PostgreSQL would wait for ever. The next one ends that session and takes the row; what was not
    committed is not there, and the one before hears that it failed."""
    monkeypatch.setattr(leader_row, "HELD_S", 0.5)
    (first, one), (second, two) = led(database, "one"), led(database, "two")
    one.step()
    one.take()
    first.commit(batch(b"kept"))
    is_stopped, goes_on, problems = threading.Event(), threading.Event(), list[Exception]()

    def stop(_connection: sa.Connection) -> None:
        is_stopped.set()
        assert goes_on.wait(240)

    def commit() -> None:
        try:
            first.commit(batch(*[b"lost"] * 20))
        except Exception as error:
            problems.append(error)

    sa.event.listen(first._engine, "commit", stop)
    stopped = threading.Thread(target=commit)
    stopped.start()
    assert is_stopped.wait(240)
    with second.begin() as connection:
        connection.execute(sa.text("SET LOCAL lock_timeout = '5s'"))
        connection.execute(sa.text("UPDATE leader SET beat = beat"))  # no key of it: as a beat, which goes on
    monkeypatch.setattr(two._election, "may_take", lambda _row: True)  # its beat has stood still
    two.step()
    attempts: list[Exception | None] = []

    def taken() -> bool:
        try:
            two.take()
            attempts.append(None)
        except StoreError as error:
            attempts.append(error)
        return attempts[-1] is None

    wait_for(taken, "the row is taken")
    assert "lock timeout" in str(attempts[0]), "the commit held the row"
    goes_on.set()
    stopped.join(240)
    assert [type(one) for one in problems] == [StoreError]
    assert second.load().entries == [b"kept"]
    second.commit(batch(b"next"))
    for each in (first, second):
        each.close()


def test_beats_go_on_while_a_commit_is_long(database: sa.URL) -> None:
    """So a big batch is no reason for a takeover."""
    store, leader = led(database, "one")
    leader.step()
    leader.take()
    rows = LeaderRow(store)
    with store.begin() as connection:
        leader.guard(connection)
        before = rows.read().beat
        leader.step()
        assert rows.read().beat == before + 1
    leader.close()
    assert rows.read().holder == ""
    store.close()
