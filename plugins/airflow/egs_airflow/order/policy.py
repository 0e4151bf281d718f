"""Where DAG files are parsed: a task that says it needs GPUs goes into the GPU pool, with one slot a GPU.

Only where the user has left the default pool and one slot. What is set here is stored with the DAG and depends on the
task and the configuration alone, so the same file gives the same DAG at each parse.

A task that needs more GPUs than the pool has goes there too: Airflow then holds it as `scheduled`, says so in the
scheduler's log, and starts it as soon as somebody makes the pool larger. In the default pool it would run at once,
beside all that the pool is to keep apart.
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
    from egs_airflow.order.pools import gpu_pool, why_no_pool

    pool = gpu_pool()
    if pool is None:
        if problem := why_no_pool():
            config.warn(problem)
        return
    if slots > pool.slots:
        held = "Airflow keeps it scheduled until the pool is larger"
        config.warn(f"{place}: needs {slots} slots, pool {pool.name} is configured with {pool.slots}: {held}")
    task.pool = pool.name
    task.pool_slots = slots
