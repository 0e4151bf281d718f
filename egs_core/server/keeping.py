"""Which GPUs reservations keep free, so that a run may not have one now. Pure: all that it depends on is given.

                 now                    09:00            11:00
    GPU 0, 1      |                      |== kept for q ==|
    a   --for 1h  |-----|                                        may start on them: it has ended by then
    b   --for 6h  |----------------------|xxxxxxxxx              may not, and one without --for neither
    c   of q      |--------------------------------              may

At each moment that counts (now, and the begin of what is kept soon) what is held then, with what is still free of what
is kept then, has to fit on the devices. So a queue that uses what is kept for it keeps nothing beyond, and what was
given before nobody knew of the reservation goes on, and counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from egs_core.calendar import DAY_S, MOST_LEAD_S, Reservation, Window, windows
from egs_core.server.runs import Run


class Held(NamedTuple):
    """Devices, by number, that a run of this queue has, and until when, in seconds since 1970."""

    queue: str
    devices: tuple[int, ...]
    until: float


class Wish(NamedTuple):
    """One that might start now: how many devices more than are held already it would have, and until when."""

    queue: str
    devices: int
    until: float


class Calendar:
    """The reservations of a host, and those of their windows that count around now."""

    def __init__(self, reservations: tuple[Reservation, ...] = ()) -> None:
        self._reservations = reservations
        self._windows: list[Window] = []
        self._since, self._until = math.inf, -math.inf  # between which those are all

    def near(self, now: float) -> list[Window]:
        """Those that are not over, of the next days."""
        if self._reservations and not self._since <= now < self._until:
            self._since, self._until = now, now + DAY_S
            self._windows = windows(self._reservations, now, self._until + MOST_LEAD_S)
        return [window for window in self._windows if window.end > now]

    def next_change(self, now: float) -> float | None:
        """When something begins or ends to be kept; None where that is not soon."""
        moments = [at for one in self.near(now) for at in (one.begin - one.of.lead_s, one.begin, one.end)]
        return min((at for at in moments if at > now), default=None)


def keeps_out(near: Sequence[Window], held: Sequence[Held], total: int, wish: Wish, now: float) -> Window | None:
    """What is kept so that this one may not start now; None where it may. total: devices that may be used at all."""
    soon = [one for one in near if one.begin - one.of.lead_s <= now]
    for at in sorted({max(one.begin, now) for one in soon}):
        if at > now and wish.until <= at:
            break
        others = [one for one in soon if one.begin <= at < one.end and one.of.queue != wish.queue]
        if others and lacking(others, held, total, at, now) + wish.devices > 0:
            return max(others, key=lambda one: one.end)
    return None


def lacking(active: Sequence[Window], held: Sequence[Held], total: int, at: float, now: float) -> int:
    """By how many devices what is held at a moment, and what is kept then, is more than there is; below 0: less."""
    still = [one for one in held if at <= now or one.until > at]
    kept = 0
    for one in active:
        own = devices_of(h for h in still if h.queue == one.of.queue)
        kept += max(0, one.of.gpus - len(own))
    return len(devices_of(still)) + kept - total


def devices_of(held: Iterable[Held]) -> set[int]:
    return {number for one in held for number in one.devices}


def ends_at(run: Run, now: float) -> float:
    """Until when it may hold devices: its time box says so, else nobody knows. now: of the site, as what it returns."""
    if run.for_s is None:
        return math.inf
    return run.for_s + (now if run.started_at is None else run.started_at)


def words(window: Window, now: float) -> str:
    """Why somebody waits for it. Whose it is is not told: that may be another team."""
    count = f"{window.of.gpus} GPUs are" if window.of.gpus > 1 else "1 GPU is"
    way = "" if window.begin <= now else "; what ends before, by its --for, may start"
    return f"{count} kept for another queue: {window.text}{way}"
