"""What an operator can see of a script whose GPU tasks are at the cluster's gate, and do to it.

    workload   the script's session, `train-1`      task   its name and Ray's id, `fit-92a781a6`, or all `fit`

Like `session.operations` for a driver's own tasks, and for those that the script's workers have submitted: the gate
knows them, and the worker that has submitted one cancels it when it hears of that, within a second or so. The script's
own are cancelled at once. While its driver hangs, `at_gate` asks the gate directly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ray.exceptions import RayError

from egs_core.errors import labelled, listed
from egs_ray.control.reporting import Told
from egs_ray.gate.client import ClusterGate, ask_gate, tasks_at_gate
from egs_ray.gate.messages import PASSED, Asked, GateTask
from egs_ray.submission import Needs

Request = dict[str, Any]
AWAY = (ValueError, RuntimeError, TimeoutError, RayError)
"""What a gate raises that is not there, orders nothing or does not answer."""


class ClusterOperations:
    """See the module. reasons: Ray's task id -> why it was aborted, for the run log."""

    def __init__(self, gate: ClusterGate, workload: str, reasons: dict[str, str]) -> None:
        self._gate, self._workload, self._reasons = gate, workload, reasons
        self._aborted = ""  # why all of it is
        self._is_paused = False

    def snapshot(self) -> Told | None:
        """What has passed the gate, as the controller is told; None before the first task."""
        gate = self._gate
        if not gate.made:
            return None
        waiting = gate.open_tasks()
        if self._aborted:
            self._cancel([task_id for task_id in waiting if task_id not in self._reasons], self._aborted)
        state = "aborted" if self._aborted else "paused" if self._is_paused else "running"
        row = {"workload": self._workload, "name": self._workload, "queue": "", "state": state, "stages": []}
        passed = [(task_id, since, gate.task(task_id)) for task_id, since in list(gate.passed.items())]
        return {
            "workloads": {self._workload: {**row, "tasks": gate.made, "open": len(waiting), "job": gate.workload}},
            "tasks": {
                task_id: (_row_of(self._workload, task_id, found[0], since), [found[1]])
                for task_id, since, found in passed
                if found
            },
        }

    def carry_out(self, request: Request) -> dict[str, Any]:
        """Do what an operator asks; the answer says what was done, or what is wrong with the request."""
        answer, task_ids = at_gate(self._gate.workload, request)
        if "problem" in answer:
            return answer
        verb, is_all = request["verb"], not request["task"]
        if verb == "abort":
            if is_all:
                self._aborted, self._gate.is_aborted = _reason_of(request), True
            self._cancel(task_ids, _reason_of(request))
        elif is_all:
            self._is_paused = verb == "pause"
        return answer

    def _cancel(self, task_ids: list[str], reason: str) -> None:
        for task_id in task_ids:
            self._reasons.setdefault(task_id, reason)  # the first stays: an aborted task is listed until it has ended
        self._gate.cancel(task_ids)


def at_gate(job: str, request: Request) -> tuple[dict[str, Any], list[str]]:
    """Let the gate do what an operator asks of a Ray job; the answer as of `carry_out`, and the ids of the tasks."""
    if found := _refused(request):
        return found, []
    try:
        there = [task for task in tasks_at_gate() if task.workload == job]
        chosen = named(there, request["task"])
        if request["task"] and not chosen:
            return _unknown_task(request["task"], [labelled(task.name, task.task_id) for task in there]), []
        task_ids = [task.task_id for task in chosen]
        ask_gate(Asked(request["verb"], job, task_ids if request["task"] else [], request["actor"], request["reason"]))
    except AWAY as error:
        return {"problem": f"the cluster's gate does not answer: {type(error).__name__}", "known": "try again"}, []
    return {"tasks": [labelled(task.name, task.task_id) for task in chosen]}, task_ids


def named(tasks: Iterable[GateTask], wanted: str) -> list[GateTask]:
    """The task of that label, all of that name, or all."""
    return [task for task in tasks if not wanted or wanted in (task.name, labelled(task.name, task.task_id))]


def _row_of(workload: str, task_id: str, needs: Needs, since: float) -> dict[str, Any]:
    """A script's task that a gate has let go, as the controller is told of it. since: Unix time."""
    return {
        "workload": workload,
        "stage": "",
        "task": labelled(needs.name, task_id),
        "name": needs.name,
        "state": PASSED,
        "since": round(since, 3),
        "gpus": needs.gpus,
        "node": "",
        "pid": 0,
        "pids": [],
        "framework_id": task_id,
    }


def _refused(request: Request) -> dict[str, Any]:
    """The answer to what nobody can do to a script's tasks; empty for the rest."""
    if request["stage"]:
        return {"problem": "the tasks of a script have no stages", "known": "name a task, or the workload"}
    if request["verb"] == "preempt":
        return {"problem": "the tasks of a script cannot be started again for it", "known": "use egs_ray.run"}
    return {}


def _unknown_task(task: str, there: list[str]) -> dict[str, Any]:
    """The answer that names what there is."""
    return {"problem": f"has no task {task!r}", "known": f"its tasks: {listed(there)}"}


def _reason_of(request: Request) -> str:
    """Why a task was aborted, for the run log."""
    return f"aborted by {request['actor']}" + (f": {request['reason']}" if request["reason"] else "")
