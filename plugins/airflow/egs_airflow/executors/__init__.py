"""Executors that keep a freed slot for the task that it was freed for.

[core]
executor = egs_airflow.executors.EgsLocalExecutor
"""

from __future__ import annotations

from egs_airflow.executors.local import EgsLocalExecutor
from egs_airflow.executors.mixin import KeepsSlots

__all__ = ["EgsLocalExecutor", "KeepsSlots"]
