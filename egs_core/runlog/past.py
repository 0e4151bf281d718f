"""A framework's own history in neutral words, and the one way from them to run log records.

    ready ─────────► started: it holds its resources ─────► code: the user's ─────► ended
      Ready   Held…    Started  └──────── ColdStart ────────┘   └──── Used… ────┘     Ended

An adapter reads what its framework tells into these and decides nothing else: times before others are put in order
here, what had not ended when its run did was aborted then, and what never started was skipped. All times are Unix
seconds; amounts are whole CPUs, GPUs and bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from egs_core.runlog.records import (
    Capacity,
    ColdStart,
    Ended,
    Header,
    Held,
    Ready,
    Record,
    Started,
    TaskAdded,
    Used,
    Work,
    WorkloadEnded,
    WorkloadSubmitted,
    in_order,
    phase_needs,
)


class Needs(msgspec.Struct, frozen=True):
    """What a task holds while it runs."""

    cpus: float = 0.0
    gpus: float = 0.0
    memory_bytes: int = 0


class PastTask(msgspec.Struct):
    """A task of a run. parents: by id. added_s: when it was submitted, where that is later than its run."""

    id: str
    name: str
    needs: Needs
    parents: tuple[str, ...] = ()
    added_s: float | None = None


class Attempt(msgspec.Struct):
    """One attempt at a task. started_s: it holds its resources from here; None: it never did. code_s: the user's code
    runs from here; None: nobody can tell. outcome: as in `Ended`; "": it was cut off, if it has an end at all.

    held: what it waited for while it was ready, as (from when on, kind, reason). used: when its GPUs were at work,
    where that is known; a stretch of no length says that they were not. work: what it has told of its work, by unit.
    reason: why it failed, where that is known.
    """

    task: str
    number: int = 1
    ready_s: float | None = None
    started_s: float | None = None
    code_s: float | None = None
    ended_s: float | None = None
    outcome: str = ""
    needs: Needs = Needs()
    node: str = ""
    held: tuple[tuple[float, str, str], ...] = ()
    used: tuple[tuple[float, float], ...] = ()
    framework_id: str = ""
    pid: int = 0
    work: dict[str, float] = {}
    reason: str = ""


class PastRun(msgspec.Struct):
    """One run of a pipeline: a workload. ended_s: None while it goes on; attempts without an end ended with it, or at
    cut_off_s where that is another moment."""

    id: str
    name: str
    submitted_s: float
    ended_s: float | None = None
    outcome: str = "succeeded"
    tenant: str = ""
    tasks: list[PastTask] = []
    attempts: list[Attempt] = []
    cut_off_s: float | None = None


class Offer(msgspec.Struct, frozen=True):
    """What a node offers from then on; nothing when it is gone."""

    at_s: float
    node: str
    cpus: float = 0.0
    gpus: int = 0
    memory_bytes: int = 0


class Past(msgspec.Struct):
    """What a framework tells of its past. now_s: when it was asked; label: what was asked. tasks_lost: how many tasks
    it no longer knows. notes: what a reader must know besides. flavors: of GPUs, by node, as far as it tells. by_egs:
    EGS has ordered what ran. The others are as in `Header`."""

    framework: str
    now_s: float
    label: str = ""
    runs: list[PastRun] = []
    offers: list[Offer] = []
    tasks_lost: int = 0
    notes: list[str] = []
    edges_known: bool | None = None
    cpu_name: str = "CPU"
    pinned: bool = False
    may_split: bool = True
    flavors: dict[str, str] = {}
    by_egs: bool = False

    @property
    def begin_s(self) -> float:
        """The first submission: t = 0 of the records."""
        return min((run.submitted_s for run in self.runs), default=self.now_s)

    @property
    def end_s(self) -> float:
        """Now while anything goes on; else the last end."""
        ends = [end_of(run, one) for run in self.runs for one in run.attempts] + [run.ended_s for run in self.runs]
        return self.now_s if None in ends else max((end for end in ends if end is not None), default=self.now_s)

    def header(self, run_id: str = "", label: str = "") -> Header:
        """The header whose times the records are relative to."""
        return Header(
            run_id=run_id,
            driver=self.framework,
            policy="egs" if self.by_egs else "native",
            mode="on" if self.by_egs else "off",
            started_at=self.begin_s,
            label=label,
            edges_known=self.edges_known,
            cpu_name=self.cpu_name,
            pinned=self.pinned,
            may_split=self.may_split,
        )

    def records(self) -> list[Record]:
        """All of it in the order of time."""
        begin_s = self.begin_s
        made = [record for run in self.runs for record in _Run(run, begin_s, self.flavors).records()]
        made.extend(_capacity(self.offers, begin_s, max(self.end_s, begin_s)))
        return in_order(made)


def end_of(run: PastRun, attempt: Attempt) -> float | None:
    """When an attempt ended, at the latest with its run; None while it goes on."""
    if attempt.ended_s is not None:
        return attempt.ended_s
    return run.ended_s if run.cut_off_s is None else run.cut_off_s


def _capacity(offers: list[Offer], begin_s: float, end_s: float) -> Iterator[Record]:
    """What was offered from the first submission on; repeated at the end, so that what is still open is measured up to
    then."""
    by_node: dict[str, list[Offer]] = defaultdict(list)
    for offer in sorted(offers, key=lambda one: (one.node, one.at_s)):
        by_node[offer.node].append(offer)
    for node, found in by_node.items():
        known = [one for one in found if one.at_s <= begin_s][-1:] + [
            one for one in found if begin_s < one.at_s < end_s
        ]
        known = known or found[:1]
        for one in [*known, msgspec.structs.replace(known[-1], at_s=end_s)]:
            t = round(max(0.0, min(one.at_s, end_s) - begin_s), 6)
            yield Capacity(t, node, one.cpus, one.gpus, one.memory_bytes)


class _Run:
    """The records of one run."""

    def __init__(self, run: PastRun, begin_s: float, flavors: dict[str, str]) -> None:
        self._run, self._begin_s, self._flavors = run, begin_s, flavors

    def records(self) -> Iterator[Record]:
        run = self._run
        yield WorkloadSubmitted(self._t(run.submitted_s), run.id, run.name, run.tenant)
        for task in run.tasks:
            needs, added_s = task.needs, run.submitted_s if task.added_s is None else task.added_s
            held = phase_needs(needs.cpus, needs.gpus, needs.memory_bytes)
            yield TaskAdded(self._t(added_s), run.id, task.id, task.name, task.parents, (held,))
        for attempt in run.attempts:
            yield from self._attempt(attempt)
        if run.ended_s is not None:
            yield WorkloadEnded(self._t(run.ended_s), run.id, run.outcome)

    def _attempt(self, one: Attempt) -> Iterator[Record]:
        place, ended_s, started_s = (self._run.id, one.task, 0), end_of(self._run, one), one.started_s
        ready_s = one.ready_s if started_s is None or one.ready_s is None else min(one.ready_s, started_s)
        if ready_s is not None:
            yield Ready(self._t(ready_s), *place, one.number)
            for at_s, kind, reason in one.held:
                yield Held(self._t(at_s), *place, kind, reason)
        if started_s is None:
            if ended_s is not None:
                yield Ended(self._t(max(ended_s, ready_s or ended_s)), *place, one.number, "skipped")
            return
        yield self._started(one, started_s)
        if one.code_s is not None and one.code_s > started_s:
            code_s = one.code_s if ended_s is None else min(one.code_s, max(ended_s, started_s))
            yield ColdStart(self._t(started_s), self._t(code_s), *place, one.number)
        for begin_s, until_s in one.used:
            yield Used(self._t(begin_s), self._t(until_s), *place, one.number)
        if one.work:
            told_s = started_s if ended_s is None else max(ended_s, started_s)
            yield Work(self._t(told_s), self._run.id, one.task, one.number, one.work)
        if ended_s is not None:
            outcome = one.outcome if one.ended_s is not None and one.outcome else "aborted"
            yield Ended(self._t(max(ended_s, started_s)), *place, one.number, outcome, one.reason)

    def _started(self, one: Attempt, at_s: float) -> Started:
        return Started(
            t=self._t(at_s),
            workload=self._run.id,
            task=one.task,
            attempt=one.number,
            node=one.node,
            cpus=one.needs.cpus,
            gpus=one.needs.gpus,
            memory_bytes=one.needs.memory_bytes,
            framework_id=one.framework_id,
            pid=one.pid,
            flavor=self._flavors.get(one.node, "") if one.needs.gpus else "",
        )

    def _t(self, at_s: float) -> float:
        return round(max(0.0, at_s - self._begin_s), 6)
