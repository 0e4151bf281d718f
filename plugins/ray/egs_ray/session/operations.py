"""What an operator can see of a session, and do to it: list, abort, pause, resume and preempt, from any thread.

workload   the id of a run, `train#0`      stage   of its tasks, by their hint      task   `fit-3`, or all `fit`
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from egs_core.engine import messages as m
from egs_core.errors import InputError, listed
from egs_core.site import Asked, TaskStatus
from egs_ray.control.reporting import Told, answer_of
from egs_ray.session.nested import NestedRef
from egs_ray.session.shared import Shared
from egs_ray.session.stops import Stops, may_start_again
from egs_ray.session.tasks import LASTING, WITH_TICKET, Job, RunBooks, Way, first_of

Request = dict[str, Any]
SHOWN = 12
ANSWER_S = 10.0
LET_GO = ("granted", "running")
PASSED, WAITS, EARLY = "passed the gate", "waits at the gate", "waits for others"
TURN = ("ready", "held")
TO_START_AGAIN = "of a script: a task that runs, has said egs.checkpoint, and has a retry of Ray's left"


class Operations:
    """See the module."""

    def __init__(self, shared: Shared, stops: Stops) -> None:
        self._shared, self._stops = shared, stops
        self._wall_s = time.time() - shared.site.now()
        self._stages: dict[str, list[str]] = {}

    # --- from any thread ---

    def snapshot(self) -> Told | None:
        """What runs, as the controller is told; None before the first task."""
        if not any(books.jobs for books in self._shared.runs.values()):
            return None
        site = self._shared.site
        jobs, runs = site.call(lambda: (self._listed(), self._under_way()), ANSWER_S)
        statuses = {status.task: status for status in site.tasks([job.number for job in jobs])}
        rows = {books.workload: self._workload_row(books) for books in runs}
        return site.call(lambda: self._told(rows, jobs, statuses), ANSWER_S)

    def carry_out(self, request: Request) -> dict[str, Any]:
        """Do what an operator asks; the answer says what was done, or what is wrong with the request."""
        return answer_of(self._shared.site, lambda: self._carry_out(request))

    # --- on the holder's thread ---

    def asked(self, request: Asked) -> None:
        """The same for all that this driver runs, on behalf of an operator of its site server."""
        for books in [books for books in self._shared.runs.values() if books.jobs and not books.over.is_set()]:
            told = {"verb": request.verb, "actor": request.actor, "reason": request.reason, "grace_s": request.grace_s}
            with suppress(InputError):  # it has ended
                self._carry_out({"workload": books.workload, "stage": "", "task": "", **told})

    def end_aborted(self) -> None:
        """What an aborted script goes on to submit is aborted, too."""
        for books in self._shared.runs.values():
            if books.grows and books.aborted:
                self._shared.tickets.cancel(books.unfinished, books.aborted)

    def abort(self, scope: str, target: str, actor: str, reason: str) -> None:
        """End a workload, a stage or a task, and what waits for it."""
        if scope == "workload" and target in self._shared.runs:
            self._shared.runs[target].aborted = _by("aborted", actor, reason)
        self._shared.site.control(m.AbortRequested(scope, target, actor, reason))

    def _carry_out(self, request: Request) -> dict[str, Any]:
        books = self._run_of(request)
        if books.over.is_set():
            return _noted_late(books, _by("aborted", request["actor"], request["reason"]))
        jobs = _jobs_of(books, request["stage"], request["task"])
        verb, actor, reason = request["verb"], request["actor"], request["reason"]
        targets = _targets(books, jobs, request)
        if books.grows and verb == "preempt":
            jobs = [job for job in jobs if may_start_again(job)]
            if not jobs:
                return {"problem": "nothing of it can be started again", "known": TO_START_AGAIN}
        elif books.grows:
            self._hold_back(books, request)
        if verb == "abort" and books.grows:
            self._shared.tickets.cancel(jobs, _by("aborted", actor, reason))
        elif verb == "abort":
            for job in jobs:
                job.operator_grace_s = request["grace_s"]
            for scope, target in targets:
                self.abort(scope, target, actor, reason)
        elif verb == "preempt":
            jobs = [job for job in jobs if job.grant is not None or job.ran]
            for job in [job for job in jobs if not job.succeeded]:
                self._stops.preempt(job, _by("preempted", actor, reason))
        else:
            event = m.PauseRequested if verb == "pause" else m.ResumeRequested
            self._shared.site.control(*[event(scope, target, actor, reason) for scope, target in targets])
        return {"tasks": [job.label for job in jobs]}

    def _hold_back(self, books: RunBooks, request: Request) -> None:
        """Of a whole script: nothing passes without its turn, and once it is aborted nothing has a turn."""
        verb, actor, reason = request["verb"], request["actor"], request["reason"]
        if request["task"] or request["stage"]:
            return
        if verb == "abort":
            books.aborted = _by("aborted", actor, reason)
            self._shared.site.control(m.PauseRequested("workload", books.workload, actor, reason))
        self._shared.tickets.hold_back(bool(books.aborted) or verb == "pause")

    def _run_of(self, request: Request) -> RunBooks:
        """The run; for an abort also one that is over, as it may be over because of that."""
        workload = request["workload"]
        books = self._shared.runs.get(workload)
        if self._shared.broken:
            raise InputError(workload, "its driver has lost EGS: only Ray's own means are left")
        is_over = books is not None and books.over.is_set() and request["verb"] != "abort"
        if books is None or is_over or not books.jobs:
            raise InputError(workload, "has ended, or not begun")
        return books

    def _under_way(self) -> list[RunBooks]:
        self.end_aborted()
        return [books for books in self._shared.runs.values() if books.jobs and not books.over.is_set()]

    def _listed(self) -> list[Job]:
        """Tasks that Ray has and that have not ended."""
        listed = [job for job in self._shared.submitted.values() if _is_listed(job)]
        if (program := self._shared.tickets) is None:
            return listed
        waiting = program.waiting(SHOWN) if self._shared.site.is_shared else []  # perhaps for others' tasks
        return [*listed, *program.passed(), *waiting]

    def _told(self, rows: dict[str, Any], jobs: list[Job], statuses: dict[int, TaskStatus]) -> Told:
        listed = [job for job in jobs if _is_listed(job)]
        tasks = {
            str(job.submission or f"#{job.number}"): (self._row(job, statuses[job.number]), _references(job))
            for job in listed
        }
        return {"workloads": rows, "tasks": tasks}

    def _workload_row(self, books: RunBooks) -> dict[str, Any]:
        """From any thread."""
        found = self._shared.site.workload(books.workload)
        if books.workload not in self._stages:
            self._stages[books.workload] = _stages_of(books)[:SHOWN]
        return {
            "workload": books.workload,
            "name": books.converted.name,
            "queue": books.queue,
            "state": "aborted" if books.grows and books.aborted else "paused" if found.is_paused else "running",
            "tasks": books.converted.graph.n_tasks,
            "open": found.open_tasks,
            "stages": self._stages[books.workload],
        }

    def _row(self, job: Job, status: TaskStatus) -> dict[str, Any]:
        graph = job.run.converted.graph
        let_go_at = self._shared.tickets.line.since(job) if job.way in WITH_TICKET else None
        is_let_go = status.status in LET_GO if job.way not in WITH_TICKET else let_go_at is not None
        holds = is_let_go and not job.lack and (job.way is not Way.SHELL or _has_lease(job))
        shape = job.run.block.shapes[job.run.block.phase_shape[job.run.block.phase_offsets[job.index] + status.index]]
        pids = [(job.node, job.pid)] if job.pid and job.node else []
        if job.lease is not None and job.lease.pid:
            pids.append((job.node, job.lease.pid))
        return {
            "workload": job.run.workload,
            "stage": graph.options_of(job.index).stage,
            "task": job.label,
            "name": graph.names[job.index],
            "state": _state_of(job, status, is_let_go),
            "since": round(self._wall_s + (status.since if let_go_at is None else let_go_at), 3),
            "gpus": shape.gpu_milli / 1000 if holds else 0.0,
            "node": job.node,
            "pid": job.pid,
            "waiting_for": () if job.lack or job.stopped else status.waiting_for,
            "pids": pids,
            "framework_id": first_of(job.ref).task_id().hex(),
        }


def _state_of(job: Job, status: TaskStatus, is_let_go: bool) -> str:
    if job.stopped:
        return "stopping"
    if job.way in WITH_TICKET:
        return PASSED if is_let_go else WAITS if status.status in TURN else EARLY
    return f"waits in Ray: {job.lack}" if job.lack else status.status


def _is_listed(job: Job) -> bool:
    return job.ref is not None and job.parked_since is None and not job.succeeded


def _noted_late(books: RunBooks, text: str) -> dict[str, Any]:
    """This process hung, the controller ended its tasks, and Ray told of that before the controller could."""
    for job in books.jobs:
        if job.failed and not job.stopped:
            job.stopped = text
    return {"tasks": []}


def _has_lease(job: Job) -> bool:
    """Whether its phase holds something in Ray's books by now."""
    return job.lease is not None and job.lease.peer is not None


def _references(job: Job) -> list[Any]:
    """What has to be cancelled to end the job: itself, and what holds its resources. A handle of an actor, lent to the
    controller, would keep it alive; a worker's reference is not here to be lent."""
    if job.way in LASTING or isinstance(job.ref, NestedRef):
        return []
    return [first_of(job.ref), *([job.lease.ref] if job.lease is not None and job.lease.ref is not None else [])]


def _jobs_of(books: RunBooks, stage: str, task: str) -> list[Job]:
    """The tasks that a request is about. Raises InputError when there are none."""
    graph = books.converted.graph
    open_jobs = [job for job in (books.unfinished if books.grows else books.jobs) if job.way is not Way.OUTSIDE]
    jobs = [job for job in open_jobs if not stage or graph.options_of(job.index).stage == stage]
    if not jobs and stage:
        raise InputError(books.workload, f"has no stage {stage!r}", f"its stages: {listed(_stages_of(books))}")
    if task:
        named = [job for job in jobs if job.label == task]
        named = named or [job for job in jobs if graph.names[job.index] == task]
        if not named:
            there = listed([job.label for job in jobs])
            raise InputError(books.workload, f"has no task {task!r}", f"its tasks: {there}")
        return named
    return jobs


def _stages_of(books: RunBooks) -> list[str]:
    graph = books.converted.graph
    return sorted({graph.options_of(index).stage for index in range(graph.n_tasks)} - {""})


def _targets(books: RunBooks, jobs: list[Job], request: Request) -> list[tuple[str, str]]:
    """The engine's names for it."""
    if request["task"]:
        return [("task", str(job.number)) for job in jobs]
    if request["stage"]:
        return [("stage", f"{books.workload}/{request['stage']}")]
    return [("workload", books.workload)]


def _by(what: str, actor: str, reason: str) -> str:
    return f"{what} by {actor or 'operator'}" + (f": {reason}" if reason else "")
