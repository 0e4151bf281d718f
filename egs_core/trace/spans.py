"""From a run log to spans. A workload is a trace; its first span is the whole of it, below which each phase has one for
the time in which it held its resources, and each preload one.

    workload  ├──────────────────────────────────────────────────────────┤
    decode      · ready  ├─────────┤
    fit                       · ready · waits: capacity  ├──────┤ ◄── link to decode, which it waited for

What a phase waited for are events before its start. A retry is linked to the attempt before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from egs_core.runlog.intervals import Hold, Preload, Timeline, Wait, WorkloadSpan
from egs_core.runlog.records import Ended, Header, Record, Started
from egs_core.runlog.timeline import PhaseRun, build_timeline
from egs_core.trace.span import Event, Span, Value, span_id, stated, trace_id


def spans_of(header: Header, records: Iterable[Record]) -> list[Span]:
    """All spans of a log, in the order of their starts. What has not ended ends with the log."""
    known = list(records)
    return sorted(_Log(header, known).spans(), key=lambda span: (span.start_s, span.id))


class _Log:
    def __init__(self, header: Header, records: list[Record]) -> None:
        self._header, self._zero = header, header.started_at
        self._line: Timeline = build_timeline(records)
        self._started = {_run_of(record): record for record in records if isinstance(record, Started)}
        self._ended = {_run_of(record): record for record in records if isinstance(record, Ended)}
        self._waits: dict[PhaseRun, Wait] = {_run_of(wait): wait for wait in self._line.waits}
        self._holds: dict[tuple[str, str], list[Hold]] = {}
        for hold in sorted(self._line.holds, key=lambda one: (one.attempt, one.phase)):
            self._holds.setdefault((hold.workload, hold.task), []).append(hold)

    def spans(self) -> Iterator[Span]:
        for workload in dict.fromkeys([*self._line.workloads, *(hold.workload for hold in self._line.holds)]):
            yield self._workload(workload)
        for holds in self._holds.values():
            for number, hold in enumerate(holds):
                yield self._phase(hold, holds[number - 1] if number else None)
        for preload in self._line.preloads:
            yield self._preload(preload)

    def _workload(self, workload: str) -> Span:
        span = self._line.workloads.get(workload, WorkloadSpan(workload))
        start_s = self._line.window[0] if span.submitted_s is None else span.submitted_s
        end_s = self._line.window[1] if span.end_s is None else span.end_s
        header = self._header
        attributes: dict[str, Value | None] = {
            "egs.workload": workload,
            "egs.run_id": header.run_id,
            "egs.framework": header.driver,
            "egs.mode": header.mode,
            "egs.policy": header.policy,
            "egs.queue": span.queue,
            "egs.tenant": span.tenant,
            "egs.emulated_gpus": header.emulated_gpus or None,
        }
        end_s = max(start_s, end_s)
        return self._span(workload, (), span.name or workload, start_s, end_s, attributes=stated(attributes))

    def _phase(self, hold: Hold, before: Hold | None) -> Span:
        run = _run_of(hold)
        started, ended, wait = self._started.get(run), self._ended.get(run), self._waits.get(run)
        added = self._line.tasks.get((hold.workload, hold.task))
        name = (added.name if added else "") or hold.task
        kind = f" {hold.demand.kind}" if added and len(added.phases) > 1 else ""
        attributes: dict[str, Value | None] = {
            "egs.task": hold.task,
            "egs.phase": hold.phase,
            "egs.phase.kind": hold.demand.kind,
            "egs.attempt": hold.attempt,
            "egs.outcome": hold.outcome or "unfinished",
            "egs.gpus": hold.demand.gpus,
            "egs.cpus": hold.demand.cpus,
            "egs.memory_bytes": hold.demand.memory_bytes,
            "egs.devices": hold.devices,
            "egs.warm": hold.warm,
            "egs.cold_s": _length(hold.cold) or None,
            "egs.used_s": _length(hold.useful) if hold.demand.gpus else None,
            "egs.wait_s": round(wait.wait_s, 6) if wait else None,
            "egs.decided_by": hold.reason,
            "egs.framework.id": started.framework_id if started else "",
            "host.name": hold.node,
            "process.pid": (started.pid or None) if started else None,
        }
        links = [_id_of(before)] if before is not None else [_id_of(one) for one in self._parents(hold)]
        failed = hold.outcome == "failed"
        return self._span(
            hold.workload,
            ("phase", hold.task, hold.phase, hold.attempt),
            name + kind,
            hold.start_s,
            hold.end_s,
            attributes=stated(attributes),
            events=tuple(self._events(wait)),
            links=tuple(links),
            error=(ended.reason if ended and ended.reason else "failed") if failed else None,
        )

    def _parents(self, hold: Hold) -> Iterator[Hold]:
        """What it waited for: the last phase of each task before it that has run."""
        added = self._line.tasks.get((hold.workload, hold.task))
        for parent in added.parents if added else ():
            if holds := self._holds.get((hold.workload, parent)):
                yield holds[-1]

    def _events(self, wait: Wait | None) -> Iterator[Event]:
        if wait is None or not wait.pieces:
            return
        yield Event("ready", self._zero + wait.pieces[0][0])
        for since, _, why in wait.pieces:
            if why:
                yield Event("waits", self._zero + since, {"egs.wait.reason": why})

    def _preload(self, preload: Preload) -> Span:
        added = self._line.tasks.get((preload.workload, preload.task))
        name = (added.name if added else "") or preload.task
        attributes: dict[str, Value | None] = {
            "egs.task": preload.task,
            "egs.preload.outcome": preload.outcome or "unfinished",
            "egs.preload.work_s": round(preload.work_end_s - preload.start_s, 6),
            "host.name": preload.node,
        }
        which, times = ("preload", preload.task, preload.start_s), (preload.start_s, preload.end_s)
        return self._span(preload.workload, which, f"preload {name}", *times, attributes=stated(attributes))

    def _span(
        self, workload: str, which: tuple[object, ...], name: str, start_s: float, end_s: float, **more: Any
    ) -> Span:
        """which: of the workload's spans, () for the first."""
        header = self._header
        trace = trace_id(header.driver, header.run_id, header.started_at, workload)
        own, parent = span_id(workload, *which), span_id(workload) if which else ""
        return Span(trace, own, parent, name, self._zero + start_s, self._zero + end_s, **more)


def _run_of(one: Started | Ended | Hold | Wait) -> PhaseRun:
    return one.workload, one.task, one.phase, one.attempt


def _id_of(hold: Hold) -> str:
    return span_id(hold.workload, "phase", hold.task, hold.phase, hold.attempt)


def _length(times: Iterable[tuple[float, float]]) -> float:
    return round(sum(end - start for start, end in times), 6)
