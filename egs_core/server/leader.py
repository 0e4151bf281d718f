"""Which of the servers of one database is the active one, and what each may do.

    standing by ─ nobody has the row, or its beat stood still for LEASE_S ─► takes it, epoch + 1 ─► active
                                                                                                     │
    active ─ a beat each BEAT_S; every commit finds its epoch in the row; what needs no commit is answered
             for SURE_S after a good beat only ─ another epoch is in the row ─► ends

A standby compares beats and never times, and measures by its own clock how long one stood still: so clocks need not
agree. SURE_S is less than LEASE_S: whoever could not beat is silent before another one speaks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

import msgspec
import sqlalchemy as sa

from egs_core.errors import EgsError
from egs_core.server.store import StoreError

LOG = logging.getLogger("uvicorn.error")
BEAT_S = 0.5
LEASE_S = 3.0
SURE_S = 1.5
MOST_GAP_S = 1.0  # that counts between two looks: a standby that was stopped itself has not watched meanwhile


class NotActive(StoreError):
    """Another server is the active one, or may be."""


class Row(msgspec.Struct, frozen=True):
    """The leader's. epoch: raised whenever a server starts from what is durable; beat: counted up as a sign of life;
    holder: the active server, for people, "" for none; place: its host and process namespace."""

    epoch: int
    beat: int
    holder: str
    place: str

    @property
    def host(self) -> str:
        return self.place.partition("/")[0]


class Election:
    """What follows from looks at the row, and from beats: without clock, thread and database. Moments are seconds of
    any clock that only goes on. epoch: with which this server is active, 0 while it stands by."""

    def __init__(self, place: str) -> None:
        self.place, self.epoch = place, 0
        self.last: Row | None = None
        self.is_elsewhere = False  # an active server was seen to live where this one would see none of its processes
        self._looked_at = self._still_s = 0.0
        self._sure_at = float("-inf")

    def saw(self, row: Row | None, now: float) -> None:
        """A look while standing by. None: the row could not be read, so its holder could not beat either."""
        before, self.last = self.last, row
        if row is None or before is None or (row.epoch, row.beat) != (before.epoch, before.beat):
            self._still_s = 0.0
            self.is_elsewhere = None not in (row, before) and bool(row and row.holder and row.place != self.place)
        else:
            self._still_s += min(now - self._looked_at, MOST_GAP_S)
        self._looked_at = now

    def may_take(self, row: Row) -> bool:
        """Whether this server may make the row its own, as it is now."""
        if self.epoch:
            return row.epoch == self.epoch
        return not row.holder or (row == self.last and self._still_s >= LEASE_S)

    def took(self, epoch: int, asked_at: float) -> None:
        """asked_at: before the row was changed."""
        self.epoch, self._sure_at = epoch, asked_at

    def has_beaten(self, asked_at: float) -> None:
        self._sure_at = max(self._sure_at, asked_at)

    def is_sure(self, now: float) -> bool:
        """Whether no other server can be active yet."""
        return self.epoch > 0 and now - self._sure_at < SURE_S


class Rows(Protocol):
    """The row in the database (`leader_row`). All raise StoreError."""

    def read(self) -> Row: ...

    def beat(self, epoch: int) -> bool:
        """Count up, where the row has the epoch still."""

    def take(self, may: Callable[[Row], bool], holder: str, place: str) -> tuple[Row, bool]:
        """With the row locked: ask, and write where the answer is yes. The row as it is then, and whether it is this
        server's."""

    def release(self, epoch: int) -> None:
        """Nobody has it, where the epoch is in it still."""

    def check(self, connection: sa.Connection, epoch: int) -> bool:
        """Whether the epoch is in the row, and stays there until the connection's transaction ends."""


class Leader:
    """This server's part: a thread that beats or looks, and what the writer and the routes ask.

    name: of the server, for people. begin: called when it has become active, before it loads, with the row as it was;
    raises EgsError where it must not go on. ended: called when it has to end, and why.
    """

    def __init__(
        self,
        rows: Rows,
        name: str,
        place: str,
        begin: Callable[[Row], None],
        ended: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rows, self._name, self._begin, self._ended, self._clock = rows, name, begin, ended, clock
        self._election = Election(place)
        self._wake: Callable[[], None] = lambda: None
        self._lock = threading.Lock()  # of what changes the row
        self._closing = threading.Event()
        self._has_begun, self._has_ended = False, False
        self._said = ""
        self._before: Row | None = None  # the row of the server before this one
        self._thread = threading.Thread(target=self._keep, name="egs-leader", daemon=True)

    def start(self, wake: Callable[[], None]) -> None:
        """wake: called where it may become active: then `take` is due."""
        self._wake = wake
        self._look()  # who asks at once is told who is active
        self._thread.start()

    def close(self) -> None:
        """The next one need not wait. What was active is done."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(10.0)
        with self._lock:
            epoch, self._election.epoch = self._election.epoch, 0
        if epoch and not self._has_ended:
            try:
                self._rows.release(epoch)
            except StoreError:
                LOG.warning("another server has to wait before it takes over: the database cannot be told")

    # --- the writer's side ---

    def take(self) -> None:
        """Become active, or go on after a failure, with an epoch of its own: nothing that was begun before can commit
        from now on. Raises NotActive and StoreError."""
        with self._lock:
            if not self._election.epoch and not self._looks_free():
                raise NotActive(self._stands_by())
            asked_at = self._clock()
            row, is_own = self._rows.take(self._election.may_take, self._name, self._election.place)
            if not is_own:
                self._lost(row)
                raise NotActive(self._stands_by())
            self._before = self._before or self._election.last
            self._election.last = row
            self._election.took(row.epoch, asked_at)
        if not self._has_begun:
            try:
                self._begin(self._before or row)
            except EgsError as error:
                self._end(str(error))
                raise NotActive(str(error)) from None
            self._has_begun = True
            LOG.warning("this server is active now (epoch %d)", row.epoch)

    def check(self) -> None:
        """Raises NotActive where another server may be active already, StoreError where that cannot be found out."""
        if not self._election.is_sure(self._clock()):
            with self._lock:
                self._beat()
            self.check_quickly()

    def check_quickly(self) -> None:
        """The same without asking the database: for any thread."""
        if self._has_ended or not self._election.epoch:
            raise NotActive(self._stands_by())
        if not self._election.is_sure(self._clock()):
            raise NotActive("the site's database does not answer: another server may be active meanwhile")

    def guard(self, connection: sa.Connection) -> None:
        """At the beginning of each transaction that writes: it commits before another server loads, or not at all."""
        epoch = self._election.epoch
        if not epoch or not self._rows.check(connection, epoch):
            raise NotActive(self._stands_by())

    # --- the thread ---

    def _keep(self) -> None:
        while not self._closing.wait(BEAT_S):
            self._look()

    def _look(self) -> None:
        try:
            self.step()
        except StoreError:  # whoever asks for something hears of it
            pass
        except Exception as error:
            LOG.warning("the leader's row could not be kept: %s: %s", type(error).__name__, error)

    def step(self) -> None:
        """A beat, or a look. Raises StoreError."""
        with self._lock:
            if self._election.epoch:
                self._beat()
                return
            try:
                row = self._rows.read()
            except StoreError:
                self._election.saw(None, self._clock())
                raise
            self._election.saw(row, self._clock())
        if self._election.is_elsewhere:
            self._end(f"{row.holder} is active: a standby has to run on its host, and in its process namespace")
        elif self._looks_free():
            self._wake()
        elif row.holder != self._said:
            self._said = row.holder
            LOG.warning("%s", self._stands_by())

    def _beat(self) -> None:
        """With the lock."""
        if not self._election.epoch or self._has_ended:
            return
        asked_at = self._clock()
        if self._rows.beat(self._election.epoch):
            self._election.has_beaten(asked_at)
        else:
            self._lost(self._rows.read())

    def _looks_free(self) -> bool:
        last = self._election.last
        return last is not None and self._election.may_take(last)

    def _lost(self, row: Row) -> None:
        """With the lock: the row is another's, though it was this server's."""
        if self._election.epoch:
            self._election.last = row
            self._end(f"{row.holder or 'another server'} has become active: start this one again as a standby")

    def _end(self, why: str) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._ended(why)

    def _stands_by(self) -> str:
        last = self._election.last
        if last is None:
            return "this server stands by: its database does not answer"
        if not last.holder or self._looks_free():
            return "this server stands by, and takes over in a moment"
        return f"this server stands by: {last.holder} is active"
