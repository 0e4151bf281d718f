"""What Ray knows about the tasks that ran: private task events where they are, else the public timeline.

Part of `compat`: only here and there is private Ray API allowed. Task events carry resources, the moment a task's
arguments were ready, node, process and outcome; the timeline (which sleeps a second) only run times and failures.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Any, cast

import msgspec
import ray

from egs_ray.audit.seen import amount_of
from egs_ray.compat import available

# Numbers of Ray's protobuf enums TaskStatus, TaskType and ErrorType; wire formats, so they do not change.
_SUBMITTED, _READY, _PUSHED, _RUNNING, _FINISHED, _FAILED = 1, 2, 5, 8, 11, 12
_KINDS = {0: "task", 1: "actor", 2: "method"}
_CANCELLED = 5
ANSWER_S = 20.0
REPORTS, OFTEN_MS = "RAY_task_events_report_interval_ms", "100"


def report_often() -> bool:
    """Processes of a Ray that this one starts from now on tell of their tasks ten times a second, not once. Whether
    they do: where the user has said how often, that counts."""
    return os.environ.setdefault(REPORTS, OFTEN_MS) == OFTEN_MS


def report_as_before() -> None:
    """What this process starts from now on is none of EGS's concern."""
    if os.environ.get(REPORTS) == OFTEN_MS:
        del os.environ[REPORTS]


class TaskEvent(msgspec.Struct):
    """One attempt at one task, as far as Ray has heard of it. Times are Unix seconds; None: not (yet) known.

    kind: task, actor (its creation) or method. pushed_s: when the submitter handed the task to a process; started_s:
    when that process took it up, by its own report. loaded_s: when it had loaded the function.
    """

    task_id: str
    attempt: int = 1
    name: str = ""
    kind: str = "task"
    actor_id: str = ""
    cpus: float = 0.0
    gpus: float = 0.0
    memory_bytes: int = 0
    submitted_s: float | None = None
    ready_s: float | None = None
    pushed_s: float | None = None
    started_s: float | None = None
    loaded_s: float | None = None
    ended_s: float | None = None
    outcome: str = ""
    pid: int = 0
    node_id: str = ""


def task_events(known: Container[tuple[str, int]] = ()) -> list[TaskEvent]:
    """All task events of this job except `known` (task id, attempt) ones."""
    if available("task_events"):
        return list(_private_events(known))
    return [event for event in _timeline_events() if (event.task_id, event.attempt) not in known]


def processes_of(task_ids: Container[str]) -> list[tuple[str, int]]:
    """Where these tasks of any job run, (node id, process id), as far as Ray has heard: it takes about a second."""
    if not available("task_events"):
        return []
    events = [
        _from_message(message, message.task_id.hex(), message.attempt_number + 1)
        for message in raw_task_events()
        if message.task_id.hex() in task_ids
    ]
    return [(event.node_id, event.pid) for event in events if event.pid and event.node_id and event.ended_s is None]


OWN_NAMES = ("egs-lease", "egs-process")
"""Of tasks that hold something for others', or keep a process: none of the user's."""


def _private_events(known: Container[tuple[str, int]]) -> Iterator[TaskEvent]:
    job = ray.get_runtime_context().get_job_id()
    for message in _events_of(job, known):
        info = message.task_info
        if message.job_id.hex() != job or info.type not in _KINDS or info.name in OWN_NAMES:
            continue
        task_id, attempt = message.task_id.hex(), message.attempt_number + 1
        if (task_id, attempt) not in known:
            yield _from_message(message, task_id, attempt)


def _from_message(message: Any, task_id: str, attempt: int) -> TaskEvent:
    info, state = message.task_info, message.state_updates
    times = {status: ns / 1e9 for status, ns in state.state_ts_ns.items()}
    failed_as = "aborted" if state.error_info.error_type == _CANCELLED and _FAILED in times else "failed"
    loaded = [e.start_time / 1e9 for e in message.profile_events.events if e.event_name == "task:deserialize_arguments"]
    resources = info.required_resources
    return TaskEvent(
        task_id=task_id,
        attempt=attempt,
        name=info.func_or_class_name,
        kind=_KINDS[info.type],
        actor_id=info.actor_id.hex(),
        cpus=amount_of(resources, "CPU"),
        gpus=amount_of(resources, "GPU"),
        memory_bytes=int(amount_of(resources, "memory")),
        submitted_s=times.get(_SUBMITTED),
        ready_s=times.get(_READY),
        pushed_s=times.get(_PUSHED),
        started_s=times.get(_RUNNING),
        loaded_s=loaded[0] if loaded else None,
        ended_s=times.get(_FINISHED, times.get(_FAILED)),
        outcome="succeeded" if _FINISHED in times else failed_as if _FAILED in times else "",
        pid=state.worker_pid,
        node_id=state.node_id.hex(),
    )


def _timeline_events() -> Iterator[TaskEvent]:
    with _quiet(logging.getLogger("ray._private.state")):
        entries: list[dict[str, Any]] = ray.timeline() or []
    failures: dict[str, list[float]] = {}  # process -> when a task of its raised
    for entry in entries:
        if entry["cat"] == "task:execute" and "traceback" in entry["args"]:
            failures.setdefault(entry["tid"], []).append(entry["ts"])
    nodes = {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes()}
    job = ray.get_runtime_context().get_job_id()
    for entry in entries:
        # An entry without an id is one whose details Ray could not keep.
        if entry["cat"].startswith("task::") and entry["args"].get("task_id", "").endswith(job):
            yield _from_entry(entry, failures.get(entry["tid"], []), nodes.get(entry["pid"], ""))


def _from_entry(entry: dict[str, Any], failures: list[float], node_id: str) -> TaskEvent:
    start_us, end_us = entry["ts"], entry["ts"] + entry["dur"]
    task_id, name = entry["args"]["task_id"], entry["cat"].removeprefix("task::")
    kind = _kind_of(task_id, name)
    return TaskEvent(
        task_id=task_id,
        name=name,
        kind=kind,
        actor_id="" if kind == "task" else task_id[16:],
        started_s=start_us / 1e6,
        ended_s=end_us / 1e6,
        outcome="failed" if any(start_us <= at <= end_us for at in failures) else "succeeded",
        node_id=node_id,
    )


def _kind_of(task_id: str, name: str) -> str:
    """Ray's task ids end in the actor's id, or in ones where there is none; an actor's creation begins with ones."""
    if task_id[16:].startswith("f" * 24):
        return "task"
    return "actor" if task_id.startswith("f" * 16) and name.endswith("__init__") else "method"


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Without warnings: ray.timeline() announces a change of its source on every call."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def actor_deaths() -> dict[str, float]:
    """Unix seconds of the death of this job's dead actors, by actor id; empty when Ray does not tell."""
    if not available("actors"):
        return {}
    job = ray.get_runtime_context().get_job_id()
    dead = raw_actors(job)
    return {actor_id: row["EndTime"] / 1e3 for actor_id, row in dead.items() if row["EndTime"]}


# --- the public state API needs a dashboard ---------------------------------------------------------------------------


def raw_task_events() -> list[Any]:
    """Ray's TaskEvents messages of all jobs. Reads what ray.timeline() reads, without its second of sleep."""
    from ray._private.state import state

    return list(cast(Any, state)._get_all_task_events())


_ASKABLE = [True]  # until Ray's service has refused


def _events_of(job: str, known: Container[tuple[str, int]]) -> list[Any]:
    """TaskEvents messages with all that are of this job and not known. Ray's own function asks for those of all jobs,
    with 40,000 tasks on a cluster that has run others before ten seconds of a core each time; so where there were other
    jobs Ray's service is asked for this one's."""
    if _ASKABLE[0] and int.from_bytes(bytes.fromhex(job), "little") > 1:
        try:
            return _ask_for(job)
        except Exception:  # another version of Ray, no gRPC for Python, a proxy between
            _ASKABLE[0] = False
    from ray._private import state as private

    state = cast(Any, private.state)
    is_at_head = getattr(private, "_READ_TASK_EVENTS_FROM_DASHBOARD_HEAD", False)
    if is_at_head or not hasattr(state, "_connect_and_get_accessor"):
        return raw_task_events()
    messages = state._connect_and_get_accessor().get_task_events()
    return [private.gcs_pb2.TaskEvents.FromString(one) for one in messages if _may_be_new(one, job, known)]


def _ask_for(job: str) -> list[Any]:
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated.gcs_service_pb2 import GetTaskEventsRequest
    from ray.core.generated.gcs_service_pb2_grpc import TaskInfoGcsServiceStub

    request = GetTaskEventsRequest()
    request.filters.job_filters.add(job_id=bytes.fromhex(job), predicate=0)  # 0: equal
    options = (("grpc.max_receive_message_length", -1),)
    channel = init_grpc_channel(ray.get_runtime_context().gcs_address, options=options)
    try:
        return list(TaskInfoGcsServiceStub(channel).GetTaskEvents(request, timeout=ANSWER_S).events_by_task)
    finally:
        channel.close()


_TASK_ID, _ATTEMPT = b"\n\x18", 0x10
"""How the first two fields of such a message begin: 24 bytes of the task's id, and how often it was tried before."""


def _may_be_new(message: bytes, job: str, known: Container[tuple[str, int]]) -> bool:
    """Whether a message may be of this job and not known, by its first bytes: taking it apart costs more."""
    if message[:2] != _TASK_ID or len(message) < 28:
        return True
    task_id, attempt = message[2:26].hex(), message[27] if message[26] == _ATTEMPT else 0
    return attempt > 127 or (task_id.endswith(job) and (task_id, attempt + 1) not in known)


def raw_actors(job_id: str) -> dict[str, dict[str, Any]]:
    """Ray's rows of the dead actors of a job, by actor id."""
    from ray._private.state import actors

    return dict(actors(job_id=ray.JobID.from_hex(job_id), actor_state_name="DEAD"))
