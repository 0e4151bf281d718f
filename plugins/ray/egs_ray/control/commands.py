"""Abort, pause, resume or preempt what another process runs with EGS on the same Ray cluster; and list what runs.

    from egs_ray.control import commands as control
    control.abort("train#0", stage="fit", reason="wrong data")       # also `egs abort --on ray train#0 --stage fit`

Works through the cluster's controller (`controller.py`). Connects to `address`, or to the cluster that Ray itself would
find, unless this process is connected to one.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import Any

import ray

from egs_core.adapter import (
    CONTROLS,
    ControlOutcome,
    ControlRequest,
    RunningTask,
    RunningWorkload,
    unknown_workload,
    who,
)
from egs_core.errors import InputError
from egs_core.units import parse_seconds
from egs_ray.control import controller
from egs_ray.control.reachable import chosen_address
from egs_ray.events import processes_of

PLACE = "control of Ray"
REACH_S = 3.0
REPORT_S = 3.0  # drivers look twice a second for a controller
ANSWER_S = 20.0
AGAIN_S = 0.2
EVENTS_S = 2.0
Table = list[dict[str, Any]]
NOTHING = "nothing runs with EGS on this cluster", "drivers with EGS_CONTROL=off cannot be seen"


def abort(workload: str, **options: Any) -> ControlOutcome:
    """End a workload, or its `stage` or `task`, and what waits for that; running processes end, nothing is tried again.

    Options: stage, task, address, driver, actor, reason: text; grace: seconds for checkpoints (or "10s"). Raises
    InputError that names what there is, for an unknown target or when there is no cluster.
    """
    return _asked("abort", workload, options)


def pause(workload: str, **options: Any) -> ControlOutcome:
    """Start nothing more of it; phases that run end. Options and errors as of `abort`, without grace."""
    return _asked("pause", workload, options)


def resume(workload: str, **options: Any) -> ControlOutcome:
    """Take back the pause of exactly this workload, stage or task. Options and errors as of `pause`."""
    return _asked("resume", workload, options)


def preempt(workload: str, **options: Any) -> ControlOutcome:
    """Stop what runs of it now, with its task's own grace for a checkpoint, and start it again when its turn comes.
    Options and errors as of `pause`."""
    return _asked("preempt", workload, options)


def ps(address: str = "") -> list[RunningWorkload]:
    """The workloads that run with EGS on the cluster, with the tasks that run of each."""
    _, table = _table(address)
    return [_workload(driver, row) for driver in table for row in driver["workloads"]]


def carry_out(request: ControlRequest) -> ControlOutcome:
    """See `abort` and its kind."""
    if request.verb not in CONTROLS:
        raise InputError(PLACE, f"unknown verb {request.verb!r}", f"one of: {', '.join(CONTROLS)}")
    control, table = _table(request.address)
    key = _driver_of(table, request)
    fields = ("verb", "workload", "stage", "task", "grace_s", "reason")
    asked = {name: getattr(request, name) for name in fields}
    asked["actor"] = request.actor or who()
    patience_s = controller.PATIENCE_S if request.verb == "abort" else controller.PATIENT_S
    answer = _answer(control.command.remote(key, asked, patience_s))
    if "problem" in answer:
        raise InputError(request.workload, answer["problem"], answer.get("known", ""))
    hangs = bool(answer.get("hangs"))
    if hangs and not answer["tasks"] and (request.stage or request.task):
        problem = "its driver does not answer, and nothing of that name is known to run"
        raise InputError(request.workload, problem, "egs ps --on ray lists what runs")
    if hangs and request.verb == "abort" and answer["unknown"]:
        _end_by_events(control, answer["unknown"])
    return ControlOutcome(request.workload, key, tuple(answer["tasks"]), hangs)


def _end_by_events(control: Any, task_ids: list[str]) -> None:
    """End tasks whose driver hangs and does not know their processes: Ray's own events tell, a second after a start."""
    until = time.monotonic() + EVENTS_S
    while True:
        found = processes_of(task_ids)
        ray.get(control.end.remote(found), timeout=ANSWER_S)
        if len(found) >= len(task_ids) or time.monotonic() > until:
            return
        time.sleep(EVENTS_S / 20)


def _asked(verb: str, workload: str, options: dict[str, Any]) -> ControlOutcome:
    grace_s = parse_seconds(options.pop("grace", 0.0), f"{verb}: grace")
    known = ("stage", "task", "address", "driver", "actor", "reason")
    for name, value in options.items():
        if name not in known or not isinstance(value, str):
            raise InputError(f"{verb}: {name}", f"{value!r} is not an option's value", f"text for: {', '.join(known)}")
    return carry_out(ControlRequest(verb, workload, **options, grace_s=grace_s))


def _controller(address: str) -> Any:
    if not ray.is_initialized():
        _connect(address or os.environ.get("RAY_ADDRESS", ""))
    return controller.find() or _asked_for()


def _asked_for() -> Any:
    """A controller made because somebody asks: drivers that have begun just now look for one, and report to it."""
    made = controller.get_or_make()
    ray.get(made.ready.remote(), timeout=ANSWER_S)
    until = time.monotonic() + REPORT_S
    while not ray.get(made.table.remote(), timeout=ANSWER_S):
        if time.monotonic() > until:
            raise InputError(PLACE, *NOTHING)
        time.sleep(AGAIN_S)
    return made


def _connect(address: str) -> None:
    """Ray itself waits long for a cluster that is not there, and then ends the process; as it does at once in a session
    of another user."""
    hint = "--address host:port of the cluster, or RAY_ADDRESS"
    host, _, port = address.rpartition(":")
    if port.isdecimal() and "://" not in address:
        try:
            socket.create_connection((host, int(port)), timeout=REACH_S).close()
        except OSError as error:
            raise InputError(PLACE, f"no cluster at {address}: {error}", hint) from None
    chosen = chosen_address(address or "auto", PLACE)
    try:
        ray.init(address=chosen, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(PLACE, f"no cluster found: {in_one_line(error)}", hint) from None


def in_one_line(error: Exception) -> str:
    """All that Ray says: of two versions that differ the lines after the first have the numbers."""
    return " ".join(str(error).split())


def _table(address: str) -> tuple[Any, Table]:
    """The controller and what it knows. Ray starts one again that has died; one that has ended itself just now is
    replaced."""
    control = _controller(address)
    until = time.monotonic() + ANSWER_S
    while True:
        try:
            return control, list(ray.get(control.table.remote(), timeout=ANSWER_S))
        except ray.exceptions.ActorDiedError:
            control = controller.find() or _asked_for()
        except (ray.exceptions.RayActorError, TimeoutError) as error:
            if time.monotonic() > until:
                raise _no_answer(error) from None
        time.sleep(AGAIN_S)


def _answer(ref: Any) -> dict[str, Any]:
    try:
        return dict(ray.get(ref, timeout=ANSWER_S))
    except (ray.exceptions.RayActorError, TimeoutError) as error:
        raise _no_answer(error) from None


def _no_answer(error: Exception) -> InputError:
    problem = f"the controller does not answer: {[*str(error).splitlines(), type(error).__name__][0]}"
    return InputError(PLACE, problem, "it starts again by itself: try once more")


def _driver_of(table: list[dict[str, Any]], request: ControlRequest) -> str:
    """The one driver that has the workload. Raises InputError for none, or several."""
    names = [(row["workload"], driver) for driver in table for row in driver["workloads"]]
    found = [
        driver
        for name, driver in names
        if name == request.workload and request.driver in ("", driver["driver"], str(driver["pid"]))
    ]
    if not found:
        there = [f"{name} (driver {driver['driver']})" for name, driver in names]
        raise unknown_workload(request, there)
    if len(found) > 1:
        drivers = ", ".join(f"{d['driver']} (process {d['pid']} on {d['host']})" for d in found)
        raise InputError(request.workload, f"runs in {len(found)} drivers: {drivers}", "say which with --driver")
    return str(found[0]["driver"])


def _workload(driver: dict[str, Any], row: dict[str, Any]) -> RunningWorkload:
    tasks = [_task(task) for task in driver["tasks"] if task["workload"] == row["workload"]]
    return RunningWorkload(
        workload=row["workload"],
        driver=driver["driver"],
        pid=driver["pid"],
        host=driver["host"],
        state=row["state"],
        tasks=row["tasks"],
        open=row["open"],
        stages=tuple(row["stages"]),
        running=tuple(sorted(tasks, key=lambda task: task.since)),
    )


def _task(row: dict[str, Any]) -> RunningTask:
    return RunningTask(**{name: row[name] for name in RunningTask.__struct_fields__ if name in row})
