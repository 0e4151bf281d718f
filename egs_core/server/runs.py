"""A run as the server keeps it, and what the server refuses."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from egs_core.calendar import Reservation
from egs_core.client.messages import Process, RunRequest
from egs_core.engine.specs import FlavorSpec
from egs_core.flavor_names import flavor_of_product
from egs_core.graph.columns import Shape
from egs_core.site.refusal import Refusal as Refusal

NOT_ADMITTED = -1
NO_PHASE = -1  # of a lease in a request
EMULATED = "emulated"  # the label of a device that is none
MOST_ATTEMPTS = 100  # of a run, that are kept
WHOLE_DEVICE = 1000  # thousandths
WAITING, PAUSED, GRANTED, RUNNING, STOPPING, ENDED = "waiting", "paused", "granted", "running", "stopping", "ended"


class Known(msgspec.Struct, frozen=True):
    """A process, as `messages.Process`."""

    pid: int
    started: int

    def asked(self) -> Process:
        return Process(pid=self.pid, started=self.started)


NOBODY = Known(0, 0)
"""The supervisor of what has none."""


class Device(msgspec.Struct, frozen=True):
    """id: as `CUDA_VISIBLE_DEVICES` has it; label: what its driver calls it; memory_bytes: 0 where it is not known.
    flavor: where that does not follow from the label."""

    id: str
    label: str = ""
    memory_bytes: int = 0
    flavor: str = ""

    @property
    def is_slice(self) -> bool:
        """Whether it is one of a GPU that MIG splits."""
        return self.id.startswith("MIG-")

    @property
    def kind(self) -> str:
        """Its flavor; "" where that is not known."""
        return self.flavor or flavor_of_product("" if self.label == EMULATED else self.label)


def most_memory(devices: Sequence[Device]) -> int | None:
    """That one of them has; None where it is not known of one."""
    amounts = [device.memory_bytes for device in devices]
    return max(amounts) if amounts and all(amounts) else None


def unlike_memory(devices: Sequence[Device]) -> tuple[int, ...]:
    """Of each, where they have unlike amounts, all of them known."""
    amounts = tuple([device.memory_bytes for device in devices])
    return amounts if len(set(amounts)) > 1 and all(amounts) else ()


class Offer(msgspec.Struct, frozen=True):
    """What the host has for leases. is_new: other devices than before: none is drained. is_watched: its devices may be
    used by others: none is given out before somebody has looked (`SiteLogic.occupied`). reserved: what of it is kept
    for which queue, and when. flavors: what the site says of them, for all of its hosts."""

    host: str
    devices: tuple[Device, ...]
    cpus: float
    memory_bytes: int
    is_new: bool = False
    is_watched: bool = False
    reserved: tuple[Reservation, ...] = ()
    flavors: tuple[FlavorSpec, ...] = ()

    @property
    def gpu_memory_bytes(self) -> int | None:
        """The most that a device has; None where it is not known of one."""
        return most_memory(self.devices)


class SiteFacts(msgspec.Struct, frozen=True):
    """What never changes of a site. id: random; epoch: second since 1970 at which its clock is 0."""

    id: str
    epoch: float


class HeldLease(msgspec.Struct, frozen=True):
    """token: of the grant's decision; devices: by their place in their host's list. claimed_at: from then on its
    devices are given to nobody until its processes are gone; None: nothing was started with it."""

    token: int
    phase: int
    attempt: int
    devices: tuple[int, ...]
    granted_at: float
    claimed_at: float | None = None


class GangPlace(msgspec.Struct, frozen=True):
    """A run's place among those that start together, see `gangs`. number: of the run that began the gang, by which it
    is told from others of this name; until: when it is given up if not all have come; is_whole: they have. rank: its
    place in the order of their numbers, once they have; hosts: of all by rank, as runs name them, where they are of
    several."""

    name: str
    size: int
    number: str
    until: float
    is_whole: bool = False
    rank: int | None = None
    hosts: tuple[str, ...] = ()


class Saving(msgspec.Struct, frozen=True):
    """See `messages.Saving`."""

    signal: str
    takes_s: float


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a run had from a start until it was evicted: so many GPUs, of `flavor` where they were of one, on a host
    ("" for the server's own), after it had waited so long since its turn. why: it had to stop, "" of older servers."""

    started_at: float
    ended_at: float
    gpus: float = 0.0
    host: str = ""
    flavor: str = ""
    waited_s: float | None = None
    turn_at: float | None = None
    why: str = ""


class Aside(msgspec.Struct, frozen=True):
    """Of a run that was put aside. devices: ids of the GPUs that it was on, where alone it goes on; ran_s: so long it
    had run there; until: it waits for these alone until then, see `aside`."""

    devices: tuple[str, ...]
    ran_s: float
    until: float


class Run(msgspec.Struct, omit_defaults=True):
    """One run. Times are the site's (see `SiteLogic`). version: higher with each change that its client is told.

    after: runs that have to end first, and how (`messages.After`). task: of the engine, from then on. lease: held now.
    named: its processes as its supervisor has told them, without itself. stop: why it must end. ended_at: None while
    it is open. why: how it came to its end, or to a stop. changes: how often it was given to the engine anew.
    is_time_up: its time box was over, so that it had to stop. team: whose it is, "" for nobody's. host: on which it was
    started, "" for the server's own.

    is_request: GPUs for a while, see `requests`: it has no supervisor, and is claimed by the site itself; in a gang it
    is the part on one host of a request over several. idle_s: after so long without a command and without work on its
    GPUs it ends. inside: of a command in a request, that one's id; the engine does not know it. is_warned: its client
    was told that the request ends soon.

    requeue: it may be evicted for another, and then waits again; is_evicted: it is to stop for that; evictions: so far.
    gang: with which others it starts. work: what it has told of its work, by unit. waited_s: how long it waited for
    its latest lease, from the moment on at which it was its turn to wait. flavors: that it may have, none named: all;
    flavor: of the devices of its latest lease, where these are of one. saving: how it is asked for a checkpoint, None:
    it has not said; checkpoints: how often it was; checkpoint_at: when last.
    lost_token: of the lease with which it was lost: its supervisor may still tell how it ended. follows: all runs after
    which it was submitted to come; follows_when: of those of them that need not succeed, how they have to end. roams:
    the site has chosen its host, and may choose another one while it waits.
    turn_at: since when it is its turn to wait, later by what it was held; held_at: since when it is, see `turns`.
    earlier: what it had before it was evicted, the last times. stop_at: since when it is to stop, in what is durable.
    suspends: where it is evicted it is put aside; aside: as it was last, None where it has begun anew since; while it
    runs again it tells nothing.
    """

    id: str
    key: str
    user: str
    name: str
    supervisor: Known
    submitted_at: float
    gpus: float = 0
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
    gpu_memory_bytes: int = 0
    changes: int = 0
    is_time_up: bool = False
    team: str = ""
    is_request: bool = False
    idle_s: float | None = None
    inside: str = ""
    is_warned: bool = False
    host: str = ""
    requeue: bool = False
    is_evicted: bool = False
    evictions: int = 0
    gang: GangPlace | None = None
    work: dict[str, float] = {}
    waited_s: float | None = None
    flavors: tuple[str, ...] = ()
    flavor: str = ""
    saving: Saving | None = None
    checkpoints: int = 0
    checkpoint_at: float | None = None
    lost_token: int = 0
    note: str = ""
    follows: tuple[str, ...] = ()
    follows_when: dict[str, str] = {}
    roams: bool = False
    turn_at: float | None = None
    held_at: float | None = None
    earlier: tuple[Attempt, ...] = ()
    stop_at: float | None = None
    suspends: bool = False
    aside: Aside | None = None

    @property
    def workload(self) -> str:
        """What the engine calls it: something new each time that it is given to it; of a gang all are one."""
        number = self.gang.number if self.gang else self.id
        return f"{number}.{self.changes}" if self.changes else number

    def keep_attempt(self, now: float) -> None:
        """It is evicted: what it has had is kept."""
        if self.started_at is not None:
            had = Attempt(
                self.started_at, now, self.gpus, self.host, self.flavor, self.waited_s, self.turn_at, self.stop
            )
            self.earlier = (*self.earlier, had)[-MOST_ATTEMPTS:]

    @property
    def whole(self) -> str:
        """Of a GPU request its number: of one over several hosts that of its first part."""
        return self.gang.number if self.is_request and self.gang else self.id

    @property
    def time_is_up_at(self) -> float | None:
        """When its time box is over; None for none, or while it waits."""
        return None if self.for_s is None or self.started_at is None else self.started_at + self.for_s

    @property
    def is_open(self) -> bool:
        return self.ended_at is None

    @property
    def shape(self) -> Shape:
        """What it holds while it runs."""
        return Shape(round(self.cpus * 1000), round(self.gpus * WHOLE_DEVICE), self.memory_bytes, self.gpu_memory_bytes)

    def satisfies(self, when: str) -> bool:
        """Whether it has ended so that what waits for it like this may start."""
        return when == "any" or (self.outcome == "succeeded") == (when == "ok")

    @property
    def is_claimed(self) -> bool:
        return self.lease is not None and self.lease.claimed_at is not None

    def began_before(self, moment: float) -> bool:
        """Whether its lease was in use then."""
        return self.lease is not None and self.lease.claimed_at is not None and self.lease.claimed_at < moment

    def uses(self, token: int) -> bool:
        """Whether it has started with this lease, and still has it."""
        return self.lease is not None and self.lease.token == token and self.is_claimed

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
            gpu_memory_bytes=request.gpu_memory_bytes,
            is_paused=request.hold,
            requeue=request.requeue,
            flavors=request.flavors,
            note=request.note or "",
            suspends=bool(request.suspend),
            saving=None if request.saving is None else Saving(request.saving.signal, request.saving.takes_s),
        )
