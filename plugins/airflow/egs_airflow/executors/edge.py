"""Airflow's EdgeExecutor, with slots kept for whom they were freed.

[core]
executor = egs_airflow.executors.edge.EgsEdgeExecutor

It lives in the scheduler; a worker (`airflow edge worker`) needs neither this class nor this package. Edge workers
take the waiting task of the greatest weight, so what waits for one is in order too.
"""

from __future__ import annotations

from airflow.providers.edge3.executors.edge_executor import EdgeExecutor

from egs_airflow.executors.mixin import KeepsSlots


class EgsEdgeExecutor(KeepsSlots, EdgeExecutor):  # type: ignore[misc]  # Airflow's types are not read
    """`[core] executor = egs_airflow.executors.edge.EgsEdgeExecutor`."""
