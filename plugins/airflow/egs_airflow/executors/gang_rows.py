"""What is asked of the metadata database about gangs: reads only, each bounded by what waits in the scheduler.

The statements name columns of Airflow's models, so they are tried with the versions in `compat.KNOWN_VERSIONS` only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from graphlib import CycleError, TopologicalSorter
from typing import Any

from sqlalchemy import and_, func, select, tuple_

from egs_airflow.executors.reading import active_tasks

WAITS = frozenset({None, "scheduled", "up_for_retry"})
"""States of a member that has yet to begin, or to begin again."""

OVER = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
"""States of a member that nobody waits for any more. In any other it is under way."""

GangName = tuple[str, str, str]
"""DAG, run and gang."""


@dataclass(frozen=True)
class Members:
    """Instances of one task that are in a gang and in the same state. key: Airflow's, of the first; slots: of all;
    weight: of the heaviest; scheduled: when the last of them became ready."""

    key: Any
    state: str | None
    pool: str
    slots: int
    weight: int
    scheduled: datetime | None
    count: int = 1


@dataclass(frozen=True)
class Company:
    """A gang of one DAG run as it is now. waiting: members that have yet to begin; is_joined: others are under way.

    may_run: the run goes on; most_active: tasks of it that may be active at once; active: that are.
    """

    name: GangName
    tasks: frozenset[str]
    waiting: Sequence[Members]
    is_joined: bool
    may_run: bool
    most_active: int
    active: int

    @property
    def size(self) -> int:
        """How many are to begin."""
        return sum(members.count for members in self.waiting)

    @property
    def is_whole(self) -> bool:
        """Whether all that are to begin have become ready."""
        return all(members.state == "scheduled" for members in self.waiting)

    @property
    def needs(self) -> dict[str, int]:
        """Slots that it takes at once, by pool."""
        needs: dict[str, int] = defaultdict(int)
        for members in self.waiting:
            needs[members.pool] += members.slots
        return dict(needs)


def scheduled_runs(connection: Any) -> list[tuple[Any, str, str]]:
    """DAG version, DAG and run of all that waits for slots."""
    from airflow.models.taskinstance import TaskInstance as TI

    columns = (TI.dag_version_id, TI.dag_id, TI.run_id)
    return [tuple(row) for row in connection.execute(select(*columns).where(TI.state == "scheduled").distinct())]


def scheduled_versions(connection: Any) -> list[tuple[Any, str]]:
    """DAG version and DAG of all that waits for slots."""
    from airflow.models.taskinstance import TaskInstance as TI

    query = select(TI.dag_version_id, TI.dag_id).where(TI.state == "scheduled").distinct()
    return [tuple(row) for row in connection.execute(query)]


def companies(connection: Any, gang_of: Mapping[tuple[str, str], Mapping[str, str]]) -> list[Company]:
    """The gangs of these runs. gang_of: by DAG and run, then by task, its gang."""
    if not gang_of:
        return []
    found: dict[GangName, list[Any]] = defaultdict(list)
    for row in connection.execute(_rows_of((*run, task) for run, gangs in gang_of.items() for task in gangs)):
        found[row.dag_id, row.run_id, gang_of[row.dag_id, row.run_id][row.task_id]].append(row)
    active = active_tasks(connection, gang_of)
    return [_company(name, rows, active.get(name[:2], 0)) for name, rows in found.items()]


def _rows_of(places: Iterable[tuple[str, str, str]]) -> Any:
    """A row for all instances of a task that are alike: a mapped gang may be large, and is asked for in each pass."""
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance as TI

    alike = (TI.dag_id, TI.task_id, TI.run_id, TI.state, TI.pool)
    run = (DagRun.state.label("run_state"), DagModel.is_paused, DagModel.max_active_tasks)
    all_of_them = (
        func.min(TI.try_number).label("try_number"),
        func.min(TI.map_index).label("map_index"),
        func.sum(TI.pool_slots).label("slots"),
        func.max(TI.priority_weight).label("weight"),
        func.max(TI.scheduled_dttm).label("scheduled"),
        func.count().label("instances"),
    )
    return (
        select(*alike, *run, *all_of_them)
        .join(DagRun, and_(DagRun.dag_id == TI.dag_id, DagRun.run_id == TI.run_id))
        .join(DagModel, DagModel.dag_id == TI.dag_id)
        .where(tuple_(TI.dag_id, TI.run_id, TI.task_id).in_(list(places)))
        .group_by(*alike, DagRun.state, DagModel.is_paused, DagModel.max_active_tasks)
        .order_by(TI.task_id, TI.state)
    )


def _company(name: GangName, rows: Sequence[Any], active: int) -> Company:
    return Company(
        name,
        frozenset(row.task_id for row in rows),
        [_members(row) for row in rows if row.state in WAITS],
        is_joined=any(row.state not in WAITS and row.state not in OVER for row in rows),
        may_run=rows[0].run_state == "running" and not rows[0].is_paused,
        most_active=rows[0].max_active_tasks,
        active=active,
    )


def _members(row: Any) -> Members:
    from airflow.models.taskinstancekey import TaskInstanceKey

    key = TaskInstanceKey(row.dag_id, row.task_id, row.run_id, row.try_number, row.map_index)
    return Members(key, row.state, row.pool, int(row.slots), row.weight or 0, row.scheduled, row.instances)


def criterion(
    hidden: Collection[tuple[str, str, str]],
    only: Collection[tuple[str, str, str]],
    floor: float | None,
    behind: Collection[Any] = (),
) -> Any:
    """What the scheduler may see of what waits, as a condition; None: all. Each one is DAG, run and task.

    hidden: not these; only: these and nothing else, where there are any; floor: only what weighs more; behind: not the
    instances with these ids.
    """
    from airflow.models.taskinstance import TaskInstance as TI

    place = tuple_(TI.dag_id, TI.run_id, TI.task_id)
    if only:
        return place.in_(list(only))
    parts = [place.not_in(list(hidden))] if hidden else []
    parts += [TI.priority_weight > floor] if floor is not None else []
    parts += [TI.id.not_in(list(behind))] if behind else []
    return and_(*parts) if parts else None


def gangs_in_cycle(downstream: Mapping[str, Collection[str]], gang_of: Mapping[str, str]) -> set[str]:
    """Gangs that wait for themselves or for each other, directly or through other tasks: they could never begin."""
    found: set[str] = set()
    while True:
        left = {task: gang for task, gang in gang_of.items() if gang not in found}
        above: dict[tuple[str, str], set[tuple[str, str]]] = defaultdict(set)
        for task, after in downstream.items():
            for child in after:
                above[_unit(child, left)].add(_unit(task, left))
        try:
            TopologicalSorter(above).prepare()
        except CycleError as error:
            new = {gang for kind, gang in error.args[1] if kind == "gang"}
            if not new:  # a cycle of single tasks, which Airflow refuses
                return found
            found |= new
        else:
            return found


def _unit(task: str, gang_of: Mapping[str, str]) -> tuple[str, str]:
    """The gang of a task, or the task itself."""
    return ("gang", gang_of[task]) if task in gang_of else ("task", task)
