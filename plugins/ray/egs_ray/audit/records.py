"""Ray's history in the core's words; one run a job, named as the hook's own log names it.

    submitted ──► ready ──► process started for it ──► running ──► loaded ──► ended
                            it holds its resources from here      its code

An actor is two tasks: its creation, and its life from then to its death, used while one of its methods runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from egs_core.runlog.past import Attempt, Needs, Offer, Past, PastRun, PastTask
from egs_core.runlog.steps import union
from egs_ray.audit.seen import READY, JobSeen, Seen, TaskSeen

LEAST_COLD_S = 0.01  # less than this from process to user code is no cold start
CLOCKS_S = 0.005  # times of one event, noted by two processes
PROMPT_S = 0.2  # a task that runs so soon after its process was ready is what that process was started for


def past_of(seen: Seen, jobs: Iterable[str] | None = None, now_s: float | None = None, label: str = "") -> Past:
    """What was seen of some jobs of one cluster. now_s: when it was looked at, None for a history that is over."""
    found = seen.tasks_by_job()
    wanted = list(found) if jobs is None else [job for job in jobs if job in found]
    firsts = _first_tasks(seen)
    runs = [_Job(seen, firsts, job, found[job], now_s).run() for job in wanted]
    last_s = max((one.ended_s or one.started_s or 0.0 for run in runs for one in run.attempts), default=0.0)
    past = Past("ray", now_s or last_s, label, runs, tasks_lost=seen.lost, edges_known=False)
    past.flavors = {name: node.flavor for name, node in seen.nodes.items() if node.flavor}
    for name, node in sorted(seen.nodes.items()):
        past.offers.append(Offer(node.started_s, name, node.cpus, node.gpus, node.memory_bytes))
        if node.ended_s is not None:
            past.offers.append(Offer(node.ended_s, name))
    return past


class _Job:
    """One job as a run."""

    def __init__(
        self, seen: Seen, firsts: dict[str, tuple[str, int]], job_id: str, tasks: list[TaskSeen], now_s: float | None
    ) -> None:
        self._seen, self._firsts, self._tasks, self._now_s = seen, firsts, tasks, now_s
        job = seen.jobs.get(job_id, JobSeen())
        self._over_s = job.ended_s or (None if now_s else max(max(task.times.values()) for task in tasks))
        ended_s = None if self._over_s is None else max(task.ended_s or 0.0 for task in tasks) or self._over_s
        self._run = PastRun(f"{job.name}-{job_id}", job.name, tasks[0].submitted_s, ended_s, cut_off_s=self._over_s)

    def run(self) -> PastRun:
        run, firsts = self._run, dict[str, TaskSeen]()
        calls: dict[str, list[TaskSeen]] = defaultdict(list)
        for task in self._tasks:
            firsts.setdefault(task.task_id, task)
            if task.kind == "method" and task.started_s is not None:
                calls[task.actor_id].append(task)
        for task in firsts.values():
            creation = "f" * 16 + task.actor_id
            parents = (creation,) if task.kind == "method" and creation in firsts else ()
            run.tasks.append(PastTask(task.task_id, task.name, _needs(task), parents, task.submitted_s))
        run.attempts = [self._attempt(task) for task in self._tasks]
        for task in self._tasks:
            if task.kind == "actor" and task.outcome == "succeeded" and task.ended_s is not None:
                self._add_life(task, task.ended_s, calls[task.actor_id])
        return run

    def _attempt(self, task: TaskSeen) -> Attempt:
        started_s, ready_s = task.started_s, task.times.get(READY)
        one = Attempt(task.task_id, task.attempt, ready_s, ended_s=task.ended_s, outcome=task.outcome)
        one.needs, one.node, one.framework_id, one.pid = _needs(task), task.node_id, task.task_id, task.pid
        if started_s is not None:
            one.ready_s = min(ready_s if ready_s is not None else task.submitted_s, started_s)
            one.started_s = self._holds_from(task, one.ready_s, started_s)
            ended_s = task.ended_s or self._over_s or started_s
            one.ended_s = None if task.ended_s is None else max(task.ended_s, started_s)
            loaded_s = min(max(task.loaded_s or started_s, started_s), ended_s)
            one.code_s = loaded_s if loaded_s - one.started_s >= LEAST_COLD_S else None
        return one

    def _holds_from(self, task: TaskSeen, ready_s: float, started_s: float) -> float:
        """Ray reserves a task's resources before it starts a process for it: then it holds them from that moment."""
        worker = self._seen.workers.get(task.worker_id)
        if worker is None or worker.launched_s is None or worker.ready_s is None:
            return started_s
        is_first = self._firsts.get(task.worker_id) == (task.task_id, task.attempt)
        meant = ready_s - CLOCKS_S <= worker.launched_s < started_s and started_s - worker.ready_s <= PROMPT_S
        return max(worker.launched_s, ready_s) if is_first and meant else started_s

    def _add_life(self, task: TaskSeen, began_s: float, calls: list[TaskSeen]) -> None:
        """The actor that this task has made, from then to its death."""
        worker_id = task.worker_id or next((one.worker_id for one in calls if one.worker_id), "")  # not always told
        worker = self._seen.workers.get(worker_id)
        died_s = self._seen.died.get(task.actor_id, (worker.ended_s if worker is not None else None) or self._over_s)
        died_s = None if died_s is None else max(died_s, began_s)
        name = task.name.removesuffix(".__init__")
        self._run.tasks.append(PastTask(task.actor_id, name, _needs(task), (task.task_id,), began_s))
        life = Attempt(task.actor_id, 1, began_s, began_s, ended_s=died_s, outcome="succeeded")
        life.needs, life.node, life.framework_id, life.pid = _needs(task), task.node_id, task.actor_id, task.pid
        if task.gpus:
            stretches = union(self._called(call) for call in calls)
            life.used = tuple(_inside(one, began_s, died_s) for one in stretches or [(began_s, began_s)])
        self._run.attempts.append(life)

    def _called(self, call: TaskSeen) -> tuple[float, float]:
        began_s = call.started_s or 0.0
        return began_s, max(began_s, call.ended_s or self._over_s or self._now_s or began_s)


def _inside(stretch: tuple[float, float], began_s: float, died_s: float | None) -> tuple[float, float]:
    """The part of a stretch in an actor's life; of no length at its begin where it lies outside."""
    start, end = max(stretch[0], began_s), max(began_s, stretch[1] if died_s is None else min(stretch[1], died_s))
    return start, max(start, end)


def _needs(task: TaskSeen) -> Needs:
    return Needs(task.cpus, task.gpus, task.memory_bytes)


def _first_tasks(seen: Seen) -> dict[str, tuple[str, int]]:
    """The first task attempt that each worker process ran."""
    first: dict[str, TaskSeen] = {}
    for task in seen.tasks.values():
        known = first.get(task.worker_id)
        if task.started_s is not None and (known is None or task.started_s < (known.started_s or 0.0)):
            first[task.worker_id] = task
    return {worker: (task.task_id, task.attempt) for worker, task in first.items()}
