"""The weights of waiting task instances follow the engine's order, and where no agent hosts the engine what was learned
since they were made: `[egs] refresh_weights`.

Airflow computes a weight once, when it makes a task instance; a DAG run of many hours so waits in yesterday's order.
Nothing public changes a weight, so this writes to Airflow's own table: off unless asked for, only where the schema is
one that it was tried with, only rows that no executor has been given, and only weights that are EGS's own. Whatever
fails is one warning, and the weights from creation stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from egs_airflow import compat, config
from egs_airflow.order.published import current_turn
from egs_airflow.order.weights import weight_of

OPTION = "[egs] refresh_weights"
SCHEMAS = {"d2f4e1b3c5a7": "3.3", "1d6611b6ab7c": "3.2"}
"""Alembic's name of a schema -> the Airflow that has it."""
MOST_ROWS = 1000
"""So many rows are looked at each time, those of the oldest runs first."""


@dataclass
class Refresher:
    """Brings weights up to date every `every_s` seconds, as long as nothing has failed; 0: never."""

    every_s: float
    clock: Callable[[], float] = time.monotonic
    next_s: float = 0.0
    dags: dict[Any, Any] = field(default_factory=dict)

    def tick(self) -> None:
        """Refresh, if it is time. Never raises. Not to be called in a transaction of the scheduler."""
        if not self.every_s or self.clock() < self.next_s:
            return
        self.next_s = self.clock() + self.every_s
        try:
            if problem := why_not():
                self._stop(problem)
            else:
                self._refresh()
        except Exception as error:
            self._stop(f"{type(error).__name__}: {error}")

    def _stop(self, problem: str) -> None:
        self.every_s = 0.0
        config.warn(f"{OPTION}: weights from creation stay: {problem}")

    def _refresh(self) -> None:
        with compat.connect() as connection, connection.begin():
            rows = _waiting(connection)
            versions = {row.dag_version_id for row in rows}
            self.dags = {one: self.dags.get(one) or compat.scheduler_dag(one) for one in versions}
            changed = [
                {"row": row.id, "old": row.priority_weight, "new": new}
                for version, group in groupby(rows, lambda row: row.dag_version_id)
                for row in group
                if (new := _weight(self.dags[version], row)) not in (None, row.priority_weight)
            ]
            _write(connection, changed)


def why_not() -> str:
    """Why weights are not to be written here; empty where they may be."""
    from sqlalchemy import text

    with compat.connect() as connection:
        found = connection.execute(text("SELECT version_num FROM alembic_version")).scalars().all()
    if not set(found) <= SCHEMAS.keys():
        return f"this schema of Airflow's database ({', '.join(found)}) is not one EGS was tried with"
    if compat.has_mutation_hooks_of_others():
        return "a task_instance_mutation_hook of this site sets weights, too"
    return ""


def _weight(dag: Any, row: Any) -> int | None:
    """The weight that a waiting instance is to have; None for one of a DAG that EGS does not order."""
    task: Any = None if dag is None else dag.task_dict.get(row.task_id)
    own = None if task is None else weight_of(task)
    turn = current_turn(row.id) if own is not None else None
    return own if turn is None else turn.weight


def _waiting(connection: Any) -> list[Any]:
    """Task instances of running DAG runs that have not been handed to an executor."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance as TI
    from sqlalchemy import and_, or_, select

    run = and_(DagRun.dag_id == TI.dag_id, DagRun.run_id == TI.run_id)
    columns = (TI.id, TI.task_id, TI.priority_weight, TI.dag_version_id)
    waiting = select(*columns).join(DagRun, run).where(DagRun.state == "running", TI.dag_version_id.is_not(None))
    waits = or_(TI.state.is_(None), TI.state == "scheduled")
    return list(connection.execute(waiting.where(waits).order_by(DagRun.id, TI.dag_version_id).limit(MOST_ROWS)).all())


def _write(connection: Any, changed: Sequence[Mapping[str, Any]]) -> None:
    """Set new weights, except of rows that have changed meanwhile."""
    from airflow.models.taskinstance import TaskInstance as TI
    from sqlalchemy import bindparam, or_, update

    if not changed:
        return
    is_same = (TI.id == bindparam("row")) & (TI.priority_weight == bindparam("old"))
    waits = or_(TI.state.is_(None), TI.state == "scheduled")
    table = TI.__table__
    connection.execute(update(table).where(is_same, waits).values(priority_weight=bindparam("new")), changed)
