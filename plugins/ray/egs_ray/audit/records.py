"""Run log records from what Ray's history says; one workload a job, with the words that the hook's own log uses.

    submitted ──► ready ──► process started for it ──► running ──► loaded ──► ended
       TaskAdded    Ready     Started (it holds its resources from here)        Ended
                              └────────── ColdStart ───────────┘

An actor is two tasks: its creation, and its life from then to its death, used while one of its methods runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from egs_core.runlog.records import (
    Capacity,
    ColdStart,
    Ended,
    Header,
    Ready,
    Record,
    Started,
    TaskAdded,
    Used,
    WorkloadEnded,
    WorkloadSubmitted,
)
from egs_core.runlog.steps import union
from egs_ray.audit.seen import READY, JobSeen, Seen, TaskSeen

LEAST_COLD_S = 0.01  # less than this from process to user code is no cold start
CLOCKS_S = 0.005  # times of one event, noted by two processes
PROMPT_S = 0.2  # a task that runs so soon after its process was ready is what that process was started for
Life = tuple[TaskSeen, list[tuple[float, float]]]  # an actor's creation, and when its methods ran


class HistoryRecords:
    """Records of some jobs of one cluster. now_s: when it was looked at, None for a history that is over."""

    def __init__(self, seen: Seen, jobs: Iterable[str] | None = None, now_s: float | None = None) -> None:
        found = seen.tasks_by_job()
        wanted = list(found) if jobs is None else [job for job in jobs if job in found]
        self._seen, self._now_s = seen, now_s
        self._jobs = {job: found[job] for job in wanted}
        self._begin_s = min((tasks[0].submitted_s for tasks in self._jobs.values()), default=now_s or 0.0)
        self._first_of_worker = _first_tasks(seen)

    def header(self, run_id: str, label: str = "") -> Header:
        """The header whose times the records are relative to."""
        return Header(run_id=run_id, driver="ray", policy="native", mode="off", started_at=self._begin_s, label=label)

    def records(self) -> list[Record]:
        """All of it in the order of time."""
        made = [record for job, tasks in self._jobs.items() for record in self._job(job, tasks)]
        end_s = self._now_s or max((r.t for r in made if isinstance(r, (Ended, Started))), default=0.0) + self._begin_s
        made.extend(self._capacity(end_s))
        return sorted(made, key=lambda record: getattr(record, "t", 0.0))

    def _capacity(self, end_s: float) -> Iterator[Record]:
        """What nodes offer; repeated at the end, so that what is still open is measured up to then."""
        for name, node in sorted(self._seen.nodes.items()):
            if node.ended_s is not None and node.ended_s <= self._begin_s:
                continue
            offer = Capacity(self._t(node.started_s), name, node.cpus, node.gpus, node.memory_bytes)
            yield offer
            if node.ended_s is not None and node.ended_s <= end_s:
                yield Capacity(self._t(node.ended_s), name)
            else:
                yield Capacity(self._t(end_s), name, node.cpus, node.gpus, node.memory_bytes)

    def _job(self, job_id: str, tasks: list[TaskSeen]) -> Iterator[Record]:
        job = self._seen.jobs.get(job_id, JobSeen())
        over_s = job.ended_s or (None if self._now_s else max(max(task.times.values()) for task in tasks))
        workload, lives, added = f"{job.name}-{job_id}", dict[str, Life](), set[str]()
        ids = {task.task_id for task in tasks}
        yield WorkloadSubmitted(self._t(tasks[0].submitted_s), workload, job.name)
        for task in tasks:
            if task.task_id not in added:
                added.add(task.task_id)
                yield self._added(workload, task, ids)
            yield from self._attempt(workload, task, over_s)
            if task.kind == "actor" and task.outcome == "succeeded" and task.ended_s is not None:
                lives[task.actor_id] = (task, [])
        for task in tasks:
            if task.kind == "method" and task.actor_id in lives and task.started_s is not None:
                ended_s = task.ended_s or over_s or self._now_s or task.started_s
                creation, calls = lives[task.actor_id]
                calls.append((task.started_s, max(task.started_s, ended_s)))
                creation.worker_id = creation.worker_id or task.worker_id  # Ray does not always tell of a creation's
        for actor_id, life in lives.items():
            yield from self._life(workload, actor_id, life, over_s)
        if over_s is not None:
            yield WorkloadEnded(self._t(max(task.ended_s or 0.0 for task in tasks) or over_s), workload)

    def _added(self, workload: str, task: TaskSeen, ids: set[str]) -> TaskAdded:
        creation = "f" * 16 + task.actor_id
        known = task.kind == "method" and creation in ids
        kind = "gpu" if task.gpus else "cpu"
        phase = (kind, task.cpus, task.gpus, task.memory_bytes)
        parents = (creation,) if known else ()
        return TaskAdded(self._t(task.submitted_s), workload, task.task_id, task.name, parents, (phase,))

    def _attempt(self, workload: str, task: TaskSeen, over_s: float | None) -> Iterator[Record]:
        started_s, ended_s, ready_s = task.started_s, task.ended_s or over_s, task.times.get(READY)
        if started_s is None:
            if ready_s is not None:
                yield Ready(self._t(ready_s), workload, task.task_id, 0, task.attempt)
            if ended_s is not None:
                yield Ended(self._t(ended_s), workload, task.task_id, 0, task.attempt, "skipped")
            return
        ready_s = min(ready_s if ready_s is not None else task.submitted_s, started_s)
        holds_s = self._holds_from(task, ready_s, started_s)
        loaded_s = min(max(task.loaded_s or started_s, started_s), ended_s or started_s)
        yield Ready(self._t(ready_s), workload, task.task_id, 0, task.attempt)
        yield self._started(workload, task.task_id, task, holds_s)
        if loaded_s - holds_s >= LEAST_COLD_S:
            yield ColdStart(self._t(holds_s), self._t(loaded_s), workload, task.task_id, 0, task.attempt)
        if ended_s is not None:
            outcome = task.outcome if task.ended_s is not None else "aborted"
            yield Ended(self._t(max(ended_s, started_s)), workload, task.task_id, 0, task.attempt, outcome)

    def _holds_from(self, task: TaskSeen, ready_s: float, started_s: float) -> float:
        """Ray reserves a task's resources before it starts a process for it: then it holds them from that moment."""
        worker = self._seen.workers.get(task.worker_id)
        if worker is None or worker.launched_s is None or worker.ready_s is None:
            return started_s
        is_first = self._first_of_worker.get(task.worker_id) == (task.task_id, task.attempt)
        meant = ready_s - CLOCKS_S <= worker.launched_s < started_s and started_s - worker.ready_s <= PROMPT_S
        return max(worker.launched_s, ready_s) if is_first and meant else started_s

    def _started(self, workload: str, name: str, task: TaskSeen, at_s: float) -> Started:
        return Started(
            t=self._t(at_s),
            workload=workload,
            task=name,
            attempt=task.attempt if name == task.task_id else 1,
            node=task.node_id,
            cpus=task.cpus,
            gpus=task.gpus,
            memory_bytes=task.memory_bytes,
            framework_id=name,
            pid=task.pid,
        )

    def _life(self, workload: str, actor_id: str, life: Life, over_s: float | None) -> Iterator[Record]:
        task, calls = life
        began_s = task.ended_s or 0.0
        died_s = self._seen.died.get(actor_id, self._process_ended_s(task.worker_id) or over_s)
        died_s = None if died_s is None else max(died_s, began_s)
        phase = ("gpu" if task.gpus else "cpu", task.cpus, task.gpus, task.memory_bytes)
        t, name = self._t(began_s), task.name.removesuffix(".__init__")
        yield TaskAdded(t, workload, actor_id, name, (task.task_id,), (phase,))
        yield Ready(t, workload, actor_id)
        yield self._started(workload, actor_id, task, began_s)
        if task.gpus:
            # A stretch of no length says that the GPU was held and not used.
            for begin_s, end_s in union(calls) or [(began_s, began_s)]:
                inside = (max(begin_s, began_s), max(began_s, end_s if died_s is None else min(end_s, died_s)))
                yield Used(self._t(inside[0]), self._t(max(inside)), workload, actor_id)
        if died_s is not None:
            yield Ended(self._t(died_s), workload, actor_id)

    def _process_ended_s(self, worker_id: str) -> float | None:
        worker = self._seen.workers.get(worker_id)
        return worker.ended_s if worker is not None else None

    def _t(self, at_s: float) -> float:
        return round(max(0.0, at_s - self._begin_s), 6)


def _first_tasks(seen: Seen) -> dict[str, tuple[str, int]]:
    """The first task attempt that each worker process ran."""
    first: dict[str, TaskSeen] = {}
    for task in seen.tasks.values():
        known = first.get(task.worker_id)
        if task.started_s is not None and (known is None or task.started_s < (known.started_s or 0.0)):
            first[task.worker_id] = task
    return {worker: (task.task_id, task.attempt) for worker, task in first.items()}
