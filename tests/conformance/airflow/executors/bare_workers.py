"""An executor of the tests' Airflow: as on a host whose worker image lacks EGS, while the scheduler's has it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from own_interpreter import KeepingInterpreter  # type: ignore[import-not-found]  # a folder of the tests' Airflow


class BareWorkers(KeepingInterpreter):  # type: ignore[misc]  # see the import
    """Each task gets the interpreter BARE_PYTHON, and no PYTHONPATH."""

    def _process_workloads(self, workload_list: Sequence[Any]) -> None:
        own, path = sys.executable, os.environ.pop("PYTHONPATH", "")
        sys.executable = os.environ["BARE_PYTHON"]
        try:
            super()._process_workloads(workload_list)
        finally:
            sys.executable, os.environ["PYTHONPATH"] = own, path
