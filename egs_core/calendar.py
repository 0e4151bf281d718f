"""GPUs that are kept for a queue at certain times: once, or every week, in the time of a place. Pure.

reservation  days [mon], 09:00 to 11:00, Europe/Berlin
windows            |==|                             |==|           in seconds since 1970, summer time or not
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_S = 86400.0
MOST_LEAD_S = 7 * DAY_S
DAY_MINUTES = 24 * 60
CLOCK = re.compile(r"(\d{1,2}):(\d{2})")


class Reservation(msgspec.Struct, frozen=True):
    """So many whole GPUs for a queue, from a minute of the day on to another one, of the next day where that is not
    later. date: once; else on these days of the week, 0 for Monday. zone: by name, as Europe/Berlin. lead_s: so long
    before, nothing else starts on them that might not have ended."""

    queue: str
    gpus: int
    begin: int
    end: int
    zone: str
    date: str = ""
    days: tuple[int, ...] = ()
    lead_s: float = 4 * 3600.0


class Window(msgspec.Struct, frozen=True):
    """One time of a reservation, in seconds since 1970."""

    begin: float
    end: float
    of: Reservation

    @property
    def text(self) -> str:
        """As the people of its zone say it."""
        begin, end = (datetime.fromtimestamp(at, _zone(self.of.zone)) for at in (self.begin, self.end))
        day = "" if begin.date() == end.date() else f"{end:%Y-%m-%d} "
        return f"{begin:%Y-%m-%d %H:%M} to {day}{end:%H:%M} ({self.of.zone})"


def minute_of(value: object) -> int:
    """Of a time of the day, as "09:00". YAML has read some for numbers, to the base of 60. Raises ValueError.

    >>> minute_of("09:00"), minute_of(11 * 60)
    (540, 660)
    """
    found = CLOCK.fullmatch(value) if isinstance(value, str) else None
    minute = int(found[1]) * 60 + int(found[2]) if found else value if type(value) is int else -1
    if not 0 <= minute < DAY_MINUTES or (found and int(found[2]) > 59):
        raise ValueError(f"{value!r} is no time of the day; as 09:00, with quotes")
    return minute


def end_of(value: object) -> int:
    """The same, and "24:00" for the end of the day. Raises ValueError."""
    return DAY_MINUTES if value in ("24:00", DAY_MINUTES) else minute_of(value)


def day_of(value: object) -> str:
    """Of a date, as YAML reads it or as text. Raises ValueError."""
    try:
        return date.fromisoformat(str(value)).isoformat()
    except ValueError:
        raise ValueError(f"{str(value)!r} is no day; as 2026-12-07") from None


def known_zone(name: str) -> str:
    """Raises ValueError for a time zone that this host does not know."""
    try:
        _zone(name)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        text = f"{name!r} is no time zone that is known here; as Europe/Berlin, or UTC (package tzdata has them all)"
        raise ValueError(text) from None
    return name


def windows(reservations: Iterable[Reservation], since: float, until: float) -> list[Window]:
    """Those that have not ended at `since` and begin before `until`, by when they begin."""
    found = [window for one in reservations for window in _of(one, since, until)]
    return sorted([w for w in found if w.end > since and w.begin < until], key=lambda w: (w.begin, w.end, w.of.queue))


def is_over(one: Reservation, now: float) -> bool:
    """Whether it was for one day, and that has been."""
    return bool(one.date) and not windows([one], now, float("inf"))


def _of(one: Reservation, since: float, until: float) -> list[Window]:
    if one.date:
        return [_window(one, date.fromisoformat(one.date))]
    first = datetime.fromtimestamp(since, UTC).date() - timedelta(days=2)
    days = [first + timedelta(days=n) for n in range(int((until - since) // DAY_S) + 5)]
    return [_window(one, day) for day in days if day.weekday() in one.days]


def _window(one: Reservation, day: date) -> Window:
    last = day if one.end > one.begin else day + timedelta(days=1)
    return Window(_moment(day, one.begin, one.zone), _moment(last, one.end, one.zone), one)


def _moment(day: date, minute: int, zone: str) -> float:
    at = time(minute // 60, minute % 60)
    return datetime.combine(day, at, _zone(zone)).timestamp()


@cache
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)
