"""What the gate asks the metadata database: reads only, each bounded by what this executor runs or by a few rows.

The statements name columns of Airflow's models, so they are tried with the versions in `compat.KNOWN_VERSIONS` only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import and_, func, literal_column, select, tuple_

from egs_airflow import config
from egs_airflow.executors.keeping import Claim
from egs_airflow.order.published import Turn, current_turn

MOST_WAITING = 200
"""So many of a pool's waiting tasks are looked at, first in the order first."""


@dataclass(frozen=True)
class Shape:
    """Who comes after whom in one version of a DAG; empty for a DAG that is not chosen."""

    downstream: Mapping[str, Collection[str]] = field(default_factory=dict)

    def upstream(self, task_id: str) -> set[str]:
        """The tasks that the task directly waits for."""
        return {before for before, after in self.downstream.items() if task_id in after}


@dataclass(frozen=True)
class Ready:
    """A task that nothing stands before any more, and that the scheduler has not made ready yet."""

    key: Any
    pool: str
    slots: int
    weight: int


@dataclass(frozen=True)
class End:
    """A task of this executor whose process has told Airflow that it is over; looked: when a scheduler last began to
    look at its run, which may have been before Airflow had written this end."""

    id: Any
    is_success: bool
    looked: datetime | None


def ended(connection: Any, ids: Collection[Any]) -> list[End]:
    """Those of the tasks that run no more; one whose row is gone has not succeeded."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance as TI

    if not ids:
        return []
    join = and_(DagRun.dag_id == TI.dag_id, DagRun.run_id == TI.run_id)
    columns = (TI.id, TI.state, DagRun.last_scheduling_decision)
    rows = connection.execute(select(*columns).join(DagRun, join).where(TI.id.in_(ids))).all()
    gone = [End(one, False, None) for one in ids if one not in {row.id for row in rows}]
    return gone + [
        End(row.id, row.state == "success", row.last_scheduling_decision)
        for row in rows
        if row.state not in ("queued", "running", "scheduled")
    ]


def contended(connection: Any, ids: Collection[Any]) -> set[str]:
    """The pools of these tasks in which others wait for slots."""
    from airflow.models.taskinstance import TaskInstance as TI

    own = TI.__table__.alias()
    mine = select(own.c.pool).where(own.c.id.in_(list(ids)))
    return set(connection.scalars(select(TI.pool).where(TI.state == "scheduled", TI.pool.in_(mine)).distinct()))


def newest_queued_run(connection: Any) -> int:
    """The newest DAG run that no scheduler has begun, as its row's number, which grows; 0 where there is none."""
    from airflow.models.dagrun import DagRun

    # stated in the statement, not beside it: only so databases use Airflow's index of queued runs
    newest = select(func.max(DagRun.id)).where(DagRun.state == literal_column("'queued'"))
    return int(connection.scalar(newest) or 0)


def just_ready(connection: Any, key: Any, shape: Shape) -> list[Ready]:
    """The successors of a task that has succeeded, of which no other predecessor is still to end."""
    from airflow.models.taskinstance import TaskInstance as TI
    from airflow.models.taskinstancekey import TaskInstanceKey
    from airflow.utils.state import State

    after = set(shape.downstream.get(key.task_id, ()))
    names = after.union(*(shape.upstream(task) for task in after))
    columns = (TI.task_id, TI.map_index, TI.state, TI.try_number, TI.pool, TI.pool_slots, TI.priority_weight)
    family = (TI.dag_id == key.dag_id, TI.run_id == key.run_id, TI.task_id.in_(names))
    rows = connection.execute(select(*columns).where(*family)).all()
    open_names = {row.task_id for row in rows if row.state not in State.finished}
    return [
        Ready(
            TaskInstanceKey(key.dag_id, row.task_id, key.run_id, row.try_number + 1, row.map_index),
            row.pool,
            row.pool_slots,
            row.priority_weight or 0,
        )
        for row in rows
        if row.task_id in after and row.state is None and not shape.upstream(row.task_id) & open_names
    ]


def waiting(
    connection: Any,
    pool: str,
    total: float,
    open_slots: int,
    reserve_after_s: float,
    hidden: Collection[tuple[str, str, str]] = (),
) -> list[Claim]:
    """The tasks that wait for slots of a pool, in the scheduler's order, each with the engine's turn, where it has one;
    those for which slots are to be kept are marked: where the engine says so, else large ones that have waited.

    hidden: DAG, run and task of those that the scheduler does not see.
    """
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance as TI
    from airflow.models.taskinstancekey import TaskInstanceKey

    limits = (DagModel.max_active_tasks, DagModel.has_task_concurrency_limits)
    key = (TI.dag_id, TI.task_id, TI.run_id, TI.try_number, TI.map_index)
    query = (
        select(*key, TI.id, TI.pool_slots, TI.priority_weight, TI.scheduled_dttm, *limits)
        .join(DagRun, and_(DagRun.dag_id == TI.dag_id, DagRun.run_id == TI.run_id))
        .join(DagModel, DagModel.dag_id == TI.dag_id)
        .where(TI.pool == pool, TI.state == "scheduled", DagRun.state == "running", ~DagModel.is_paused)
        .order_by(-TI.priority_weight, DagRun.logical_date, TI.map_index)
        .limit(MOST_WAITING)
    )
    if hidden:
        query = query.where(tuple_(TI.dag_id, TI.run_id, TI.task_id).not_in(list(hidden)))
    now, rows = datetime.now(UTC), connection.execute(query).all()
    turns = _turns(connection, rows)
    claims = []
    for number, row in enumerate(rows):
        turn = turns.get(row.id)
        has_waited = waited_s(row.scheduled_dttm, now) >= reserve_after_s if turn is None else turn.keeps
        is_kept_for = has_waited and open_slots < row.pool_slots <= total and _is_free_to_start(connection, row)
        place = (-(row.priority_weight or 0), 0, number)
        reason: Literal["reservation", ""] = "reservation" if is_kept_for else ""
        claims.append(Claim(TaskInstanceKey(*row[: len(key)]), row.pool_slots, place, reason, row.id, turn))
    return claims


def _turns(connection: Any, rows: Sequence[Any]) -> dict[Any, Turn]:
    """The engine's turns of those that nothing but the pool keeps from starting, by their rows' ids: it knows no other
    limit of Airflow's, and nobody is to wait for a task that does not start."""
    known = [(turn, row) for row in rows if (turn := current_turn(row.id)) and not row.has_task_concurrency_limits]
    room = {(row.dag_id, row.run_id): row.max_active_tasks for _, row in known}
    for run, active in active_tasks(connection, room).items() if room else ():
        room[run] -= active
    found = {}
    for turn, row in sorted(known, key=lambda pair: pair[0].rank):
        if room[row.dag_id, row.run_id] > 0:
            room[row.dag_id, row.run_id] -= 1
            found[row.id] = turn
    return found


def active_tasks(connection: Any, runs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """How many tasks of each run are queued or running."""
    from airflow.models.taskinstance import TaskInstance as TI

    of_runs = tuple_(TI.dag_id, TI.run_id).in_(list(runs))
    query = select(TI.dag_id, TI.run_id, func.count()).where(of_runs, TI.state.in_(("queued", "running")))
    return {(dag, run): count for dag, run, count in connection.execute(query.group_by(TI.dag_id, TI.run_id))}


def _is_free_to_start(connection: Any, row: Any) -> bool:
    """Whether nothing but the pool keeps a task of a chosen DAG from starting."""
    from airflow.models.taskinstance import TaskInstance as TI

    if row.has_task_concurrency_limits or not is_chosen(connection, row.dag_id):
        return False
    active = (TI.dag_id == row.dag_id, TI.run_id == row.run_id, TI.state.in_(("queued", "running")))
    return bool(connection.scalar(select(func.count()).select_from(TI).where(*active)) < row.max_active_tasks)


def is_chosen(connection: Any, dag_id: str) -> bool:
    """Whether mode on is for a DAG; its tags are asked for only where they decide."""
    tags = tags_of(connection, dag_id) if config.settings().tags else []
    return config.mode_of(dag_id, tags) == "on"


def tags_of(connection: Any, dag_id: str) -> list[str]:
    """The tags of a DAG."""
    from airflow.models.dag import DagTag

    return list(connection.scalars(select(DagTag.name).where(DagTag.dag_id == dag_id)))


def waited_s(since: datetime | None, now: datetime) -> float:
    """Seconds since then; 0 where nobody knows."""
    return 0.0 if since is None else (now - since).total_seconds()
