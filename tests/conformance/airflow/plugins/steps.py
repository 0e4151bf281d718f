"""A plugin of the tests' Airflow: while the file `steps` is in its home, the scheduler notes there when it looks at DAG
runs, and how many tasks it then queues."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow.plugins_manager import AirflowPlugin


class Steps(AirflowPlugin):  # type: ignore[misc]  # Airflow's types are not read, see pyproject.toml
    """Registers nothing."""

    name = "steps"

    @classmethod
    def on_load(cls, *_: Any, **__: Any) -> None:
        """Have the scheduler of this process note its steps."""
        from airflow.jobs.scheduler_job_runner import SchedulerJobRunner as Runner

        looks, queues = Runner._schedule_all_dag_runs, Runner._critical_section_enqueue_task_instances
        notes = Path(os.environ["AIRFLOW_HOME"], "steps")

        def note(text: str) -> None:
            if notes.exists():
                with notes.open("a") as file:
                    file.write(f"{text}\n")

        def look(self: Any, *args: Any, **kwargs: Any) -> Any:
            note("looks")
            return looks(self, *args, **kwargs)

        def enqueue(self: Any, session: Any) -> Any:
            number = queues(self, session)
            note(f"queues {number}")
            return number

        Runner._schedule_all_dag_runs, Runner._critical_section_enqueue_task_instances = look, enqueue
