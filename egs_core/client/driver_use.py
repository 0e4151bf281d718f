"""What a server tells of the GPUs that tasks of frameworks' drivers held.

GET /v1/driver-use     ─► DriverUse    `?over=SECONDS`: of the last so many
"""

from __future__ import annotations

import msgspec


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
