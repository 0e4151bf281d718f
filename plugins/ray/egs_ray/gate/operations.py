"""What an operator can see of a script in mode on, and do to it: the GPU tasks at its gate, from any thread.

    workload   the script's session, `train-1`      task   its name and Ray's id, `fit-92a781a6`, or all `fit`

An abort cancels what waits and what runs. The gate of an aborted script stays shut, and what the script submits to it
from then on is cancelled too. What a pause holds back are tickets that are not open yet: a task that Ray already has
goes on. A script's tasks are not preempted: their references are the script's, so nobody else can submit them again.
"""

from __future__ import annotations

from typing import Any

import ray

from egs_core.engine import messages as m
from egs_core.errors import listed
from egs_ray.control.reporting import Told, answer_of
from egs_ray.gate.books import Job
from egs_ray.gate.local import WORKLOAD, Gate
from egs_ray.gate.messages import PASSED
from egs_ray.submission import Needs

Request = dict[str, Any]
ANSWER_S = 10.0
LEAST_S = 0.3  # shorter tasks have ended before anybody could stop them: each one told of costs Ray two messages


class GateOperations:
    """See the module. reasons: Ray's task id -> why it was aborted, for the run log."""

    def __init__(self, gate: Gate, workload: str, reasons: dict[str, str]) -> None:
        self._gate, self._workload, self._reasons = gate, workload, reasons
        self._aborted = ""  # why all of it is
        self._paused: set[str] = set()

    # --- from any thread ---

    def snapshot(self) -> Told | None:
        """What waits and runs, as the controller is told; None before the first task."""
        return self._gate.driver.ask(lambda _: self._snapshot(), ANSWER_S) if self._gate.made else None

    def carry_out(self, request: Request) -> dict[str, Any]:
        """Do what an operator asks; the answer says what was done, or what is wrong with the request."""
        return answer_of(self._gate.driver, lambda: self._carry_out(request))

    # --- on the gate's thread ---

    def _snapshot(self) -> Told:
        jobs, now_s = self._waiting_or_running(), self._gate.driver.now()
        if self._aborted:
            self._cancel(jobs, self._aborted)
        state = "aborted" if self._aborted else "paused" if WORKLOAD in self._paused else "running"
        row = {"workload": self._workload, "name": self._workload, "queue": "", "state": state, "stages": []}
        return {
            "workloads": {self._workload: {**row, "tasks": self._gate.made, "open": len(jobs)}},
            "tasks": {
                job.key: (
                    row_of(self._workload, job.task_id, job.needs, self._gate.books.wall_s + job.opened_s),
                    [self._gate.refs[job.task_id]],
                )
                for job in jobs
                if job.needs is not None and job.opened_s is not None and now_s - job.opened_s > LEAST_S
            },
        }

    def _waiting_or_running(self) -> list[Job]:
        return [job for job in self._gate.books.jobs.values() if job.key]

    def _carry_out(self, request: Request) -> dict[str, Any]:
        jobs, task, verb = self._waiting_or_running(), request["task"], request["verb"]
        if found := refused(request):
            return found
        if task:
            jobs = [job for job in jobs if task in (_id(job), job.needs and job.needs.name)]
            if not jobs:
                return unknown_task(task, [_id(job) for job in self._waiting_or_running()])
        if verb == "abort":
            self._abort(jobs, request)
        else:
            self._pause_or_resume(jobs, request)
        return {"tasks": [_id(job) for job in jobs]}

    def _abort(self, jobs: list[Job], request: Request) -> None:
        reason = reason_of(request)
        if not request["task"]:
            self._aborted = reason
            self._gate.hold_back(True)
            self._gate.driver.handle(m.PauseRequested("workload", WORKLOAD, request["actor"], request["reason"]))
        self._cancel(jobs, reason)

    def _cancel(self, jobs: list[Job], reason: str) -> None:
        for job in jobs:
            self._reasons.setdefault(job.task_id, reason)  # the first stays: it is listed until it has ended
            ray.cancel(self._gate.refs[job.task_id], force=True)

    def _pause_or_resume(self, jobs: list[Job], request: Request) -> None:
        event = m.PauseRequested if request["verb"] == "pause" else m.ResumeRequested
        targets = [("task", str(job.number)) for job in jobs] if request["task"] else [("workload", WORKLOAD)]
        for scope, target in targets:
            self._gate.driver.handle(event(scope, target, request["actor"], request["reason"]))
        if not request["task"]:
            (self._paused.add if request["verb"] == "pause" else self._paused.discard)(WORKLOAD)
        self._gate.hold_back(bool(self._aborted or self._paused))


def _id(job: Job) -> str:
    return label(job.needs.name if job.needs else "", job.task_id)


def label(name: str, task_id: str) -> str:
    """A task as `egs ps` lists it."""
    return f"{name}-{task_id[:8]}"


def row_of(workload: str, task_id: str, needs: Needs, since: float) -> dict[str, Any]:
    """A script's task that a gate has let go, as the controller is told of it. since: Unix time."""
    return {
        "workload": workload,
        "stage": "",
        "task": label(needs.name, task_id),
        "name": needs.name,
        "state": PASSED,
        "since": round(since, 3),
        "gpus": needs.gpus,
        "node": "",
        "pid": 0,
        "pids": [],
        "framework_id": task_id,
    }


def refused(request: Request) -> dict[str, Any]:
    """The answer to what nobody can do to a script's tasks; empty for the rest."""
    if request["stage"]:
        return {"problem": "the tasks of a script have no stages", "known": "name a task, or the workload"}
    if request["verb"] == "preempt":
        return {"problem": "the tasks of a script cannot be started again for it", "known": "use egs_ray.run"}
    return {}


def unknown_task(task: str, there: list[str]) -> dict[str, Any]:
    """The answer that names what there is."""
    return {"problem": f"has no task {task!r}", "known": f"its tasks: {listed(there)}"}


def reason_of(request: Request) -> str:
    """Why a task was aborted, for the run log."""
    return f"aborted by {request['actor']}" + (f": {request['reason']}" if request["reason"] else "")
