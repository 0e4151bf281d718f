"""One DAG run as a page shows it: its unfinished tasks in the order in which they go, and why each of them waits."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from importlib import import_module
from itertools import islice
from typing import Any

import msgspec

from egs_airflow import config
from egs_airflow.executors.gate import EVENT
from egs_airflow.executors.mixin import KeepsSlots, is_on
from egs_airflow.order.durations import current_durations
from egs_airflow.order.published import Turn, reader
from egs_airflow.order.weights import guess_s, remaining_path_s, usual_s, weight
from egs_airflow.rest import Rest, quoted
from egs_airflow.view.gate import gate_says
from egs_airflow.view.waits import ACTIVE, Dag, Pool, Task, why
from egs_core.errors import InputError

ENDED = ("success", "failed", "skipped", "upstream_failed", "removed")
MOST_TASKS = 5000
MOST_OTHERS = 500
MOST_EVENTS = 500


class Row(msgspec.Struct):
    """A task that has not ended. expected_s, path_s: of itself, and of the longest path from its start to an end;
    learned: whether the first is known of earlier runs; egs_weight: what EGS gives it in mode on."""

    task: Task
    expected_s: float
    path_s: float
    learned: bool
    egs_weight: int
    why: str


class Kept(msgspec.Struct):
    """A time in which slots were kept for a task."""

    task: str
    pool: str
    slots: int
    seconds: float
    reason: str


class RunView(msgspec.Struct):
    """What a page shows. counts: tasks by state; learned: how many tasks of the DAG have a known duration, of tasks;
    slots: whether the schedulers keep slots now, "" where they are not to."""

    dag_id: str
    run_id: str
    state: str
    mode: str
    counts: dict[str, int]
    rows: list[Row]
    kept: list[Kept]
    learned: int
    tasks: int
    slots: str = ""


def newest_run(rest: Rest, dag_id: str) -> str:
    """The run that was made last; "" for a DAG without one."""
    answer = rest.get(f"dags/{quoted(dag_id)}/dagRuns", limit=1, order_by="-id")
    if answer is None:
        raise InputError(dag_id, "is not there, or no longer")
    return next((run["dag_run_id"] for run in answer["dag_runs"]), "")


def read_run(rest: Rest, dag_id: str, run_id: str) -> RunView:
    """All that the page of a run says. Raises InputError for what is not there, or not for whoever asks."""
    place = f"dags/{quoted(dag_id)}"
    run = rest.get(f"{place}/dagRuns/{quoted(run_id)}")
    details, answer = rest.get(f"{place}/details"), rest.get(f"{place}/tasks")
    if run is None or details is None or answer is None:
        raise InputError(f"{dag_id} {run_id}", "is not there, or no longer")
    below = {row["task_id"]: list(row["downstream_task_ids"] or ()) for row in answer["tasks"]}
    found = rest.rows(f"{place}/dagRuns/{quoted(run_id)}/taskInstances", "task_instances", order_by="id")
    tasks = [_task(row) for row in islice(found, MOST_TASKS)]
    mode = config.mode_of(dag_id, [tag["name"] for tag in details.get("tags") or ()])
    limits = (details["is_paused"], details["max_active_tasks"])
    dag = Dag(dag_id, *limits, run["state"] or "", _parents(below), mode == "on" and keeps_slots())
    return RunView(
        dag_id=dag_id,
        run_id=run_id,
        state=dag.run_state,
        mode=mode,
        counts=_counts(tasks),
        rows=_rows(rest, dag, tasks, below),
        kept=read_kept(rest, dag_id=dag_id, run_id=run_id),
        learned=sum(task in current_durations().get(dag_id, {}) for task in below),
        tasks=len(below),
        slots=gate_says(rest) if dag.keeps else "",
    )


def keeps_slots() -> bool:
    """Whether the configured executor is one of ours, or has our mixin."""
    from airflow.configuration import conf

    for named in conf.get("core", "executor", fallback="").split(","):
        module, _, name = named.rpartition(":")[2].strip().rpartition(".")
        try:
            if module and issubclass(getattr(import_module(module), name), KeepsSlots):
                return is_on()
        except (ImportError, AttributeError, TypeError):  # the scheduler says what is wrong with it
            continue
    return False


def _task(row: Mapping[str, Any]) -> Task:
    return Task(
        dag_id=row["dag_id"],
        run_id=row["dag_run_id"],
        task_id=row["task_id"],
        map_index=int(row["map_index"]),
        state=row["state"] or "",
        pool=row["pool"] or "",
        slots=int(row["pool_slots"]),
        weight=int(row["priority_weight"] or 0),
        id=row["id"],
    )


def _parents(below: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    parents: dict[str, list[str]] = defaultdict(list)
    for task, after in below.items():
        for child in after:
            parents[child].append(task)
    return parents


def _counts(tasks: Iterable[Task]) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for task in tasks:
        counts[task.state or "none"] += 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _rows(rest: Rest, dag: Dag, tasks: list[Task], below: Mapping[str, list[str]]) -> list[Row]:
    """Unfinished tasks, those that run first, then in the order in which they get slots."""
    durations = current_durations()
    known = durations.get(dag.dag_id, {})
    known_s = {task: known[task] for task in below if task in known}
    guess = guess_s(below, known_s, usual_s(durations))
    path_s = remaining_path_s(below, {task: known_s.get(task, guess) for task in below})
    unfinished = [task for task in tasks if task.state not in ENDED]
    pools, others = _pools(rest), _others(rest, unfinished)
    turns = engine_turns()

    def place(task: Task) -> tuple[Any, ...]:
        rank = turns[task.id].rank if task.id in turns else len(turns)
        return task.state not in ACTIVE, rank, -task.weight, task.task_id, task.map_index

    ordered = sorted(unfinished, key=place)
    return [
        Row(
            task,
            known_s.get(task.task_id, guess),
            path_s.get(task.task_id, 0.0),
            task.task_id in known_s,
            weight(path_s.get(task.task_id, 0.0), bool(below.get(task.task_id))),
            f"{why(task, dag, tasks, pools, others)}{_engine_says(turns.get(task.id), task)}",
        )
        for task in ordered
    ]


def engine_turns() -> Mapping[str, Turn]:
    """What the engine says of tasks that wait, where an agent hosts it."""
    try:
        reader().tick()
    except Exception as error:  # the page does without
        config.warn(f"the engine's order cannot be read: {type(error).__name__}: {error}")
    return reader().current()


def _engine_says(turn: Turn | None, task: Task) -> str:
    return f" · engine: {turn.why}" if turn is not None and turn.why and task.state == "scheduled" else ""


def _pools(rest: Rest) -> dict[str, Pool]:
    """The pools that the asker may see."""
    try:
        rows = list(rest.rows("pools", "pools"))
    except InputError:  # not for this user: the page does without
        return {}
    return {row["name"]: Pool(row["name"], int(row["slots"]), int(row["open_slots"])) for row in rows}


def _others(rest: Rest, unfinished: list[Task]) -> list[Task]:
    """Who holds or waits for slots of the pools that tasks of this run wait for, as far as the asker may see them."""
    names = sorted({task.pool for task in unfinished if task.state == "scheduled"})
    if not names:
        return []
    states = [*ACTIVE, "deferred", "scheduled"]
    found = rest.rows("dags/~/dagRuns/~/taskInstances", "task_instances", state=states, pool=names, order_by="id")
    return [_task(row) for row in islice(found, MOST_OTHERS)]


def read_kept(rest: Rest, **where: str) -> list[Kept]:
    """When slots were kept, from Airflow's log of events, where the asker may see that."""
    try:
        rows = list(islice(rest.rows("eventLogs", "event_logs", event=EVENT, **where), MOST_EVENTS))
    except InputError:
        return []
    found = []
    for row in rows:
        told = json.loads(row["extra"] or "{}")
        place = (row["task_id"] or "", told.get("pool", ""), told.get("slots", 0))
        found.append(Kept(*place, told.get("seconds", 0.0), told.get("reason", "")))
    return found
