"""What client and server tell each other of a whole site at once, for whoever looks at it all the time.

GET /v1/overview     ─► Overview    `?own=false`: of the asker's teams alone, the same for all who have those
GET /v1/me           ─► Me          who the server takes the asker for

The answer has a bound however much there is: of what runs and of what waits the first ones, and how many there are.
"""

from __future__ import annotations

from egs_core.client.hosts import HostView
from egs_core.client.messages import Device, RunView, Told
from egs_core.client.tokens import Role

BY_TOKEN_HEADER = "EGS-By-Token"
"""Of a request over the server's socket: not the process that asks counts, but the token that it sends."""


class Me(Told):
    """team: to which the asker is bound, the first one where there are several; "" where `every_team`: it is bound to
    none, and sees all. since: second since 1970 from which on there is the site, None where that is not known."""

    name: str
    role: Role
    team: str = ""
    every_team: bool = False
    since: float | None = None


class QueueView(Told):
    """A queue that the asker may use. gpus: its nominal quota, None where that has no bound; used: by all who use it,
    in all pools of the server, None where others than the asker's team may use it, too; is_used_up: its budget, so
    that nothing new of it gets a GPU; waiting: runs that the asker sees; starts_in_s: when the first of those should
    start."""

    name: str
    team: str = ""
    gpus: float | None = None
    used: float | None = None
    is_used_up: bool = False
    waiting: int = 0
    starts_in_s: float | None = None

    @property
    def bound(self) -> str:
        """What bounds it, in words: its quota, and that its budget is used up."""
        quota = "" if self.gpus is None else f"{self.gpus:g}"
        return ", ".join(one for one in (quota, "budget used up" * self.is_used_up) if one) or "no bound"


class Overview(Told):
    """now: of the server's clock, seconds since 1970. running, waiting: the first of so many, waiting ones in the order
    in which they start, the first ones with why they wait, fewer the more there are. drivers: of frameworks."""

    now: float
    devices: tuple[Device, ...] = ()
    hosts: tuple[HostView, ...] = ()
    queues: tuple[QueueView, ...] = ()
    running: tuple[RunView, ...] = ()
    running_count: int = 0
    waiting: tuple[RunView, ...] = ()
    waiting_count: int = 0
    drivers: tuple[RunView, ...] = ()
