"""Airflow's CeleryExecutor, with slots kept for whom they were freed.

[core]
executor = egs_airflow.executors.celery.EgsCeleryExecutor

It lives in the scheduler; a worker needs neither this class nor this package. Celery's own queue knows no weights: what
is sent there beyond the workers' processes starts in the order in which it was sent, so let `[core] parallelism` be no
more than these, and the rest waits where weights count.
"""

from __future__ import annotations

from airflow.providers.celery.executors.celery_executor import CeleryExecutor

from egs_airflow.executors.mixin import KeepsSlots


class EgsCeleryExecutor(KeepsSlots, CeleryExecutor):  # type: ignore[misc]  # Airflow's types are not read
    """`[core] executor = egs_airflow.executors.celery.EgsCeleryExecutor`."""
