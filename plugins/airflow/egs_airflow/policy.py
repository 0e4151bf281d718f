"""Airflow's cluster policies (entry point `airflow.policy`): for each task where DAG files are parsed, and for each pod
that a task gets, where it is made.

In `off` and `observe` they do nothing: what a policy changes is stored with the DAG and makes a new version of it.
"""

from __future__ import annotations

from typing import Any

from airflow.policies import hookimpl

from egs_airflow import config


@hookimpl  # type: ignore[untyped-decorator]  # Airflow's types are not read, see pyproject.toml
def task_policy(task: Any) -> None:
    """Put a task of a DAG that mode on is for into its pool, and note its limits. What fails leaves it as it is."""
    try:
        dag = task.dag
        if config.mode_of(dag.dag_id, dag.tags) != "on":
            return
        from egs_airflow import compat
        from egs_airflow.agent.declare import declare
        from egs_airflow.order.policy import apply_to_task

        apply_to_task(task)
        declare(task)
        if not compat.reads_for_a_task():
            from egs_airflow.kept_hints import warn_of_unkept

            warn_of_unkept(task)
    except BaseException as error:  # anything raised here would keep the DAG file from being parsed
        if isinstance(error, KeyboardInterrupt):
            raise
        config.warn(f"tasks keep what they were written with: {type(error).__name__}: {error}")


@hookimpl  # type: ignore[untyped-decorator]  # Airflow's types are not read, see pyproject.toml
def pod_mutation_hook(pod: Any) -> None:
    """Let the pod of a task say which task it is for, and how long that is expected to take. What fails leaves it."""
    try:
        from egs_airflow.pods import mark_pod

        mark_pod(pod)
    except BaseException as error:  # anything raised here would fail the task
        if isinstance(error, KeyboardInterrupt):
            raise
        config.warn(f"pods say nothing of their tasks: {type(error).__name__}: {error}")
