"""A run as the server keeps it, who asks for something, and what the server refuses."""

from __future__ import annotations

import msgspec

from egs_core.client.messages import Process, RunRequest
from egs_core.graph.columns import Shape

NOT_ADMITTED = -1
WAITING, PAUSED, GRANTED, RUNNING, STOPPING, ENDED = "waiting", "paused", "granted", "running", "stopping", "ended"


class Refusal(Exception):
    """A request that cannot be met. status: of HTTP; the text says what to change."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Principal(msgspec.Struct, frozen=True):
    """Who asks. is_operator: may also change what others run."""

    name: str
    is_operator: bool = False


class Known(msgspec.Struct, frozen=True):
    """A process, as `messages.Process`."""

    pid: int
    started: int

    def asked(self) -> Process:
        return Process(pid=self.pid, started=self.started)


class Device(msgspec.Struct, frozen=True):
    """id: as `CUDA_VISIBLE_DEVICES` has it."""

    id: str
    label: str = ""


class Offer(msgspec.Struct, frozen=True):
    """What the host has for leases."""

    host: str
    devices: tuple[Device, ...]
    cpus: float
    memory_bytes: int


class SiteFacts(msgspec.Struct, frozen=True):
    """What never changes of a site. id: random; epoch: second since 1970 at which its clock is 0."""

    id: str
    epoch: float


class HeldLease(msgspec.Struct, frozen=True):
    """token: of the grant's decision; devices: by their place in the site's list. claimed_at: from then on its devices
    are given to nobody until its processes are gone; None: nothing was started with it."""

    token: int
    phase: int
    attempt: int
    devices: tuple[int, ...]
    granted_at: float
    claimed_at: float | None = None


class Run(msgspec.Struct, omit_defaults=True):
    """One run. Times are the site's (see `SiteLogic`). version: higher with each change that its client is told.

    after: runs that have to end first, and how (`messages.After`). task: of the engine, from then on. lease: held now.
    named: its processes as its supervisor has told them, without itself. stop: why it must end. ended_at: None while
    it is open. why: how it came to its end, or to a stop.
    """

    id: str
    key: str
    user: str
    name: str
    supervisor: Known
    submitted_at: float
    gpus: int = 0
    cpus: float = 0.0
    memory_bytes: int = 0
    queue: str = ""
    priority: int = 0
    expected_s: float | None = None
    for_s: float | None = None
    deadline_s: float | None = None
    after: tuple[tuple[str, str], ...] = ()
    task: int = NOT_ADMITTED
    version: int = 1
    lease: HeldLease | None = None
    named: tuple[Known, ...] = ()
    is_paused: bool = False
    stop: str = ""
    grace_s: float = 0.0
    is_lost: bool = False
    started_at: float | None = None
    ended_at: float | None = None
    outcome: str = ""
    exit_code: int | None = None
    why: str = ""

    @property
    def is_open(self) -> bool:
        return self.ended_at is None

    @property
    def shape(self) -> Shape:
        """What it holds while it runs."""
        return Shape(round(self.cpus * 1000), self.gpus * 1000, self.memory_bytes)

    def satisfies(self, when: str) -> bool:
        """Whether it has ended so that what waits for it like this may start."""
        return when == "any" or (self.outcome == "succeeded") == (when == "ok")

    @property
    def is_claimed(self) -> bool:
        return self.lease is not None and self.lease.claimed_at is not None

    @property
    def state(self) -> str:
        """As `RunView.state`."""
        if not self.is_open:
            return ENDED
        if self.lease is None:
            return PAUSED if self.is_paused else WAITING
        if self.stop:
            return STOPPING
        return RUNNING if self.is_claimed else GRANTED

    @classmethod
    def of(cls, request: RunRequest, number: int, user: str, now: float) -> Run:
        supervisor = Known(request.supervisor.pid, request.supervisor.started)
        return cls(
            str(number),
            request.key,
            user,
            request.name or "run",
            supervisor,
            now,
            request.gpus,
            request.cpus,
            request.memory_bytes,
            request.queue,
            request.priority,
            request.expected_s,
            request.for_s,
            request.deadline_s,
        )
