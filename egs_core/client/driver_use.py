"""What a server tells of the GPUs that tasks of frameworks' drivers held.

GET /v1/driver-use     ─► DriverUse    `?over=SECONDS`: of the last so many
"""

from __future__ import annotations

import msgspec

from egs_core.described import describe

MOST_S = 31 * 86400.0
"""So far back a server is asked, and keeps it, at most."""


def path_of(over_s: float) -> str:
    """What to ask for the last so many seconds.

    >>> path_of(30 * 86400.0)  # no exponent: its sign would be a space in a URL
    '/v1/driver-use?over=2592000'
    """
    return f"/v1/driver-use?over={over_s:.0f}"


class UsedBy(msgspec.Struct, frozen=True):
    """GPU seconds of the tasks of one team on one place (a node, or NODE/FLAVOR) in a stretch of time, in seconds since
    1970. held: from a task's grant to its end; used: from the start of its phase on."""

    start: float
    end: float
    team: str
    framework: str
    place: str
    held: float
    used: float


class DriverUse(msgspec.Struct, frozen=True):
    """Of drivers of the asker's teams. since: from when on it is known, in seconds since 1970; gpus: held now."""

    now: float
    since: float
    gpus: float = 0.0
    rows: tuple[UsedBy, ...] = ()


describe(DriverUse)
