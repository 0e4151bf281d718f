"""The run log's records: JSON lines, one record a line, a header first.

Times `t` are seconds from the run's start on the run's own clock (virtual in the simulator). A task is named by
(workload, task); a phase by its number within the task. A phase is *held* from `Started` to `Ended`: its resources
are taken for that whole time. `Used` says in which part of it a GPU was really at work: a record for every stretch of
a GPU phase's own code. A phase that holds a GPU and has no `Used` record at all is taken as used from start to end.
`ColdStart` says which part of a held phase went into starting a process, importing and loading.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

FORMAT = "egs-runlog"
VERSION = 1


class Record(msgspec.Struct, frozen=True, tag_field="r", omit_defaults=True):
    """Base of all records; `r` in the JSON names the kind."""


class Header(Record, frozen=True, tag="header", omit_defaults=False):
    """Written in full, so that a reader always finds format and version. in_order: records stand where their
    writer wants them read; else what happened was written when it became known, and the reader sorts by time.

    What an audit must know of a framework to read its history: edges_known: whether the tasks' parents are all there
    (None: not said); else the framework does not tell what a task waited for. cpu_name: what a CPU of the records is
    there. pinned: a task can run only on the node where it ran, as in a pool; else anywhere. may_split: EGS can
    load ahead and split there, so what hints would save is forecast too. tasks_lost: how many tasks the framework no
    longer knew; notes: what else a reader of it must know.
    """

    format: str = FORMAT
    version: int = VERSION
    run_id: str = ""
    driver: str = ""  # sim, or the name of the adapter
    policy: str = ""  # native, or the engine's policy
    mode: str = ""  # off, observe, on
    emulated_gpus: bool = False
    started_at: float = 0.0  # Unix time of t = 0; 0 in a simulation
    label: str = ""
    edges_known: bool | None = None
    cpu_name: str = "CPU"
    pinned: bool = False
    may_split: bool = True
    in_order: bool = True
    tasks_lost: int = 0
    notes: tuple[str, ...] = ()


class Capacity(Record, frozen=True, tag="capacity"):
    """What a node offers from `t` on; all zero when it is gone. gpus: number of devices."""

    t: float
    node: str
    cpus: float = 0.0
    gpus: int = 0
    memory_bytes: int = 0


class WorkloadSubmitted(Record, frozen=True, tag="workload"):
    t: float
    workload: str
    name: str = ""
    tenant: str = ""
    queue: str = ""


PhaseNeeds = tuple[str, float, float, int]
"""What a phase holds: kind (`cpu` or `gpu`), CPUs, GPUs, bytes of memory."""


def phase_needs(cpus: float, gpus: float = 0.0, memory_bytes: int = 0) -> PhaseNeeds:
    """Of a phase of which only the amounts are known: a GPU phase where it has GPUs."""
    return "gpu" if gpus else "cpu", cpus, gpus, memory_bytes


class TaskAdded(Record, frozen=True, tag="task"):
    """phases: what each holds; parents by task id. input_bytes: of the files that it reads, -1 where nobody knows.
    label: what its user calls this one task, where that is not the name that it shares with its like."""

    t: float
    workload: str
    task: str
    name: str = ""
    parents: tuple[str, ...] = ()
    phases: tuple[PhaseNeeds, ...] = ()
    input_bytes: int = -1
    label: str = ""


class Ready(Record, frozen=True, tag="ready"):
    t: float
    workload: str
    task: str
    phase: int = 0
    attempt: int = 1


class Held(Record, frozen=True, tag="hold"):
    """Why a ready phase was not started, from `t` until the next one. kind, as `egs why` explains it: `capacity` (also
    where another task went first), `fragment` (free GPUs are parts of several), `quota`, `reservation`, `flavor`,
    `gang`, `warming` and `process_slots` (its process), `limit`, `paused`, `infeasible`. Only in a framework's history:
    `order` (a task that came later went first), `executor` (admitted, and not started yet by what starts processes),
    `gate` (behind the gate of EGS's controller in a cluster), `scheduler` (that of a cluster has no node for it).
    reason: what the engine said while the phase waited; "" where it was not asked, as of a hold that is written with
    its grant, which says by which term it was decided. waiting_for: the tasks that it waits for, where the reason is
    that they have not come or not ended."""

    t: float
    workload: str
    task: str
    phase: int
    kind: str
    reason: str = ""
    waiting_for: tuple[str, ...] = ()


class Granted(Record, frozen=True, tag="granted"):
    """The engine's decision to start a phase: the term that decided, and the estimate it had at that moment;
    None where nobody knew how long it takes."""

    t: float
    workload: str
    task: str
    phase: int
    attempt: int = 1
    decision: int = 0
    reason: str = ""
    estimate_p50_s: float | None = None
    estimate_p95_s: float | None = None


class Started(Record, frozen=True, tag="started"):
    """The phase holds its resources from here. warm: None where nobody can know. devices: indices on the node. flavor:
    of these, where what flavors there are is known."""

    t: float
    workload: str
    task: str
    phase: int = 0
    attempt: int = 1
    node: str = ""
    devices: tuple[int, ...] = ()
    cpus: float = 0.0
    gpus: float = 0.0
    memory_bytes: int = 0
    warm: bool | None = None
    framework_id: str = ""
    pid: int = 0
    flavor: str = ""


class ColdStart(Record, frozen=True, tag="cold"):
    """Part of a held phase that went into process start, imports or loading."""

    t: float
    end_t: float
    workload: str
    task: str
    phase: int = 0
    attempt: int = 1


class Used(Record, frozen=True, tag="used"):
    """A stretch in which a held GPU was in its GPU phase."""

    t: float
    end_t: float
    workload: str
    task: str
    phase: int = 0
    attempt: int = 1


class Work(Record, frozen=True, tag="work"):
    """What an attempt has told of its work by `egs.work`, in all: amounts by unit. Written when it is over."""

    t: float
    workload: str
    task: str
    attempt: int = 1
    amounts: dict[str, float] = {}


class Ended(Record, frozen=True, tag="ended"):
    """outcome: succeeded, failed, preempted, aborted, skipped (the last without a Started). reason: why it was stopped,
    where EGS did that, with who asked for it; of a failure, that memory was not enough (`egs_core.out_of_memory`)."""

    t: float
    workload: str
    task: str
    phase: int = 0
    attempt: int = 1
    outcome: str = "succeeded"
    reason: str = ""


class PreloadStarted(Record, frozen=True, tag="preload"):
    t: float
    workload: str
    task: str
    node: str = ""
    cpus: float = 0.0
    memory_bytes: int = 0


class PreloadEnded(Record, frozen=True, tag="preload_ended"):
    """outcome: warm, used, unused, failed. `warm` ends the work of it; the others end the held memory."""

    t: float
    workload: str
    task: str
    outcome: str = "warm"


class WorkloadEnded(Record, frozen=True, tag="workload_ended"):
    t: float
    workload: str
    outcome: str = "succeeded"


AnyRecord = (
    Header
    | Capacity
    | WorkloadSubmitted
    | TaskAdded
    | Ready
    | Held
    | Granted
    | Started
    | ColdStart
    | Used
    | Work
    | Ended
    | PreloadStarted
    | PreloadEnded
    | WorkloadEnded
)


def time_of(record: Record) -> float:
    """When it was; 0 of a header."""
    return getattr(record, "t", 0.0)


def in_order(records: Iterable[Record]) -> list[Record]:
    """By time; what happened at one moment as it stands."""
    return sorted(records, key=time_of)
