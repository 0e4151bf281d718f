"""The leader's row in PostgreSQL (see `leader`).

    what                locks the row                  waits for
    a beat              as any UPDATE of no key        a takeover
    a commit            FOR KEY SHARE                  a takeover
    a takeover          FOR UPDATE                     beats and commits, for TAKE_S

So beats go on while a commit is long. A server that was cut off or stopped in the middle of a transaction keeps its
lock, and PostgreSQL's own bound on idle transactions does not end it where a driver's pipeline ended with a flush: so
whoever takes the row ends such a session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from egs_core.server.database import APPLICATION
from egs_core.server.leader import LOG, Row
from egs_core.server.store import SqlStore, StoreError
from egs_core.server.tables import LEADER

TAKE_S = 0.4
HELD_S = 2.0  # a transaction that is older stands in a takeover's way no longer
STUCK = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND usename = current_user AND application_name = :application
    AND pid <> pg_backend_pid() AND xact_start < clock_timestamp() - make_interval(secs => :held_s)
    AND pid IN (SELECT pid FROM pg_locks WHERE relation = CAST('leader' AS regclass) AND granted AND mode LIKE 'Row%')
"""


class LeaderRow:
    """`Rows`, in the store's database."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    def read(self) -> Row:
        with self._store.begin() as connection:
            return _row(connection.execute(_select()))

    def beat(self, epoch: int) -> bool:
        with self._store.begin() as connection:
            connection.exec_driver_sql("SET LOCAL synchronous_commit = off")  # a sign of life need not outlive anything
            connection.exec_driver_sql("SET LOCAL lock_timeout = '1s'")
            found = connection.execute(sa.update(LEADER).where(LEADER.c.epoch == epoch).values(beat=LEADER.c.beat + 1))
            return found.rowcount == 1

    def take(self, may: Callable[[Row], bool], holder: str, place: str) -> tuple[Row, bool]:
        try:
            with self._store.begin() as connection:
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{TAKE_S * 1000:.0f}ms'")
                row = _row(connection.execute(_select().with_for_update()))
                if not may(row):
                    return row, False
                row = Row(row.epoch + 1, row.beat + 1, holder, place)
                connection.execute(sa.update(LEADER).values(_values(row)))
                return row, True
        except StoreError:
            self._end_stuck_sessions()
            raise

    def release(self, epoch: int) -> None:
        with self._store.begin() as connection:
            connection.execute(sa.update(LEADER).where(LEADER.c.epoch == epoch).values(holder=""))

    def check(self, connection: sa.Connection, epoch: int) -> bool:
        wanted = sa.select(LEADER.c.id).where(LEADER.c.epoch == epoch).with_for_update(read=True, key_share=True)
        return connection.scalar(wanted) is not None

    def _end_stuck_sessions(self) -> None:
        """Of servers of this site: its role, its database, its application."""
        with self._store.begin() as connection:
            ended = connection.scalar(sa.text(STUCK), {"application": APPLICATION, "held_s": HELD_S})
        if ended:
            LOG.warning("%d sessions of a server that was cut off in the middle of a transaction were ended", ended)


def _select() -> sa.Select[Any]:
    return sa.select(LEADER.c.epoch, LEADER.c.beat, LEADER.c.holder, LEADER.c.place)


def _row(found: sa.CursorResult[Any]) -> Row:
    values: tuple[Any, ...] = tuple(found.one())
    return Row(*values)


def _values(row: Row) -> dict[str, int | str]:
    return {"epoch": row.epoch, "beat": row.beat, "holder": row.holder, "place": row.place}
