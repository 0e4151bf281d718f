"""Task instances as the REST API gives them, and what is written to them: an end, another try, a note in the grid."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from egs_airflow.history.seen import workload_of
from egs_airflow.rest import Rest, quoted
from egs_core.errors import InputError

SIGN = "EGS: "
"""With this begins what EGS adds to a note."""
ABORTED = "aborted by"
"""With this goes on what it adds where an operator has aborted something."""
MOST_NOTE = 1000  # characters that Airflow takes
MOST_AT_ONCE = 100  # instances in one request
OPEN = ("none", "scheduled", "queued", "running", "restarting", "up_for_retry", "up_for_reschedule", "deferred")
EVERYWHERE = "dags/~/dagRuns/~/taskInstances"


class Instance(msgspec.Struct, frozen=True):
    """One try of a task. id: no other try has it, and it is in the title of its process; map_index: -1 for a task that
    is not mapped; ready_s, started_s, ended_s: Unix times, 0 before them; config: its `executor_config`, as text;
    version: of its DAG, 0 where Airflow does not say."""

    id: str
    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    number: int = 1
    state: str = ""
    host: str = ""
    pid: int = 0
    ready_s: float = 0.0
    started_s: float = 0.0
    ended_s: float = 0.0
    pool: str = ""
    slots: int = 1
    note: str = ""
    config: str = ""
    version: int = 0

    @property
    def name(self) -> str:
        """Its task, with the place in a mapped one: `fit[3]`."""
        return self.task_id if self.map_index < 0 else f"{self.task_id}[{self.map_index}]"

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.state in ("", *OPEN)

    @property
    def workload(self) -> str:
        """Its DAG run."""
        return workload_of(self.dag_id, self.run_id)


def read_instances(rest: Rest, place: str = EVERYWHERE, **query: object) -> list[Instance]:
    """Those of a collection that a query chooses. Raises InputError, also for an answer that is not understood."""
    try:
        return [instance_of(row) for row in rest.rows(place, "task_instances", order_by="id", **query)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(rest.url, f"answers in a way that is not known: {type(error).__name__}: {error}") from None


def instance_of(row: dict[str, Any]) -> Instance:
    """A row as Airflow 3 gives it."""
    return Instance(
        id=row["id"],
        dag_id=row["dag_id"],
        run_id=row["dag_run_id"],
        task_id=row["task_id"],
        map_index=int(row["map_index"]),
        number=int(row["try_number"]),
        state=row["state"] or "",
        host=row["hostname"] or "",
        pid=int(row["pid"] or 0),
        ready_s=time_of(row.get("scheduled_when")),
        started_s=time_of(row["start_date"]),
        ended_s=time_of(row["end_date"]),
        pool=row["pool"] or "",
        slots=int(row["pool_slots"]),
        note=row["note"] or "",
        config=row["executor_config"] or "",
        version=int((row.get("dag_version") or {}).get("version_number") or 0),
    )


def run_place(dag_id: str, run_id: str) -> str:
    """Where the REST API has a DAG run."""
    return f"dags/{quoted(dag_id)}/dagRuns/{quoted(run_id)}"


def instances_place(dag_id: str, run_id: str) -> str:
    """Where it has the run's task instances."""
    return f"{run_place(dag_id, run_id)}/taskInstances"


def set_state(rest: Rest, instances: Iterable[Instance], state: str, text: str) -> None:
    """Mark tries as ended, each with a note of why: they are not tried again. state: "" leaves it and only notes."""
    wanted = {"new_state": state} if state else {}
    entities = [
        {
            "dag_id": one.dag_id,
            "dag_run_id": one.run_id,
            "task_id": one.task_id,
            "map_index": one.map_index,
            "note": noted(one.note, text),
            **wanted,
        }
        for one in instances
    ]
    for begin in range(0, len(entities), MOST_AT_ONCE):
        action = {"action": "update", "entities": entities[begin : begin + MOST_AT_ONCE]}
        answer = rest.send("PATCH", EVERYWHERE, {"actions": [action | {"action_on_non_existence": "skip"}]})
        if problems := ((answer or {}).get("update") or {}).get("errors"):
            raise InputError(rest.url, f"does not do it: {problems[0].get('error', problems[0])}")


def clear(rest: Rest, one: Instance, text: str) -> None:
    """Have Airflow end a running try and queue the task again, with all of its retries."""
    task: object = one.task_id if one.map_index < 0 else [one.task_id, one.map_index]
    body = {
        "dry_run": False,
        "dag_run_id": one.run_id,
        "task_ids": [task],
        "only_failed": False,
        "only_running": True,
        "reset_dag_runs": False,
    }
    rest.send("POST", f"dags/{quoted(one.dag_id)}/clearTaskInstances", body)
    set_state(rest, [one], "", text)  # not with it: Airflow 3.2 takes no note there


def fail_run(rest: Rest, dag_id: str, run_id: str, text: str) -> None:
    """Mark a DAG run as failed: Airflow fails its running tasks, and skips those that have not begun."""
    place = run_place(dag_id, run_id)
    run = rest.get(place)
    if run is None:
        raise InputError(workload_of(dag_id, run_id), "is not there any more")
    rest.send("PATCH", place, {"state": "failed", "note": noted(run.get("note") or "", text)})


def noted(note: str, text: str) -> str:
    """A note with a line of EGS at its end; what the user wrote stays, as far as Airflow takes it."""
    line = (SIGN + " ".join(text.split()))[:MOST_NOTE]
    kept = note[: max(0, MOST_NOTE - len(line) - 1)]
    return f"{kept}\n{line}" if kept else line


def own_names() -> tuple[str, str]:
    """What a task that runs on this host may say where it is."""
    return socket.gethostname(), socket.getfqdn()


def was_aborted(note: str) -> bool:
    """Whether an operator has aborted that try with EGS, as its note says."""
    return any(line.startswith(SIGN + ABORTED) for line in note.splitlines())


def time_of(moment: str | None) -> float:
    """Unix time of a moment as the REST API gives it; 0 for none."""
    return datetime.fromisoformat(moment).timestamp() if moment else 0.0


def iso(moment_s: float) -> str:
    """A Unix time as the REST API takes it."""
    return datetime.fromtimestamp(moment_s, UTC).isoformat()
