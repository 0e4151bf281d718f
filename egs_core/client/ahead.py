"""What a server tells of the tasks of frameworks' drivers, and of what it has planned.

GET /v1/drivers/DRIVER/tasks    ─► DriverTasksView    404 for a driver that the asker does not see
GET /v1/ahead                   ─► Ahead              of all drivers that it sees
"""

from __future__ import annotations

import msgspec


class TaskOutline(msgspec.Struct, frozen=True, omit_defaults=True):
    """number: its own, by which `parents` name it; id, workload: as its driver has them; state: of
    `runlog.standing.STATES`; since: when its current phase started, or became ready, in seconds since 1970; seconds:
    how long its phases are believed to take together, None where nobody knows; devices: on its node; gpus: of its
    current phase; is_warm: a process that is ready waits for it, or runs it; why: it waits, of the first ones;
    progress: how far it is, in words, where it tells that; told_at: when it did, in seconds since 1970."""

    number: int
    id: str
    name: str
    workload: str
    state: str
    parents: tuple[int, ...] = ()
    since: float | None = None
    seconds: float | None = None
    node: str = ""
    devices: tuple[int, ...] = ()
    gpus: float = 0.0
    is_warm: bool = False
    why: str = ""
    progress: str = ""
    told_at: float | None = None


class DriverTasksView(msgspec.Struct, frozen=True):
    """now: of the server's clock; name, framework: of the driver."""

    now: float
    id: str
    name: str
    framework: str
    user: str
    queue: str
    tasks: tuple[TaskOutline, ...] = ()


class Planned(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something for a task. at: when, in seconds since 1970, None where it is now or not known; state: of what is
    loaded: warm or loading."""

    driver: str
    task: str
    workload: str
    user: str
    queue: str = ""
    node: str = ""
    gpus: float = 0.0
    at: float | None = None
    state: str = ""


class Ahead(msgspec.Struct, frozen=True):
    """loaded: ahead of their tasks; kept: room for tasks; starts: tasks that should start next, the first first."""

    now: float
    loaded: tuple[Planned, ...] = ()
    kept: tuple[Planned, ...] = ()
    starts: tuple[Planned, ...] = ()
