"""Where DAG files are parsed: a task that says it needs GPUs goes into the GPU pool, with one slot a GPU.

Only where the user has left the default pool and one slot. What is set here is stored with the DAG and depends on the
task and the configuration alone, so the same file gives the same DAG at each parse.
"""

from __future__ import annotations

import math
from typing import Any

from egs_airflow import config

DEFAULT_POOL = "default_pool"


def apply_to_task(task: Any) -> None:
    """Put a task of a chosen DAG into the GPU pool, if it states GPUs and the user has chosen no pool.

    Raises InputError where a task states two different numbers.
    """
    if task.pool != DEFAULT_POOL or task.pool_slots != 1:
        return
    from egs_airflow.convert.needs import needs_of

    place = f"{task.dag_id}.{task.task_id}"
    slots = math.ceil(needs_of(task, place).gpus or 0.0)
    if not slots:
        return
    from egs_airflow.order.pools import gpu_pool

    pool = gpu_pool()
    if pool is None:
        return
    if slots > pool.slots:
        config.warn(f"{place}: pool {pool.name} has {pool.slots} slots, not the {slots} it needs: left where it is")
        return
    task.pool = pool.name
    task.pool_slots = slots
