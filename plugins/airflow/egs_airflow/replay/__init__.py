"""Workload files as DAGs on a real local Airflow, and from what Airflow and the tasks tell of them to a run log."""
