"""What goes into the engine (events) and what comes out of it (decisions).

Both are versioned by the journal's header and the snapshot's format number; the tag `e` or `d` names the kind. Tasks
and phases are named by the engine's own numbers, see `Engine.task_number`: a driver keeps the map to its framework's
names.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from egs_core.engine.specs import NO_LIMIT, NOTHING, SAFE, Amounts, AtRisk, FlavorSpec, Limits, QueueSpec
from egs_core.graph.columns import Graph


class Event(msgspec.Struct, frozen=True, tag_field="e", omit_defaults=True):
    """Base of all events."""


class NodeAdded(Event, frozen=True, tag="node"):
    """Capacity appears, or changes when the node is known: running phases keep what they hold.

    memory_bytes and gpu_memory_bytes (per device) of None mean: not tracked. preload_slots bounds how many processes
    may be warming at once; process_slots how many may exist of tasks with a warm key or with several phases, at work,
    waiting between two phases, or kept for later; None: `usual_process_slots` of the node.
    bandwidth_bytes_s: of files that come from other nodes; None: they cost nothing, or nobody knows.
    flavor: the kind of hardware; device_flavors: of each device, where they are unlike (else none), told once
    `FlavorsChanged` has; a task that may have `flavor` may have them all. device_memory_bytes: of each, where they have
    unlike amounts; gpu_memory_bytes is then the most.
    topology: (level, value) of every group that the node is in, as ("rack", "r1").
    drained: numbers of devices that nothing new is to get; what holds one keeps it. closed: the same, of those that are
    used by what the engine does not know. counts_closed: of these it is not known which they are, only how many of each
    flavor: none that is held, as long as another of its flavor is free.
    loads_apart: whether a process loads there without the CPUs of its task: one that comes to a GPU from CPUs then gets
    these once it is warm.
    """

    node: str
    cpus: float = 0.0
    gpus: int = 0
    memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    preload_slots: int = 2
    process_slots: int | None = None
    bandwidth_bytes_s: float | None = None
    flavor: str = ""
    topology: tuple[tuple[str, str], ...] = ()
    drained: tuple[int, ...] = ()
    closed: tuple[int, ...] = ()
    loads_apart: bool = False
    device_flavors: tuple[str, ...] = ()
    device_memory_bytes: tuple[int, ...] = ()
    counts_closed: bool = False


class NodeLost(Event, frozen=True, tag="node_lost"):
    """A node is gone, with everything that ran on it: its phases are requeued."""

    node: str


class QueuesChanged(Event, frozen=True, tag="queues"):
    """The queues as now configured, all of them. Work in a queue that is not listed has no quota and no limit."""

    queues: tuple[QueueSpec, ...]


class GrantsHeld(Event, frozen=True, tag="grants_held"):
    """Nothing is granted or preloaded for so many seconds from now: what runs is still being told. 0 ends it."""

    seconds: float


class Elsewhere(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one queue. used: what work on other nodes than this engine's holds of its quota; most: what this engine's may
    hold for now, where the engines of several pools take turns."""

    queue: str
    used: Amounts = NOTHING
    most: Amounts = NO_LIMIT


class UsedElsewhere(Event, frozen=True, tag="elsewhere"):
    """What is used of the queues' quotas beside this engine, all of it: of a queue that is not listed, nothing."""

    queues: tuple[Elsewhere, ...]


class OrderChosen(Event, frozen=True, tag="order_chosen"):
    """From now on a queue whose order is learned orders its workloads so: one of `ORDERS`. why: for who asks. Another
    queue stays as it is."""

    queue: str
    order: str
    why: str = ""


class PromisesAtRisk(Event, frozen=True, tag="at_risk"):
    """From now on these promises of a queue are at risk, all of them; none: it keeps them. What is about to break one
    goes first within the queue."""

    queue: str
    risk: AtRisk = SAFE


class FlavorsChanged(Event, frozen=True, tag="flavors"):
    """The flavors as now known, all of them. One that is not listed is as fast as the reference and costs nothing. The
    simulator sends this; no adapter does yet."""

    flavors: tuple[FlavorSpec, ...]


class WorkloadSubmitted(Event, frozen=True, tag="workload"):
    """A workload is there; its tasks follow. deadline_s: seconds from now until all of it should have ended; limits:
    of all of it together. submission: what it is a part of, if anything: workloads with the same one are ordered as if
    they were one workload. Unique on the site."""

    workload: str
    name: str = ""
    tenant: str = ""
    queue: str = ""
    deadline_s: float | None = None
    limits: Limits | None = None
    submission: str = ""


class Begun(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a task of a block is that another engine has ordered so far. task: its index in the block; attempt: the
    present one; failures: how many of those before have failed.

    node: where it has begun, "" if nowhere: then it waits from its first phase on. index: of its present phase, the
    earlier ones have succeeded. since_s: how many seconds ago that phase started, with these devices; None: it waits
    for its turn, in the task's process on that node.
    """

    task: int
    attempt: int = 1
    failures: int = 0
    node: str = ""
    index: int = 0
    since_s: float | None = None
    devices: tuple[int, ...] = ()


class TasksAdded(Event, frozen=True, tag="tasks"):
    """A block of tasks joins a workload; parents are task numbers within the workload, earlier blocks included. begun:
    those of it that are under way; what they hold counts at once, also above quotas and beyond what is free.

    Blocks carry no number: a driver sends each once, after its workload.
    """

    workload: str
    graph: Graph
    begun: tuple[Begun, ...] = ()


class BranchSkipped(Event, frozen=True, tag="skipped"):
    """The framework will not run this task. It counts as done: what waits only for it may run."""

    task: int


class Estimates(Event, frozen=True, tag="estimates"):
    """New beliefs: (phase, median seconds, 95th percentile seconds)."""

    values: tuple[tuple[int, float, float], ...]


class FlavorEstimates(Event, frozen=True, tag="flavor_estimates"):
    """Beliefs about single flavors: (phase, flavor, median seconds, 95th percentile seconds). They go before what the
    flavor's speed says."""

    values: tuple[tuple[int, str, float, float], ...]


class FlavorsAllowed(Event, frozen=True, tag="allowed"):
    """From now on the task may have these flavors only, whatever was said before: on others it has been tried in vain.
    What it holds it keeps. Without a flavor nothing changes."""

    task: int
    flavors: tuple[str, ...]


class DevicesAllowed(Event, frozen=True, tag="devices"):
    """From now on the task may start on these devices of this node only: on others it would have to begin anew. What it
    holds it keeps. Without a device it may have any again."""

    task: int
    node: str = ""
    devices: tuple[int, ...] = ()


class Sight(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where one task is, as its framework says. status: one of `SIGHTS`; node: where it runs; since_s: how many seconds
    ago it became ready, or started."""

    task: int
    status: str
    node: str = ""
    since_s: float = 0.0


SIGHTS = ("waiting", "ready", "running", "over")
"""waiting: not to be started now; over: however it ended, what waits for it may go on."""


class TasksSeen(Event, frozen=True, tag="seen"):
    """Where a framework that starts its tasks by itself has some of them now. Its books are the authority: a task runs
    that was not granted, or before what it waits for has ended; a grant that was not followed is given out anew. Of one
    batch all that ends or waits comes first. Members of gangs are left out."""

    tasks: tuple[Sight, ...]


class DecisionApplied(Event, frozen=True, tag="applied"):
    """The driver has done it."""

    decision: int


class DecisionRejected(Event, frozen=True, tag="rejected"):
    """The driver could not do it; a grant is held back for a while and tried again."""

    decision: int
    reason: str = ""


class DecisionLost(Event, frozen=True, tag="lost"):
    """Nobody knows whether it was done. A grant is fenced: the next attempt has a new number."""

    decision: int


class PhaseStarted(Event, frozen=True, gc=False, tag="started"):
    """The phase runs. Implies that its grant was applied."""

    phase: int
    attempt: int


class PhaseEnded(Event, frozen=True, gc=False, tag="ended"):
    """outcome: succeeded, failed, preempted, aborted."""

    phase: int
    attempt: int
    outcome: str = "succeeded"


class TaskFinished(Event, frozen=True, tag="finished"):
    """The task has succeeded although phases are left: its code did not take them (no GPU block was entered)."""

    task: int
    attempt: int


class Checkpointed(Event, frozen=True, tag="checkpoint"):
    """The running phase has saved what it has done: stopping the task loses only what comes after."""

    task: int
    attempt: int


class Activity(Event, frozen=True, tag="activity"):
    """Whoever holds what the running task has been given has done something: it is not idle. Only tests send it: hints
    and files of queues refuse idle time-outs, and that of `egs run` is kept where its command runs."""

    task: int
    attempt: int


class PreloadReady(Event, frozen=True, tag="warm"):
    """The process for this task is warm and waits. decision: the Preload that it answers; 0: the latest one."""

    task: int
    decision: int = 0


class PreloadFailed(Event, frozen=True, tag="preload_failed"):
    """No warm process for this task (failed, or its process died); it will start cold. decision: as above."""

    task: int
    decision: int = 0


class AbortRequested(Event, frozen=True, tag="abort"):
    """Operator control. scope: workload, stage (`workload/stage`) or task (its number as text)."""

    scope: str
    target: str
    actor: str = ""
    reason: str = ""


class PauseRequested(Event, frozen=True, tag="pause"):
    """Operator control: nothing more of this starts; what runs goes on to the end of its phase. Scopes as for an
    abort."""

    scope: str
    target: str
    actor: str = ""
    reason: str = ""


class ResumeRequested(Event, frozen=True, tag="resume"):
    """Takes back the pause of exactly this scope and target."""

    scope: str
    target: str
    actor: str = ""
    reason: str = ""


class Tick(Event, frozen=True, tag="tick"):
    """Time has passed; sent when `next_wakeup` says so."""


AnyEvent = (
    NodeAdded
    | NodeLost
    | QueuesChanged
    | GrantsHeld
    | UsedElsewhere
    | OrderChosen
    | PromisesAtRisk
    | FlavorsChanged
    | WorkloadSubmitted
    | TasksAdded
    | BranchSkipped
    | Estimates
    | FlavorEstimates
    | FlavorsAllowed
    | DevicesAllowed
    | TasksSeen
    | DecisionApplied
    | DecisionRejected
    | DecisionLost
    | PhaseStarted
    | PhaseEnded
    | TaskFinished
    | Checkpointed
    | Activity
    | PreloadReady
    | PreloadFailed
    | AbortRequested
    | PauseRequested
    | ResumeRequested
    | Tick
)


class Decision(msgspec.Struct, frozen=True, tag_field="d", omit_defaults=True):
    """Base of all decisions; `id` is answered with DecisionApplied, DecisionRejected or DecisionLost."""

    id: int


class Grant(Decision, frozen=True, gc=False, tag="grant"):
    """Start this phase on this node. reason: the order term that put it before the next candidate.

    warm: whether a warm process is expected; None for a task that needs none, or for a later phase of a task.
    positions: of the slice that it has of its one device, as bits (see `slices`); 0: no slice.
    """

    phase: int
    task: int
    attempt: int
    node: str
    devices: tuple[int, ...] = ()
    reason: str = ""
    warm: bool | None = None
    positions: int = 0


class Preload(Decision, frozen=True, tag="preload"):
    """Make a process warm for this task. reuse: an idle warm process on the node is expected to serve it."""

    task: int
    node: str
    reuse: bool = False


class DropPreload(Decision, frozen=True, tag="drop_preload"):
    """The process for this task is not needed by it any more. One that is warm stays idle for another task: the
    engine counts on it until process_slots are full; whoever makes room then is the driver's own choice."""

    task: int


class Stop(Decision, frozen=True, tag="stop"):
    """End this running phase; answered by its PhaseEnded. requeue: it is to start again (preemption, or its gang does),
    else it is over (aborted, or past a limit); grace_s: how long it may take to save a checkpoint."""

    phase: int
    task: int
    attempt: int
    reason: str = ""
    requeue: bool = False
    grace_s: float = 0.0


class ScalingHint(Decision, frozen=True, tag="scale"):
    """So many devices and CPUs of this flavor should be there from `at` on, what there is already included; fewer than
    there are: the others stay idle for long. Advice: a driver that cannot scale ignores it."""

    flavor: str = ""
    gpus: int = 0
    cpus: int = 0
    at: float = 0.0


Moment = Callable[[float], str]
"""How a moment of the engine's clock is written for a reader. The engine knows no other; who does may tell that."""


def in_seconds(at: float) -> str:
    """On the engine's own clock.

    >>> in_seconds(370.5741)
    '370.574 s'
    """
    return f"{at:.3f} s"


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer to "why is my task waiting": its status, the kind of rule that blocks it, and the numbers. own: the end of
    `text` that holds for this task alone (its place in the queue, its deadline), not for others that need the same."""

    task: str
    status: str
    kind: str = ""
    text: str = ""
    waiting_for: tuple[str, ...] = ()
    own: str = ""
