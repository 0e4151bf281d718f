"""A plugin of the tests' Airflow: holds a pass of the scheduler between its look at which tasks have become ready and
its handing out of slots, until tasks have ended. What happens to many busy schedulers now and then happens for sure.

    test        hold_pass: which tasks ──────── sees pass_held, lets the tasks end ────────
    scheduler       looks ── pass_held ── waits ─────────────────────── they have ended ── hands out slots
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from airflow.plugins_manager import AirflowPlugin

LONGEST_S = 300.0


class HeldPass(AirflowPlugin):  # type: ignore[misc]  # Airflow's types are not read, see pyproject.toml
    """Registers nothing."""

    name = "held_pass"

    @classmethod
    def on_load(cls, *_: Any, **__: Any) -> None:
        """Put the wait into the scheduler of this process."""
        from airflow.jobs.scheduler_job_runner import SchedulerJobRunner

        original = SchedulerJobRunner._critical_section_enqueue_task_instances
        home = Path(os.environ["AIRFLOW_HOME"])

        def enqueue(self: Any, session: Any) -> Any:
            if (home / "hold_pass").exists():
                _hold(home)
            return original(self, session)

        SchedulerJobRunner._critical_section_enqueue_task_instances = enqueue


def _hold(home: Path) -> None:
    """Until all tasks that the file names (DAG, run, task) have succeeded; but not for ever."""
    names = json.loads((home / "hold_pass").read_text())
    (home / "pass_held").touch()
    end_s = time.monotonic() + LONGEST_S
    while not all(_has_succeeded(*name) for name in names) and time.monotonic() < end_s:
        time.sleep(0.05)
    (home / "hold_pass").unlink()
    (home / "pass_held").unlink()


def _has_succeeded(dag: str, run: str, task: str) -> bool:
    from airflow import settings
    from airflow.models.taskinstance import TaskInstance as TI
    from sqlalchemy import select

    with settings.engine.connect() as connection:
        wanted = (TI.dag_id == dag, TI.run_id == run, TI.task_id == task, TI.state == "success")
        return connection.scalar(select(TI.id).where(*wanted)) is not None
