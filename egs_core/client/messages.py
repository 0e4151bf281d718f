"""What the client and the server of a site tell each other: version 1 of the protocol over HTTP.

    POST /v1/runs                 RunRequest ─► RunView    repeated with the same key: the same run
    POST /v1/check                RunRequest ─► RunView    what that would be answered now; nothing is asked for
    POST /v1/runs/ID/beat         Beat       ─► RunView    a sign of life; answered when `version` is no longer `seen`
    POST /v1/runs/ID/claim        Claim      ─► RunView    before the command starts; 409: the lease is given up
    POST /v1/runs/ID/end          End        ─► RunView    when no process of the lease is left; 409 while there is one
    POST /v1/runs/ID/abort        Control    ─► RunView    also /pause, /resume, and /release: its end is a success
    POST /v1/runs/ID/update       Change     ─► RunView    other wishes; 409 for those that it is too late for
    GET  /v1/runs                            ─► Runs       GET /v1/runs/ID: one of them, with why it waits
    POST /v1/drain                Drain      ─► Runs       a device that nothing new is to get, or all of a host
    GET  /v1/queue                           ─► Runs       those that wait, first first
    GET  /healthz                            ─► Health

    POST /v1/drivers              DriverRequest ─► Driver  a framework's driver joins those that share a pool
    POST /v1/drivers/ID/batch     Batch      ─► Answers    what it reports and asks (`egs_core.site.wire`)
    POST /v1/drivers/ID/poll      Poll       ─► Messages   what it is told; a sign of life
    POST /v1/drivers/ID/leave     Leave      ─► Left       410 from all three: the server knows the driver no more

Neither the command's arguments nor its environment are ever told. Times are seconds since 1970 where they are moments.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from egs_core.client.outlines import Earlier
from egs_core.progressed import progress_words

PROTOCOL = 1
STANDBY_HEADER = "EGS-Standby"  # of an answer: another server of the site is to be asked
PROTOCOL_HEADER = "EGS-Protocol"
UNKNOWN, NOBODY = 401, "nobody is known by this request"  # status and words of a server that does not know who asks
MOST_WAIT_S = 30.0
MOST_PROCESSES = 1000

PLAIN = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]*$"
"""What a terminal and a log show as it is: no control character, and none that changes the order of others."""

Name = Annotated[str, Field(max_length=200, pattern=PLAIN)]
Seconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


class Ask(BaseModel):
    """Base of what a client sends: a field that the server does not know is an error, not ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Told(BaseModel):
    """Base of what the server answers: a newer server may say more."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Process(Ask):
    """A process of the server's host. started: in clock ticks since the host's start, so that a number that is given
    again is not taken for it."""

    pid: Annotated[int, Field(gt=0, le=2**31)]
    started: Annotated[int, Field(ge=0, le=2**62)]


def _whole_or_part(gpus: float) -> float:
    if gpus != round(gpus, 3) or (gpus > 1 and gpus % 1):
        raise ValueError("must be a whole number, or a part of one GPU in thousandths, as 0.25")
    return gpus


Gpus = Annotated[float, Field(ge=0, le=1024, allow_inf_nan=False), AfterValidator(_whole_or_part)]


FlavorName = Annotated[str, Field(min_length=1, max_length=100, pattern=PLAIN)]
Unit = Annotated[str, Field(max_length=100, pattern=PLAIN)]
Amount = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]


class After(Ask):
    """A run that has to end first, and how: ok: with exit code 0; failed: in any other way."""

    run: Annotated[str, Field(max_length=32)]
    when: Literal["ok", "any", "failed"] = "ok"


class Gang(Ask):
    """Runs of one user that start together, or none of them: so many, that ask for it by this name. wait_s: how long
    the first of them waits for the last to be asked for; then all that have come end."""

    name: Annotated[str, Field(min_length=1, max_length=100, pattern=PLAIN)]
    size: Annotated[int, Field(ge=2, le=256)]
    wait_s: Seconds = 600.0


class Saving(Ask):
    """How a run is asked to save its work: a signal, which those of its processes are sent that handle it. takes_s: how
    long that keeps it from its work."""

    signal: Literal["USR1", "USR2", "HUP"]
    takes_s: Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)] = 30.0


class RunRequest(Ask):
    """One command that wants to run. key: chosen by the client, so that a repeated request is known; supervisor: the
    client itself, which is there as long as the request is meant. gpus: whole ones, or a part of one; gpu_memory_bytes:
    on each; where no GPUs are named, the part of one that has so much memory. expected_s: how long it is believed to
    take; for_s: after so long it is ended, and has had what it asked for; deadline_s: until when it should have ended,
    from now; hold: it does not start before it is resumed; inside: of a GPU request (`egs_core.client.requests`) whose
    GPUs it has, and whose place in the queue: it names neither; requeue: it may be evicted for another, and then starts
    again; gang: with which it starts together; flavors: of GPUs that it may have, none named: all. note: why it
    is asked for, which `egs why` tells. suspend: with requeue: its processes are put aside for that, however long it
    takes."""

    key: Annotated[str, Field(min_length=8, max_length=64)]
    supervisor: Process
    name: Name = ""
    gpus: Gpus = 0
    gpu_memory_bytes: Annotated[int, Field(ge=0, le=2**50)] = 0
    cpus: Annotated[float, Field(ge=0, le=4096, allow_inf_nan=False)] = 0.0
    memory_bytes: Annotated[int, Field(ge=0, le=2**62)] = 0
    queue: Name = ""
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    expected_s: Seconds | None = None
    for_s: Seconds | None = None
    deadline_s: Seconds | None = None
    hold: bool = False
    after: Annotated[tuple[After, ...], Field(max_length=100)] = ()
    inside: Annotated[str, Field(max_length=32)] = ""
    requeue: bool = False
    gang: Gang | None = None
    flavors: Annotated[tuple[FlavorName, ...], Field(max_length=100)] = ()
    saving: Saving | None = None
    note: Annotated[str, Field(max_length=400, pattern=PLAIN)] | None = None
    suspend: bool | None = None


class Change(Ask):
    """What is to be another of a run that has not started; None: as it is. Of one that runs only for_s, counted from
    its start, and expected_s. Fields as of `RunRequest`; deadline_s: from now."""

    gpus: Gpus | None = None
    gpu_memory_bytes: Annotated[int, Field(ge=0, le=2**50)] | None = None
    cpus: Annotated[float, Field(ge=0, le=4096, allow_inf_nan=False)] | None = None
    memory_bytes: Annotated[int, Field(ge=0, le=2**62)] | None = None
    queue: Name | None = None
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] | None = None
    expected_s: Seconds | None = None
    for_s: Seconds | None = None
    deadline_s: Seconds | None = None


class Progress(Ask):
    """What a command has told of by `egs.progress` since its start: its furthest step and latest loss, None where it
    told none. is_nan: the latest loss of one of its processes is not finite. losses, total, squares: of all finite
    ones: how many, their sum, and the sum of their squares. ago_s: how long ago that was told last."""

    step: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    loss: Annotated[float, Field(allow_inf_nan=False)] | None = None
    is_nan: bool = False
    losses: Annotated[int, Field(ge=0, le=2**62)] = 0
    total: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    squares: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    ago_s: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = 0.0


class Beat(Ask):
    """seen: the version that the client knows; wait_s: how long the answer may take if nothing changes. token: of its
    lease; processes: those that it has started, as far as it knows them. told_s: so long ago they have told of their
    work (`egs.work`) last; None: never, or the server does not want to know (`RunView.wants_told`). progress: how far
    they are; None: they do not tell, or the server knows of no such thing (`RunView.wants_progress`)."""

    seen: int = -1
    wait_s: Annotated[float, Field(ge=0, le=MOST_WAIT_S, allow_inf_nan=False)] = 0.0
    token: int = 0
    processes: Annotated[tuple[Process, ...], Field(max_length=MOST_PROCESSES)] = ()
    told_s: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = None
    progress: Progress | None = None


class Claim(Ask):
    """The lease with this token is about to be used."""

    token: int


class End(Ask):
    """What came of it. exit_code: of the command; 128 and the signal's number where a signal ended it. evicted: its
    supervisor has stopped it because the server wanted so, and waits for another lease. work: what it has told by
    `egs.work`, by unit. aside: of one that was evicted, processes that are stopped and have left their devices."""

    token: int
    outcome: Literal["succeeded", "failed", "aborted", "evicted"]
    exit_code: Annotated[int, Field(ge=0, le=255)]
    work: Annotated[dict[Unit, Amount], Field(max_length=32)] = {}
    aside: Annotated[tuple[Process, ...], Field(max_length=MOST_PROCESSES)] | None = None


class Control(Ask):
    """What an operator wants. grace_s: for a checkpoint, before what is left is killed."""

    reason: Name = ""
    grace_s: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] = 10.0


class Drain(Ask):
    """target: the host's name, or a device's id. drained: whether it is from now on."""

    target: Annotated[str, Field(max_length=200)]
    drained: bool = True


class DriverRequest(Ask):
    """A framework's driver that wants its work ordered with that of others. key: chosen by the client, so that a
    repeated request is known; pool: whose devices, the same for all that share them; name: what others see.
    back: it was there before, under another key, and is about to tell what it has."""

    key: Annotated[str, Field(min_length=8, max_length=64)]
    framework: Annotated[str, Field(pattern="^[a-z]{1,32}$")]
    pool: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
    name: Name = ""
    queue: Name = ""
    back: bool = False


class Poll(Ask):
    """ack: number of the last message that has arrived; wait_s: how long the answer may take if there is none."""

    epoch: Annotated[str, Field(max_length=64)]
    ack: Annotated[int, Field(ge=0)] = 0
    wait_s: Annotated[float, Field(ge=0, le=MOST_WAIT_S, allow_inf_nan=False)] = 0.0


class Leave(Ask):
    """Its work is over, or goes on without the server."""

    epoch: Annotated[str, Field(max_length=64)]


class Left(Told):
    """The server knows the driver no more."""

    id: str


class Driver(Told):
    """A driver that has joined. epoch: of this server, until it ends; ttl_s: silent for longer, it is taken for gone.
    now: second of the site's clock. queue: in which its work is; notice: what its user is to be told of that.
    wants_progress: it may tell how far its tasks are; takes_flavors: and which flavors one may have from now on."""

    id: str
    epoch: str
    ttl_s: float
    now: float
    queue: str = ""
    notice: str = ""
    wants_progress: bool = False
    takes_flavors: bool = False


class Lease(Told):
    """devices: their ids as `CUDA_VISIBLE_DEVICES` has them. token: the fencing token, higher for each later lease;
    mark: value of `EGS_LEASE` for its processes, by which they are found."""

    token: int
    devices: tuple[str, ...]
    claimed: bool = False
    mark: str = ""


class GangView(Told):
    """A gang as the server sees it. runs: those that have come and have not ended. Once all have come: number: of the
    gang, by which it is told from others; rank: the run's place among them, from 0; hosts: of all, by rank."""

    name: str
    size: int
    runs: tuple[str, ...]
    number: int = 0
    rank: int | None = None
    hosts: tuple[str, ...] = ()


class ProgressView(Told):
    """As `Progress`. told_at: seconds since 1970."""

    told_at: float
    step: float | None = None
    loss: float | None = None
    is_nan: bool = False

    @property
    def words(self) -> str:
        """See `progress_words`."""
        return progress_words(self.step, self.loss, self.is_nan)


class TaskProgress(ProgressView):
    """Of a task of a driver, by its name."""

    task: str


class DriverTasks(Told):
    """How many of a driver's tasks with GPUs run, and how many could start. told: how far those are that have told of
    it last, the last one first."""

    running: int
    waiting: int
    told: tuple[TaskProgress, ...] = ()


class RunView(Told):
    """A run as the server sees it. site: the server's own id; runs of two servers may have one number.

    state: waiting, paused, granted, running, stopping or ended. kind, reason: why it is there. starts_in_s: when it
    should start, in seconds from now; None where that is not known. lost: nothing is heard of its supervisor, and
    processes (some are named) may still use the devices, which are therefore given to nobody. stop: why it has to end;
    beat_s: how often the server wants to hear of it. host: on which it was started. Of a framework's driver: framework,
    tasks; gpus: held now. requeue: what has to stop is evicted for another, and waits again then; evictions: how often
    it was. is_request: it is a GPU request; inside: the request in which it is; ends_at: when that ends, once that is
    near. gang: with which it starts together. notice: what who has just submitted it is to be told. work: what it has
    told by `egs.work`, by unit. wants_told: heartbeats are to say when it told of that last; wants_progress: and where
    it is. flavors: of GPUs that it may have, none named: all; flavor: of those that it has, or had, where they are of
    one. progress: where it is, while it runs and tells that. checkpoints: how often it was asked for one, by the signal
    `checkpoint_signal`, "" for a run that states none. note: why it was asked for. earlier: starts before the last.
    rounds: how often all devices of its host have to come free before its turn, if each goes to one that waits; only of
    one that waits in the order, and where it alone is asked for.
    """

    id: str
    site: str = ""
    name: str
    user: str
    team: str = ""
    state: str
    version: int
    gpus: float
    cpus: float
    memory_bytes: int
    gpu_memory_bytes: int = 0
    queue: str
    priority: int
    expected_s: float | None = None
    for_s: float | None = None
    submitted_at: float
    started_at: float | None = None
    ended_at: float | None = None
    outcome: str = ""
    exit_code: int | None = None
    lease: Lease | None = None
    kind: str = ""
    reason: str = ""
    starts_in_s: float | None = None
    lost: bool = False
    processes: tuple[int, ...] = ()
    stop: str = ""
    grace_s: float = 0.0
    beat_s: float = 5.0
    framework: str = ""
    host: str = ""
    tasks: DriverTasks | None = None
    requeue: bool = False
    evictions: int = 0
    is_request: bool = False
    inside: str = ""
    ends_at: float | None = None
    gang: GangView | None = None
    notice: str = ""
    work: dict[str, float] = {}
    wants_told: bool = False
    flavors: tuple[str, ...] = ()
    flavor: str = ""
    wants_progress: bool = False
    progress: ProgressView | None = None
    checkpoint_signal: str = ""
    checkpoints: int = 0
    note: str = ""
    earlier: tuple[Earlier, ...] = ()
    rounds: int | None = None

    @property
    def doing(self) -> str:
        """Its state, and where it is."""
        where = self.progress.words if self.progress is not None else ""
        if self.tasks is not None and self.tasks.told:
            where = f"{self.tasks.told[0].task}: {self.tasks.told[0].words}"
        return f"{self.state}: {where}" if where else self.state


class Device(Told):
    """id: as `CUDA_VISIBLE_DEVICES` has it; host: that has it; state: free, held, drained: free, and nothing new gets
    it, occupied by `processes` that hold no lease of it, or suspect; run: which holds it, "" for none, and for one that
    the asker does not see; runs: all that do, where each has a part of it. memory_bytes: 0 where it is not known; free:
    the part that nobody holds, 0 to 1; others: somebody has a part whom the asker does not see; drained: nothing new
    gets it; suspect: the same, for nothing is heard of its host's agent. flavor: "" where that is not known."""

    id: str
    label: str = ""
    run: str = ""
    runs: tuple[str, ...] = ()
    memory_bytes: int = 0
    free: float = 1.0
    others: bool = False
    drained: bool = False
    state: str = "free"
    processes: tuple[int, ...] = ()
    host: str = ""
    suspect: bool = False
    flavor: str = ""


class BudgetView(Told):
    """GPU hours that a queue, or all queues of a team, may use in a period of the calendar. used: so far, None where
    several teams use the queue; period: as 2026-11, from begins_at to ends_at in the time of the zone. state: ok,
    warned: who submits is told, or used up: with then "stop" nothing new of it gets a GPU before ends_at. cost: so much
    money, instead of gpu_hours, which are 0 then; None where hours count; cost_used: as used, of money."""

    queue: str = ""
    team: str = ""
    gpu_hours: float
    used: float | None = None
    period: str
    begins_at: float
    ends_at: float
    zone: str
    warn_at: float
    then: Literal["stop", "warn"]
    state: Literal["ok", "warned", "used up"]
    cost: float | None = None
    cost_used: float | None = None
    currency: str = ""


class Runs(Told):
    """Some runs, and the devices of the site. more_ended: than those in it, where the last alone were asked for.
    budgets: in an answer about the queue, those of the asker's queues."""

    runs: tuple[RunView, ...]
    more_ended: int = 0
    devices: tuple[Device, ...] = ()
    budgets: tuple[BudgetView, ...] = ()


class Health(Told):
    """version: of the server's EGS."""

    ok: bool
    version: str
    protocol: int = PROTOCOL
