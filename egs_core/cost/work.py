"""What tasks have told of their work, and what they held for it.

first reading    Work (workload, task) ─► how much, by unit            few tasks tell anything: of all others
second reading   Started, Ended of those ─► what they held, where      nothing is kept

A task's work is that of all its attempts, and so is what it held: work that was done twice has cost twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from egs_core.client.messages import Device, RunView
from egs_core.cost.served import node_of, unlike_hosts
from egs_core.runlog.records import (
    Ended,
    Header,
    PhaseNeeds,
    Record,
    Started,
    TaskAdded,
    Work,
    WorkloadSubmitted,
    time_of,
)
from egs_core.runlog.steps import Interval

TaskKey = tuple[str, str]  # workload, task
MOST_TASKS = 1_000_000  # that are kept; what others tell is left out, and `Told.has_more` says so


class Held(NamedTuple):
    """Resources held together on a node, in seconds since 1970, or of a simulation since its start."""

    node: str
    gpus: float
    cpus: float
    times: Interval


class Worked(NamedTuple):
    """A task that has told of its work. at_s: when it last did."""

    pipeline: str
    task: str
    amounts: dict[str, float]
    held: list[Held]
    at_s: float
    is_dated: bool = True


class Told:
    """What the tasks of one log tell: put its records through `noting`, then through `worked`."""

    def __init__(self) -> None:
        self.amounts: dict[TaskKey, dict[str, float]] = {}
        self.last_s: dict[TaskKey, float] = {}
        self.end_s = 0.0
        self.has_more = False

    def noting(self, records: Iterable[Record]) -> Iterator[Record]:
        """The same records, while what they tell of work is noted."""
        for record in records:
            self.end_s = max(self.end_s, time_of(record))
            if isinstance(record, Work):
                self._note(record)
            yield record

    def _note(self, record: Work) -> None:
        key = record.workload, record.task
        if key not in self.amounts and len(self.amounts) >= MOST_TASKS:
            self.has_more = True
            return
        sums = self.amounts.setdefault(key, {})
        for unit, amount in record.amounts.items():
            sums[unit] = sums.get(unit, 0.0) + amount
        self.last_s[key] = max(record.t, self.last_s.get(key, record.t))

    def worked(self, header: Header, records: Iterable[Record]) -> Iterator[Worked]:
        """Each of these tasks, with what it held. records: all of the log once more, in any order."""
        log = _Log(self.amounts.keys())
        for record in records:
            log.take(record)
        zero = header.started_at
        for key, amounts in self.amounts.items():
            workload, task = key
            held = [one._replace(times=(zero + one.times[0], zero + one.times[1])) for one in log.held(key, self.end_s)]
            pipeline, name = log.pipelines.get(workload, workload), log.names.get(key, task)
            yield Worked(pipeline, name, amounts, held, zero + self.last_s[key], zero > 0)


class _Log:
    """What a log says of some of its tasks."""

    def __init__(self, keys: Iterable[TaskKey]) -> None:
        self._wanted = frozenset(keys)
        self.pipelines: dict[str, str] = {}
        self.names: dict[TaskKey, str] = {}
        self._phases: dict[TaskKey, tuple[PhaseNeeds, ...]] = {}
        self._started: dict[TaskKey, list[Started]] = {}
        self._ended: dict[tuple[str, str, int, int], float] = {}

    def take(self, record: Record) -> None:
        if isinstance(record, WorkloadSubmitted):
            self.pipelines[record.workload] = record.name or record.workload
        elif isinstance(record, TaskAdded | Started | Ended) and (record.workload, record.task) in self._wanted:
            key = record.workload, record.task
            if isinstance(record, TaskAdded):
                self.names[key], self._phases[key] = record.name or record.task, record.phases
            elif isinstance(record, Started):
                self._started.setdefault(key, []).append(record)
            else:
                self._ended[*key, record.phase, record.attempt] = record.t

    def held(self, key: TaskKey, end_s: float) -> Iterator[Held]:
        """What has no end is held until end_s."""
        phases = self._phases.get(key, ())
        for one in self._started.get(key, ()):
            until_s = self._ended.get((*key, one.phase, one.attempt), end_s)
            gpus, cpus = one.gpus, one.cpus
            if not (cpus or gpus or one.memory_bytes) and 0 <= one.phase < len(phases):
                _, cpus, gpus, _ = phases[one.phase]  # a start without amounts took what was declared
            yield Held(one.node, gpus, cpus, (one.t, max(one.t, until_s)))


def worked_of_runs(runs: Iterable[RunView], now: float, devices: Iterable[Device] = ()) -> Iterator[Worked]:
    """The same of a site server's runs and devices. What was evicted is left out: what it did before it may have
    done again. A run in a GPU request has that one's GPUs while it runs."""
    known, unlike = {run.id: run for run in runs}, unlike_hosts(devices)
    for run in known.values():
        if not run.work or run.evictions or run.started_at is None:
            continue
        until = now if run.ended_at is None else run.ended_at
        gpus = known[run.inside].gpus if run.inside in known else run.gpus
        held = Held(node_of(known.get(run.inside, run), unlike), gpus, run.cpus, (run.started_at, until))
        yield Worked(run.name, run.name, run.work, [held], until)
