"""From a run log to uses of GPUs, record by record: what is held at the moment, and names of tasks that have not ended,
is all that is kept. The same rules as `runlog.timeline`, which has all of a log at once.

    Started ├── cold ──┤── idle ──┤══ Used ══┤── idle ──┤ Ended        wasted = held - used
            └───────────────────── held ────────────────┘
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

import msgspec

from egs_core.runlog.by_time import by_time
from egs_core.runlog.records import (
    ColdStart,
    Ended,
    Header,
    PhaseNeeds,
    Record,
    Started,
    TaskAdded,
    Used,
    WorkloadEnded,
    WorkloadSubmitted,
    time_of,
)
from egs_core.runlog.steps import Interval, clip, subtract, union

Relevant = WorkloadSubmitted | TaskAdded | Started | ColdStart | Used | Ended | WorkloadEnded
Attempt = tuple[str, str, int]  # workload, task, attempt
PhaseRun = tuple[str, str, int, int]  # workload, task, phase, attempt
TeamOf = Callable[[str], str]
MOST_TEXTS = 50_000  # that are kept once each: tasks without a name have as many as there are


class Use(msgspec.Struct, frozen=True):
    """GPUs that were held together. held, used: stretches in seconds since 1970, or in a log without a date (a
    simulation) since its start: then is_dated is False. cold: stretches of process start and loading. outcome: of its
    attempt, "" while it had not ended. tells: its task says when it uses its GPUs; else all but cold starts counts as
    used."""

    team: str
    pipeline: str
    task: str
    user: str
    node: str
    gpus: float
    held: Interval
    used: tuple[Interval, ...]
    is_dated: bool = True
    cold: tuple[Interval, ...] = ()
    outcome: str = "succeeded"
    tells: bool = True


def uses_of(header: Header, records: Iterable[Record], team_of: TeamOf) -> Iterator[Use]:
    """All phases that held a GPU, in the order in which they ended; what the log ends on ends with it. records: in any
    order; team_of: whose a queue is."""
    log = _Log(header, team_of)
    for record in by_time(log.relevant(records)):
        yield from log.take(record)
    yield from log.finish()


class _Log:
    def __init__(self, header: Header, team_of: TeamOf) -> None:
        self._zero, self._is_dated, self._team_of = header.started_at, header.started_at > 0, team_of
        self._last_s = float("-inf")
        self._names: dict[str, str] = {}
        self._workloads: dict[str, tuple[str, str, str]] = {}  # team, pipeline, user
        self._tasks: dict[str, dict[str, tuple[str, tuple[PhaseNeeds, ...]]]] = defaultdict(dict)
        self._open: dict[PhaseRun, Started] = {}
        self._used: dict[Attempt, list[Interval]] = defaultdict(list)
        self._cold: dict[Attempt, list[Interval]] = defaultdict(list)

    def relevant(self, records: Iterable[Record]) -> Iterator[Record]:
        for record in records:
            self._last_s = max(self._last_s, time_of(record))
            if isinstance(record, Relevant):
                yield record

    def take(self, record: Record) -> Iterator[Use]:
        if isinstance(record, Started):
            self._open[record.workload, record.task, record.phase, record.attempt] = record
        elif isinstance(record, Used):
            self._used[record.workload, record.task, record.attempt].append((record.t, record.end_t))
        elif isinstance(record, ColdStart):
            self._cold[record.workload, record.task, record.attempt].append((record.t, record.end_t))
        elif isinstance(record, Ended):
            yield from self._ended(record)
        elif isinstance(record, TaskAdded):
            name = self._once(record.name or record.task)
            self._tasks[record.workload][record.task] = name, record.phases
        elif isinstance(record, WorkloadSubmitted):
            pipeline, user = self._once(record.name or record.workload), self._once(record.tenant)
            self._workloads[record.workload] = self._once(self._team_of(record.queue)), pipeline, user
        elif isinstance(record, WorkloadEnded) and not any(run[0] == record.workload for run in self._open):
            self._tasks.pop(record.workload, None)

    def finish(self) -> Iterator[Use]:
        for started in self._open.values():
            yield from self._use(started, self._last_s, "")

    def _once(self, text: str) -> str:
        if len(self._names) >= MOST_TEXTS:
            self._names.clear()
        return self._names.setdefault(text, text)

    def _ended(self, record: Ended) -> Iterator[Use]:
        started = self._open.pop((record.workload, record.task, record.phase, record.attempt), None)
        if started is not None:
            yield from self._use(started, record.t, record.outcome)
        attempt = record.workload, record.task, record.attempt
        for stretches in (self._used, self._cold):
            if attempt in stretches:
                stretches[attempt] = [one for one in stretches[attempt] if one[1] > record.t]  # of its next phase
                if not stretches[attempt]:
                    del stretches[attempt]
        tasks = self._tasks.get(record.workload, {})
        known = tasks.get(record.task)
        if known and started and record.outcome == "succeeded" and record.phase + 1 >= len(known[1]):
            del tasks[record.task]

    def _use(self, started: Started, end_s: float, outcome: str) -> Iterator[Use]:
        known = self._tasks.get(started.workload, {}).get(started.task)
        kind, gpus = _held(started, known[1] if known else ())
        start_s = started.t
        if gpus <= 0 or end_s <= start_s:
            return
        attempt = started.workload, started.task, started.attempt
        used = union(clip(self._used.get(attempt, ()), start_s, end_s))
        tells = bool(used) or kind == "cpu"
        if not tells:
            used = [(start_s, end_s)]
        cold = union(clip(self._cold.get(attempt, ()), start_s, end_s))
        used = subtract(used, cold)
        team, pipeline, user = self._workloads.get(started.workload, ("", started.workload, ""))
        zero = self._zero
        stretches, starts = _moved(used, zero), _moved(cold, zero)
        held, name = (zero + start_s, zero + end_s), known[0] if known else started.task
        yield Use(
            team, pipeline, name, user, started.node, gpus, held, stretches, self._is_dated, starts, outcome, tells
        )


def _moved(times: list[Interval], by: float) -> tuple[Interval, ...]:
    return tuple([(by + start, by + end) for start, end in times])


def _held(started: Started, phases: tuple[PhaseNeeds, ...]) -> tuple[str, float]:
    """The kind of a phase and the GPUs that it took: where its start names no amounts, what its task declared."""
    declared = phases[started.phase] if 0 <= started.phase < len(phases) else ("cpu", 0.0, 0.0, 0)
    if not (started.cpus or started.gpus or started.memory_bytes):
        return declared[0], declared[2]
    is_known = declared != ("cpu", 0.0, 0.0, 0)
    return declared[0] if is_known else "gpu" if started.gpus else "cpu", started.gpus
