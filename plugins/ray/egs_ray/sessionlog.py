"""From submissions and Ray's task events to the records of a run log.

One Ray session is one workload, from its first submission to its last end. A task's record is written when it is
submitted, its start and end when Ray has told of them, so the file is complete and not in order: `read_run` sorts.

An actor is two tasks: its creation, which ends like any task, and its life, from the end of its creation to its death,
which holds the actor's resources and is used while one of its methods runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from egs_core.history.pending import keep_pending
from egs_core.runlog.io import RunLogWriter
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
    WorkloadEnded,
    WorkloadSubmitted,
)
from egs_ray.events import TaskEvent
from egs_ray.submission import Ordered, Submission, granted_of, is_driver, phase_of, submission_of

LEAST_COLD_S = 0.01  # less than this from process to user code is no cold start


class _Life(msgspec.Struct):
    """An actor that was created: what it holds since when, and when its methods ran."""

    started_s: float
    task: Submission
    calls: list[tuple[float, float]] = []


class SessionLog:
    """Writes one run log. Not for several threads at once; times that go in are Unix seconds."""

    def __init__(self, path: Path, header: Header) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.tasks_seen = 0
        self.gpu_held_s = 0.0
        self.ended: dict[tuple[str, int], float] = {}  # (task, attempt) that need no more asking; when they ended
        self.reasons: dict[str, str] = {}  # why tasks were aborted, and by whom
        self.header = header
        keep_pending(path)
        self._writer = RunLogWriter(path, msgspec.structs.replace(header, in_order=False), overwrite=True)
        self._capacity: dict[str, Capacity] = {}
        self._warm: set[tuple[int, str]] = set()  # (process, function) that has run before
        self._start_empty("")

    def _start_empty(self, workload: str) -> None:
        self._workload = workload
        self._tasks: dict[str, Submission] = {}
        self._by_tail: dict[str, str] = {}
        self._waiting: dict[str, list[Submission]] = {}  # tail of an unknown producer's id -> who takes its result
        self._started: dict[tuple[str, int], TaskEvent] = {}
        self._unstarted: dict[tuple[str, int], TaskEvent] = {}  # ended by one report, the report of the start to come
        self._pending: set[str] = set()
        self._session_s = self._last_end_s = 0.0
        self._is_submitted = False
        self._lives: dict[str, _Life] = {}
        self._deaths: dict[str, float] = {}
        self._phased: set[str] = set()  # whose starts and ends the site tells
        self._gated_ready: dict[str, float] = {}  # to Ray a task at the gate is not ready
        self._at_gate: dict[str, float] = {}  # when the site had it ready; what goes at once does not wait for that
        self._held: set[str] = set()  # that have waited at the gate: their `Ready` is written
        self.ended.clear()

    @property
    def unsettled(self) -> set[str]:
        """The tasks that have not been seen to end, and those that ended and not to start."""
        return self._pending | {task for task, _ in self._unstarted}

    def gpus_of(self, task: str) -> float:
        """What a known task asked for."""
        return self._tasks[task].gpus

    def start_workload(self, workload: str, at_s: float) -> None:
        """A Ray session begins; task ids start over."""
        self._start_empty(workload)
        self._session_s = at_s

    def _submit_workload(self, at_s: float) -> None:
        """With the session's first task: what a script does before it (it starts Ray) is no part of its makespan."""
        self._is_submitted = True
        self._write(WorkloadSubmitted(t=self._t(at_s), workload=self._workload, name=self.header.label))

    def submitted(self, task: Submission) -> None:
        """A task of the driver. One without an id (num_returns=0) is left to the events."""
        if task.task_id and task.task_id not in self._tasks:
            self._pending.add(task.task_id)
            if task.phases:
                self._phased.add(task.task_id)
            self._add(task)

    def phased(self, record: Record) -> None:
        """What the site says of a task that runs phase by phase, and of one at the gate while it waits there (`Ready`,
        `Held`); times are Unix seconds."""
        if isinstance(record, Ready | Held) and record.task not in self._phased and not self._note_gated(record):
            return
        if isinstance(record, TaskAdded):  # a placement group, of which Ray's events say nothing
            self._phased.add(record.task)
            if not self._is_submitted:
                self._submit_workload(record.t)
        times = {name: self._t(getattr(record, name)) for name in ("t", "end_t") if hasattr(record, name)}
        if isinstance(record, Used) and record.end_t > record.t:
            self.gpu_held_s += record.end_t - record.t
        self._write(msgspec.structs.replace(record, **times))

    def _note_gated(self, record: Ready | Held) -> bool:
        """Whether it is to be written. What may go at once is ready when Ray says so; Ray may tell of a start before
        the site tells of anything."""
        if (record.task, 1) in self._started:
            return False
        if isinstance(record, Ready):
            self._at_gate.setdefault(record.task, record.t)
        elif record.task in self._at_gate:
            self._wait_at_gate(record.task, self._at_gate[record.task])
            return True
        return False

    def _wait_at_gate(self, task: str, ready_s: float) -> None:
        if task not in self._held:
            self._held.add(task)
            self._gated_ready[task] = ready_s
            self._write(Ready(t=self._t(ready_s), workload=self._workload, task=task))

    def ordered(self, told: Ordered) -> None:
        """A task that waited at the gate may go to Ray, or one that had not to wait went: that may be told late."""
        if (started := self._started.get((told.task_id, 1))) is not None:
            latest_s = told.granted_s if told.task_id in self._held else self._ready_s(started)
            at_s = min(started.started_s or told.granted_s, latest_s)
            self._write(granted_of(told, self._workload, self._t(at_s)))
            return
        self._gated_ready.setdefault(told.task_id, told.ready_s)
        if told.granted_s > told.ready_s and told.task_id not in self._held:
            self._wait_at_gate(told.task_id, told.ready_s)
            self._write(Held(self._t(told.ready_s), self._workload, told.task_id, 0, "capacity"))
        self._write(granted_of(told, self._workload, self._t(told.granted_s)))

    def nodes(self, rows: Iterable[dict[str, Any]], at_s: float) -> None:
        """What `ray.nodes()` says; only changes are written. The first ones were there when the session began."""
        at_s = at_s if self._capacity else self._session_s
        for row in rows:
            resources = row["Resources"] if row["Alive"] else {}
            now = Capacity(
                t=self._t(at_s),
                node=row["NodeID"],
                cpus=resources.get("CPU", 0.0),
                gpus=int(resources.get("GPU", 0)),
                memory_bytes=int(resources.get("memory", 0)),
            )
            before = self._capacity.get(now.node, Capacity(t=0.0, node=now.node))
            if msgspec.structs.replace(before, t=now.t) != now:
                self._capacity[now.node] = now
                self._write(now)

    def seen(self, event: TaskEvent) -> None:
        """What Ray knows about one attempt; may be told again with more in it, until it has ended."""
        if (event.task_id, event.attempt) in self.ended:
            return
        if event.task_id not in self._tasks:
            self._pending.add(event.task_id)
            self._add(submission_of(event))
        key = (event.task_id, event.attempt)
        if event.task_id in self._phased:
            if event.ended_s is not None:
                self.ended[key] = event.ended_s
                self._last_end_s = max(self._last_end_s, event.ended_s)
                self._pending.discard(event.task_id)
            return
        event = self._after_the_gate(event)
        if event.started_s is not None and key not in self._started:
            self._started[key] = event
            self._write_start(event, event.started_s)
        if event.ended_s is not None and event.started_s is None:
            self._unstarted[key] = event
        elif event.ended_s is not None:
            self._unstarted.pop(key, None)
            self.ended[key] = event.ended_s
            self._write_end(event, event.ended_s)

    def _after_the_gate(self, event: TaskEvent) -> TaskEvent:
        """No task that waits there begins before it waits: the clocks of machines differ, and the site may be told
        a little late. What the task took stays as it is."""
        late_s = self._gated_ready.get(event.task_id, 0.0) - (event.started_s or float("inf"))
        if event.task_id not in self._held or late_s <= 0:
            return event
        names = ("started_s", "loaded_s", "ended_s")
        times = {name: at_s + late_s for name in names if (at_s := getattr(event, name)) is not None}
        return msgspec.structs.replace(event, **times)

    def actors_died(self, deaths: dict[str, float]) -> None:
        """When actors died, by actor id; perhaps before Ray told that they were created."""
        self._deaths.update(deaths)
        for actor_id in deaths.keys() & self._lives.keys():
            self._end_life(self._lives.pop(actor_id), actor_id, deaths[actor_id])

    def end_workload(self, at_s: float) -> None:
        """The session ends: what runs is aborted, what lives dies, and every edge gets both its ends."""
        self._add_unseen_producers(at_s)
        for event in list(self._unstarted.values()):
            self._settle_unstarted(event)
        for key, event in self._started.items():
            if key not in self.ended:
                self._write_end(msgspec.structs.replace(event, outcome="aborted"), at_s)
        self.actors_died({actor_id: self._deaths.get(actor_id, at_s) for actor_id in self._lives})
        if not self._is_submitted:
            self._submit_workload(at_s)
        self._write(WorkloadEnded(t=self._t(self._last_end_s or at_s), workload=self._workload))
        for node in self._capacity:
            self._write(Capacity(t=self._t(at_s), node=node))
        self._capacity.clear()
        self._start_empty("")

    def _settle_unstarted(self, event: TaskEvent) -> None:
        """A process that was killed never reported its last starts; then the submitter's word counts."""
        started_s = event.pushed_s or (event.ended_s if event.outcome == "succeeded" else None)
        if started_s is None:
            self._write_end(event, event.ended_s or 0.0)
        else:
            self.seen(msgspec.structs.replace(event, started_s=started_s))

    def finish(self) -> None:
        """Close the log, as it was written: who reads it puts it in the order of time."""
        self._writer.close()

    # --- tasks and edges ----------------------------------------------------------------------------------------------

    def _add(self, task: Submission) -> None:
        if not self._is_submitted:
            self._submit_workload(task.at_s)
        self.tasks_seen += 1
        self._tasks[task.task_id] = task
        self._by_tail[task.task_id[2:]] = task.task_id
        self._write_or_wait(task)
        for waiting in self._waiting.pop(task.task_id[2:], ()):
            self._write_or_wait(waiting)

    def _write_or_wait(self, task: Submission) -> None:
        unknown = next((p for p in task.producers if not is_driver(p) and p[2:] not in self._by_tail), None)
        if unknown is None:
            self._write_task(task)
        else:
            self._waiting.setdefault(unknown[2:], []).append(task)

    def _write_task(self, task: Submission) -> None:
        parents = dict.fromkeys(self._by_tail[p[2:]] for p in task.producers if not is_driver(p))
        if task.kind == "method" and (creation := "f" * 16 + task.actor_id) in self._tasks:
            parents = {creation: None, **parents}
        self._write(
            TaskAdded(
                t=self._t(task.at_s),
                workload=self._workload,
                task=task.task_id,
                name=task.name,
                parents=tuple(parents),
                phases=task.phases or (phase_of(task),),
                label=task.label,
            )
        )

    def _add_unseen_producers(self, at_s: float) -> None:
        """Tasks of other workers that no event told of: known by their results alone."""
        while self._waiting:
            task = next(iter(self._waiting.values()))[0]
            unknown = next(p for p in task.producers if not is_driver(p) and p[2:] not in self._by_tail)
            self._add(Submission(at_s=min(task.at_s, at_s), task_id=unknown, name="unseen", kind="task"))

    # --- starts and ends ----------------------------------------------------------------------------------------------

    def _write_start(self, event: TaskEvent, at_s: float) -> None:
        task, process = self._tasks[event.task_id], (event.pid, event.name)
        if event.attempt > 1 or event.task_id not in self._held:
            ready_s = min(at_s, self._gated_ready.pop(event.task_id, self._ready_s(event)))
            self._write(Ready(t=self._t(ready_s), workload=self._workload, task=event.task_id, attempt=event.attempt))
        self._write(
            Started(
                t=self._t(at_s),
                workload=self._workload,
                task=event.task_id,
                attempt=event.attempt,
                node=event.node_id,
                cpus=task.cpus,
                gpus=task.gpus,
                memory_bytes=task.memory_bytes,
                warm=process in self._warm if event.pid else None,
                framework_id=event.task_id,
                pid=event.pid,
            ),
        )
        self._warm.add(process)

    def _ready_s(self, event: TaskEvent) -> float:
        """Where Ray does not tell: when it was submitted and the producers seen to end had ended."""
        if event.ready_s is not None:
            return event.ready_s
        task = self._tasks[event.task_id]
        producers = (self._by_tail.get(producer[2:], "") for producer in task.producers)
        return max([task.at_s, *(self.ended.get((producer, 1), 0.0) for producer in producers)])

    def _write_end(self, event: TaskEvent, at_s: float) -> None:
        task, started_s = self._tasks[event.task_id], event.started_s
        self._last_end_s = max(self._last_end_s, at_s)
        self._pending.discard(event.task_id)
        if started_s is not None:
            loaded_s = min(event.loaded_s or started_s, at_s)
            if loaded_s - started_s >= LEAST_COLD_S:
                cold = (self._t(started_s), self._t(loaded_s))
                self._write(ColdStart(*cold, self._workload, event.task_id, 0, event.attempt))
            self.gpu_held_s += task.gpus * max(0.0, at_s - started_s)
            self._note_actor(task, event, started_s, at_s)
        outcome = event.outcome if started_s is not None else "skipped"
        reason = self.reasons.pop(event.task_id, "") if outcome in ("aborted", "failed") else ""
        outcome = "aborted" if reason else outcome  # Ray may tell only that its process has died
        self._write(Ended(self._t(at_s), self._workload, event.task_id, 0, event.attempt, outcome, reason))

    def _note_actor(self, task: Submission, event: TaskEvent, started_s: float, ended_s: float) -> None:
        if task.kind == "method" and event.actor_id in self._lives:
            self._lives[event.actor_id].calls.append((started_s, ended_s))
        elif task.kind == "actor" and event.outcome == "succeeded":
            self._start_life(task, event, ended_s)

    def _start_life(self, task: Submission, event: TaskEvent, at_s: float) -> None:
        t, name = self._t(at_s), task.name.removesuffix(".__init__")
        self._lives[event.actor_id] = _Life(started_s=at_s, task=task)
        self._write(
            TaskAdded(t, self._workload, event.actor_id, name, (task.task_id,), (phase_of(task),)),
            Ready(t, self._workload, event.actor_id),
            Started(
                t=t,
                workload=self._workload,
                task=event.actor_id,
                node=event.node_id,
                cpus=task.cpus,
                gpus=task.gpus,
                memory_bytes=task.memory_bytes,
                framework_id=event.actor_id,
                pid=event.pid,
            ),
        )

    def _end_life(self, life: _Life, actor_id: str, at_s: float) -> None:
        at_s = max(at_s, life.started_s)
        self._last_end_s = max(self._last_end_s, at_s)
        if life.task.gpus:
            self.gpu_held_s += life.task.gpus * (at_s - life.started_s)
            # A stretch of no length says that the GPU was held and not used.
            for begin_s, end_s in _merged(life.calls) or [(life.started_s, life.started_s)]:
                begin_s, end_s = max(begin_s, life.started_s), min(end_s, at_s)
                self._write(Used(self._t(begin_s), self._t(max(begin_s, end_s)), self._workload, actor_id))
        reason = self.reasons.pop(life.task.task_id, "")
        outcome = "aborted" if reason else "succeeded"
        self._write(Ended(self._t(at_s), self._workload, actor_id, outcome=outcome, reason=reason))

    def _t(self, at_s: float) -> float:
        return round(max(0.0, at_s - self.header.started_at), 6)

    def _write(self, *records: Record) -> None:
        for record in records:
            self._writer.write(record)


def _merged(stretches: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Stretches of time without overlaps, in order."""
    out: list[tuple[float, float]] = []
    for begin_s, end_s in sorted(stretches):
        if out and begin_s <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end_s))
        else:
            out.append((begin_s, end_s))
    return out
