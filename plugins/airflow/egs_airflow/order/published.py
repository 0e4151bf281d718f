"""What the agent that hosts the engine has decided, as one text, and how other processes of Airflow know of it.

    agent ── PATCH `egs_engine_7` ──► metadata ◄── once a second, between two passes ── executor in the scheduler
                                                                                              │ keeps it
                                                     pool hook: a look at what is kept, nothing else

The record with the highest epoch counts, and only as long as it changes: a reader that has seen it unchanged for its
time to live takes it that nobody hosts the engine. Then weights from creation stand, and pools are Airflow's own.
(A thread that reads could hold a lock while the executor forks its processes.)
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from egs_airflow.order.record import Seen

VERSION = 3
READ_S = 1.0
MOST_WAITING = 500
"""So many task instances that wait are published, first in the order first."""


@dataclass(frozen=True)
class Turn:
    """One task instance that waits for slots. may_start: the engine would start it now; keeps: what its pool has open
    is kept for it; why: what puts it there; rank: its place."""

    id: str
    may_start: bool = False
    keeps: bool = False
    why: str = ""
    rank: int = 0


@dataclass(frozen=True)
class Order:
    """Task instances that wait, first first. loads: DAG, run and task of those whose files are to be read into memory
    now; site: the server whose order it is, "" for that of an agent's own engine."""

    turns: tuple[Turn, ...] = ()
    loads: tuple[tuple[str, str, str], ...] = ()
    site: str = ""

    @property
    def by_id(self) -> dict[str, Turn]:
        """The same by their ids."""
        return {turn.id: replace(turn, rank=rank) for rank, turn in enumerate(self.turns)}

    def text(self) -> str:
        """As it is published."""
        rows = [[t.id, int(t.may_start) + 2 * t.keeps, t.why] for t in self.turns[:MOST_WAITING]]
        told = {"v": VERSION, "turns": rows, "loads": self.loads[:MOST_WAITING], "site": self.site}
        return json.dumps(told, separators=(",", ":"))


def order_of(text: str) -> Order | None:
    """A published order; None for a text that is none, or of another version."""
    try:
        found = json.loads(text)
        if found["v"] != VERSION:
            return None
        rows = found["turns"]
        turns = tuple(Turn(str(i), bool(flags & 1), bool(flags & 2), str(y)) for i, flags, y in rows)
        loads = tuple((str(dag), str(run), str(task)) for dag, run, task in found["loads"])
        return Order(turns, loads, str(found.get("site", "")))
    except (ValueError, LookupError, TypeError):
        return None


@dataclass
class Reader:
    """Keeps the newest order. read: the newest record, None where there is none."""

    read: Callable[[], Seen | None]
    clock: Callable[[], float] = time.monotonic
    seen: Seen | None = None
    _turns: Mapping[str, Turn] = field(default_factory=dict)
    _until_s: float = float("-inf")
    _due_s: float = float("-inf")

    def tick(self) -> None:
        """Read, if it is time. Raises what reading raises: what was read before then stands until its time is over."""
        now_s = self.clock()
        if now_s < self._due_s:
            return
        self._due_s = now_s + READ_S
        seen, last = self.read(), self.seen
        self.seen = seen
        if seen is None:
            self._turns, self._until_s = {}, float("-inf")
            return
        if last is None or (last.epoch, last.text) != (seen.epoch, seen.text):
            self._until_s = now_s + seen.ttl_s
        if last is None or last.published != seen.published:
            order = order_of(seen.published)
            self._turns = order.by_id if order is not None else {}

    def current(self) -> Mapping[str, Turn]:
        """Who waits in which order, by id; empty where nobody hosts the engine. Asks nobody."""
        return self._turns if self.clock() < self._until_s else {}


_reader: list[Reader] = []


def reader() -> Reader:
    """That of this process."""
    if not _reader:
        from egs_airflow.order.record import read_record

        _reader.append(Reader(read_record))
    return _reader[0]


def follows() -> str:
    """Whose order this process follows now; "" for nobody's."""
    seen, turns = (_reader[0].seen, _reader[0].current()) if _reader else (None, {})
    return f"epoch {seen.epoch}, {len(turns)} waiting" if seen is not None and turns else ""


def forget() -> None:
    """Nothing more is read in this process."""
    _reader.clear()


def current_turn(ti_id: object) -> Turn | None:
    """The turn of a task instance, where this process reads the order and the engine has one for it."""
    return _reader[0].current().get(str(ti_id)) if _reader else None
