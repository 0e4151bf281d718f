"""Which agent of a site hosts the engine: the one that holds a lease in Airflow's own metadata. Pure: no request here.

    store    1 ···renewed···· silent for its time to live         2 ···renewed···
    a        holds            │                                    sees 2: holds nothing
    b        watches          └─ creates 2; the store lets one ──► holds, removes 1
    c        watches          └─ creates 2: refused ─► watches

One record an epoch. Taking over is creating the record of the next epoch, which the store does for exactly one of all
who try; the record with the highest epoch is the lease, and it is never removed, only let go, so no epoch comes twice.

Clocks of hosts are not compared. Whoever watches counts the time since it first saw the record as it is; the holder
counts from before it sent its last renewal, which is earlier. So the holder knows that its time is over before
anybody else may take over. What the holder writes stands in the record of its epoch: whoever reads the highest one
reads nothing of a holder whose time is over.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

TTL_S = 30.0
"""So long after its last renewal a holder counts as gone."""
MOST_TTL_S = 600.0


class Store(Protocol):
    """Where the records are. All three see what was written before; what cannot be asked raises InputError."""

    def texts(self) -> dict[int, str]:
        """What the records say, by epoch."""

    def create(self, epoch: int, text: str) -> None:
        """Make the record of an epoch; where it is there already, nothing changes and InputError may be raised."""

    def replace(self, epoch: int, text: str) -> bool:
        """Write a record anew; False where it is not there any more."""

    def remove(self, epoch: int) -> None:
        """Take a record away, if it is there."""


@dataclass(frozen=True)
class Record:
    """What a record says. beat: changes with each renewal; holder: "" where it was let go."""

    holder: str = ""
    beat: int = 0
    ttl_s: float = TTL_S

    def text(self) -> str:
        """As it is stored: users see it in Airflow's list of connections."""
        return json.dumps({"holder": self.holder, "beat": self.beat, "ttl_s": self.ttl_s})


def record_of(text: str) -> Record:
    """A stored record; one that somebody has damaged is held by an unknown holder, who never renews it."""
    try:
        found = json.loads(text)
        return Record(str(found["holder"]), int(found["beat"]), min(max(float(found["ttl_s"]), 0.0), MOST_TTL_S))
    except (ValueError, LookupError, TypeError):
        return Record("?")


def boot_clock() -> float:
    """Seconds that go on while the machine sleeps: a holder that was suspended must not believe it still holds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass
class Lease:
    """One agent's view of it. holder: a name that no other agent has.

    epoch: that is held, or was last; holder_seen: who holds it, "" for nobody.
    """

    store: Store
    holder: str
    ttl_s: float = TTL_S
    clock: Callable[[], float] = boot_clock
    epoch: int = 0
    holder_seen: str = ""
    _until_s: float = float("-inf")
    _beat: int = 0
    _seen: tuple[int, str] = (0, "")
    _seen_s: float = field(default=0.0)

    @property
    def is_held(self) -> bool:
        """Whether this agent may decide and write now."""
        return self.clock() < self._until_s

    def tick(self) -> bool:
        """Renew the lease, or take it where it is free; whether it is held now. Raises InputError where the store does
        not answer: what was held is then held until its time is over."""
        return self._renew() if self.is_held else self._watch()

    def release(self) -> None:
        """Let it go: another agent may take it at once."""
        if self.is_held:
            self._until_s = float("-inf")
            self.store.replace(self.epoch, Record("", self._beat + 1, self.ttl_s).text())

    def _renew(self) -> bool:
        began_s = self.clock()
        self._beat += 1
        is_there = self.store.replace(self.epoch, Record(self.holder, self._beat, self.ttl_s).text())
        return self._settle(began_s if is_there else float("-inf"))

    def _watch(self) -> bool:
        texts = self.store.texts()
        highest = max(texts, default=0)
        now_s, found = self.clock(), (highest, texts.get(highest, ""))
        if found != self._seen:
            self._seen, self._seen_s = found, now_s
        record = record_of(found[1]) if highest else Record()
        self.holder_seen = record.holder
        if record.holder and now_s - self._seen_s < record.ttl_s:
            return False
        began_s = self.clock()
        problem: Exception | None = None
        self._beat = 1
        try:
            self.store.create(highest + 1, Record(self.holder, self._beat, self.ttl_s).text())
        except Exception as error:  # refused, or done and the answer lost: what is stored says which
            problem = error
        self.epoch = highest + 1
        if self._settle(began_s):
            return True
        if problem is not None and max(self.store.texts(), default=0) <= highest:
            raise problem
        return False

    def _settle(self, began_s: float) -> bool:
        """Whether the store says that the lease is this agent's; then it is, from `began_s` on for its time to live."""
        texts = self.store.texts()
        highest = max(texts, default=0)
        record = record_of(texts[highest]) if highest else Record()
        is_mine = highest == self.epoch and record.holder == self.holder
        self.holder_seen = record.holder
        self._until_s = began_s + self.ttl_s if is_mine else float("-inf")
        if is_mine:
            for epoch in texts.keys() - {highest}:
                self.store.remove(epoch)
        return is_mine and self.is_held
