"""Reads what Ray says of itself, in the three shapes in which it does, into `Seen`.

    state API   {"task_id": "1631…", "events": [{"state": "RUNNING", "created_ms": 1795…}], …}        hexadecimal ids
    export      {"source_type": "EXPORT_TASK", "event_data": {"task_id": "FjEK…", "state_updates": …}}   base64 ids
    pushed      [{"eventType": "TASK_LIFECYCLE_EVENT", "taskLifecycleEvent": {"taskId": "FjEK…", …}}]    base64 ids

Pushed events come with camelCase names, or with the protobuf's own where Ray is told to keep them. What is not a known
event is left alone, so that a newer Ray's new events do no harm; a known event with a wrong inside is a ValueError.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from egs_ray.audit.seen import KINDS, STATES, Seen, TaskSeen

Fields = Mapping[str, Any]
NEVER_MS = 2**63  # what Ray writes for "not known" is beyond this, or 0
_CAMEL = re.compile(r"(?<=[a-z0-9])([A-Z])")


def take_event(seen: Seen, event: Any) -> bool:
    """Fold one exported or pushed event; whether it was one that is understood. ValueError for a broken one."""
    if not isinstance(event, dict):
        raise ValueError(f"an event is a JSON object, not {type(event).__name__}")
    kind = _kind(event)
    handler = _HANDLERS.get(kind)
    if handler is None:
        return False
    try:
        handler(seen, _inside(event, kind))
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"{kind}: {type(error).__name__}: {error}") from None
    return True


def job_of(event: Fields) -> str:
    """The job that an event is about; "" for one about a node or a worker."""
    kind = _kind(event)
    if "NODE" in kind or "WORKER" in kind:
        return ""
    fields = _inside(event, kind)
    if fields.get("job_id"):
        return _hex(fields["job_id"])
    return _hex(fields.get("task_id") or fields.get("actor_id") or "")[-8:]


def _kind(event: Fields) -> str:
    """What sort of event it is; a pushed event's source_type is who sent it."""
    source = str(event.get("source_type", ""))
    return source if source.startswith("EXPORT_") else str(event.get("event_type") or event.get("eventType") or "")


def _inside(event: Fields, kind: str) -> dict[str, Any]:
    """The event's own fields by their protobuf names, and the time at which it was written where it has one."""
    name = "event_data" if kind.startswith("EXPORT_") else kind.lower()
    fields = _plain(event)
    return {"timestamp": fields.get("timestamp"), **_plain(fields[name])}


def _plain(fields: Fields) -> dict[str, Any]:
    return {_CAMEL.sub(r"_\1", name).lower(): value for name, value in fields.items()}


# --- exported and pushed ----------------------------------------------------------------------------------------------


def _take_export_task(seen: Seen, data: Fields) -> None:
    task = seen.task(_hex(data["task_id"]), int(data.get("attempt_number", 0)), _hex(data.get("job_id", "")))
    info, state = data.get("task_info"), data.get("state_updates") or {}
    if info:
        _describe(task, info["func_or_class_name"], info["type"], _hex(info.get("actor_id", "")), info)
    for number, ns in (state.get("state_ts_ns") or {}).items():
        if number in STATES:
            task.times[STATES[number]] = int(ns) / 1e9
    _place(task, state, (state.get("error_info") or {}).get("error_type"))
    for profiled in (data.get("profile_events") or {}).get("events") or ():
        if profiled["event_name"] == "task:deserialize_arguments":
            task.loaded_s = int(profiled["start_time"]) / 1e9


def _take_export_actor(seen: Seen, data: Fields) -> None:
    if data["state"] == "DEAD":  # the time is in whole seconds: the middle of that second
        seen.died.setdefault(_hex(data["actor_id"]), float(data["timestamp"]) + 0.5)


def _take_export_node(seen: Seen, data: Fields) -> None:
    _take_node_row(seen, {**data, "node_id": _hex(data["node_id"])})


def _take_export_job(seen: Seen, data: Fields) -> None:
    _take_job_row(seen, {**data, "job_id": _hex(data["job_id"])})


def _take_task_definition(seen: Seen, data: Fields) -> None:
    task = seen.task(_hex(data["task_id"]), int(data.get("task_attempt", 0)), _hex(data.get("job_id", "")))
    called = data.get("task_func") or data.get("actor_func") or {}
    python = _plain(_plain(called).get("python_function_descriptor") or {})
    name = ".".join(part for part in (python.get("class_name"), python.get("function_name")) if part)
    name = name or data.get("task_name") or data.get("actor_task_name") or ""
    _describe(task, name, data.get("task_type", "ACTOR_TASK"), _hex(data.get("actor_id", "")), data)


def _take_task_lifecycle(seen: Seen, data: Fields) -> None:
    task = seen.task(_hex(data["task_id"]), int(data.get("task_attempt", 0)), _hex(data.get("job_id", "")))
    for change in data.get("state_transitions") or ():
        if change["state"] in STATES.values():
            task.times[change["state"]] = _moment(change["timestamp"])
    _place(task, data, _plain(data.get("ray_error_info") or {}).get("error_type"))


def _take_actor_lifecycle(seen: Seen, data: Fields) -> None:
    for change in data.get("state_transitions") or ():
        if change["state"] == "DEAD":
            seen.died[_hex(data["actor_id"])] = _moment(change["timestamp"])


def _take_node_definition(seen: Seen, data: Fields) -> None:
    seen.node(_hex(data["node_id"])).started_s = _moment(data["start_timestamp"])


def _take_node_lifecycle(seen: Seen, data: Fields) -> None:
    node = seen.node(_hex(data["node_id"]))
    for change in data.get("state_transitions") or ():
        if change["state"] == "DEAD":
            node.ended_s = _moment(change["timestamp"])
        else:
            node.started_s = node.started_s or _moment(change["timestamp"])
            node.offers(change.get("resources") or {})


def _take_worker_lifecycle(seen: Seen, data: Fields) -> None:
    for change in data.get("state_transitions") or ():
        _take_worker_row(seen, {"worker_id": _hex(data["worker_id"]), **_plain(change)})


def _take_job_definition(seen: Seen, data: Fields) -> None:
    seen.job(_hex(data["job_id"])).entrypoint = data.get("entrypoint") or ""


def _take_job_lifecycle(seen: Seen, data: Fields) -> None:
    job = seen.job(_hex(data["job_id"]))
    for change in data.get("state_transitions") or ():
        if change["state"] == "CREATED":
            job.started_s = _moment(change["timestamp"])
        else:
            job.ended_s = _moment(change["timestamp"])


_HANDLERS: dict[str, Callable[[Seen, Fields], None]] = {
    "EXPORT_TASK": _take_export_task,
    "EXPORT_ACTOR": _take_export_actor,
    "EXPORT_NODE": _take_export_node,
    "EXPORT_DRIVER_JOB": _take_export_job,
    "TASK_DEFINITION_EVENT": _take_task_definition,
    "ACTOR_TASK_DEFINITION_EVENT": _take_task_definition,
    "TASK_LIFECYCLE_EVENT": _take_task_lifecycle,
    "ACTOR_LIFECYCLE_EVENT": _take_actor_lifecycle,
    "NODE_DEFINITION_EVENT": _take_node_definition,
    "NODE_LIFECYCLE_EVENT": _take_node_lifecycle,
    "WORKER_LIFECYCLE_EVENT": _take_worker_lifecycle,
    "DRIVER_JOB_DEFINITION_EVENT": _take_job_definition,
    "DRIVER_JOB_LIFECYCLE_EVENT": _take_job_lifecycle,
}


# --- rows of the state API --------------------------------------------------------------------------------------------


def take_rows(seen: Seen, what: str, rows: Iterable[Fields]) -> None:
    """Fold rows of the state API; what: tasks, nodes, workers, jobs, or actors as the dashboard lists them."""
    take = _ROWS[what]
    for row in rows:
        try:
            take(seen, row)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{what}: {type(error).__name__}: {error}") from None


def _take_task_row(seen: Seen, row: Fields) -> None:
    task = seen.task(row["task_id"], int(row.get("attempt_number", 0)), row.get("job_id") or "")
    _describe(task, row.get("func_or_class_name") or row.get("name") or "", row["type"], row.get("actor_id") or "", row)
    for change in row.get("events") or ():
        if change["state"] in STATES.values():
            task.times[change["state"]] = change["created_ms"] / 1e3
    _place(task, row, row.get("error_type"), ids=str)
    for profiled in (row.get("profiling_data") or {}).get("events") or ():
        if profiled["event_name"] == "task:deserialize_arguments":
            task.loaded_s = profiled["start_time"] / 1e3


def _take_node_row(seen: Seen, row: Fields) -> None:
    node = seen.node(row["node_id"])
    node.started_s = _ms(row.get("start_time_ms")) or node.started_s
    node.ended_s = _ms(row.get("end_time_ms")) or node.ended_s
    node.offers(row.get("resources_total") or {})


def _take_worker_row(seen: Seen, row: Fields) -> None:
    worker = seen.worker(row["worker_id"])
    worker.launched_s = _ms(row.get("worker_launch_time_ms")) or worker.launched_s
    worker.ready_s = _ms(row.get("start_time_ms")) or worker.ready_s
    worker.ended_s = _ms(row.get("end_time_ms")) or worker.ended_s


def _take_job_row(seen: Seen, row: Fields) -> None:
    if not row.get("job_id"):
        return  # submitted through the job server, and its driver not begun
    job = seen.job(row["job_id"])
    job.entrypoint = row.get("entrypoint") or job.entrypoint
    job.started_s = _ms(row.get("start_time")) or job.started_s
    job.ended_s = _ms(row.get("end_time")) or job.ended_s


def _take_actor_row(seen: Seen, row: Fields) -> None:
    if row.get("state") == "DEAD" and (died_s := _ms(row.get("endTime"))):
        seen.died[row["actorId"]] = died_s


_ROWS: dict[str, Callable[[Seen, Fields], None]] = {
    "tasks": _take_task_row,
    "nodes": _take_node_row,
    "workers": _take_worker_row,
    "jobs": _take_job_row,
    "actors": _take_actor_row,
}


# --- what the shapes share --------------------------------------------------------------------------------------------


def _describe(task: TaskSeen, name: str, kind: str, actor_id: str, about: Fields) -> None:
    task.name, task.kind = name, KINDS.get(kind, "task")
    task.actor_id = task.task_id[16:] if task.kind in ("actor", "method") else actor_id
    task.needs({str(key): float(value) for key, value in (about.get("required_resources") or {}).items()})


def _place(task: TaskSeen, about: Fields, error: Any, ids: Callable[[str], str] | None = None) -> None:
    """Where it runs, and how it failed; an event that does not know says nothing."""
    ids = ids or _hex
    task.node_id = ids(about.get("node_id") or "") or task.node_id
    task.worker_id = ids(about.get("worker_id") or "") or task.worker_id
    task.pid = int(about.get("worker_pid") or 0) or task.pid
    task.error = str(error or "") or task.error


def _hex(encoded: str) -> str:
    try:
        return base64.b64decode(encoded, validate=True).hex()
    except (binascii.Error, TypeError) as error:
        raise ValueError(f"{encoded!r} is no id: {error}") from None


def _moment(text: str) -> float:
    """Unix seconds of a time such as 2026-11-21T20:59:25.023170343Z, to a microsecond."""
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _ms(value: Any) -> float | None:
    """Unix seconds of milliseconds, as number or text; None for what Ray writes when it does not know."""
    number = int(value or 0)
    return number / 1e3 if 0 < number < NEVER_MS else None
