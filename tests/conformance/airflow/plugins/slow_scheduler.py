"""A plugin of the tests' Airflow: while the file `slow` is in its home, the scheduler is as one with many DAG runs: it
takes its time between looking which tasks have become ready and handing out slots, and never sleeps."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from airflow.plugins_manager import AirflowPlugin

SLOW_S = 0.6
IDLE_S = 1.0


class SlowScheduler(AirflowPlugin):  # type: ignore[misc]  # Airflow's types are not read, see pyproject.toml
    """Registers nothing."""

    name = "slow_scheduler"

    @classmethod
    def on_load(cls, *_: Any, **__: Any) -> None:
        """Slow the pass of the scheduler of this process down."""
        from airflow.jobs.scheduler_job_runner import SchedulerJobRunner

        original = SchedulerJobRunner._critical_section_enqueue_task_instances
        slow = Path(os.environ["AIRFLOW_HOME"]) / "slow"

        def enqueue(self: Any, session: Any) -> Any:
            is_slow = slow.exists()
            self._scheduler_idle_sleep_time = 0.0 if is_slow else IDLE_S
            if is_slow:
                time.sleep(SLOW_S)
            return original(self, session)

        SchedulerJobRunner._critical_section_enqueue_task_instances = enqueue
