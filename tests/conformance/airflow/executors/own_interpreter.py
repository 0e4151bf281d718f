"""An executor of the tests' Airflow: each task gets an interpreter of its own, as on the worker of another host."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from airflow.executors.base_executor import BaseExecutor

from egs_airflow.executors import KeepsSlots


class OwnInterpreter(BaseExecutor):  # type: ignore[misc]  # Airflow's types are not read, see pyproject.toml
    """Starts what workers of other hosts start; its tasks go on when it ends, as there."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.children: dict[Any, subprocess.Popen[bytes]] = {}

    def _process_workloads(self, workload_list: Sequence[Any]) -> None:
        for workload in workload_list:
            del self.queued_tasks[workload.key]
            module = "airflow.sdk.execution_time.execute_workload"
            command = [sys.executable, "-m", module, "--json-string", workload.model_dump_json()]
            self.children[workload.key] = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            self.running.add(workload.key)

    def sync(self) -> None:
        """Tell Airflow of the tasks whose interpreter has ended."""
        for key, child in list(self.children.items()):
            if child.poll() is not None:
                del self.children[key]
                (self.fail if child.returncode else self.success)(key)

    def end(self) -> None:
        """Nothing is waited for."""


class KeepingInterpreter(KeepsSlots, OwnInterpreter):
    """The same, and it keeps slots."""
