"""Shards that need each other get their GPU slots together or not at all: none holds a slot while it waits for others.

In airflow.cfg: `[core] executor = egs_airflow.executors.EgsLocalExecutor`, `[egs] mode = on`, `tags = egs-on`,
`pools = gpu=2`. Then trigger `shards`.
"""

import shutil
import tempfile
import time
from pathlib import Path

from airflow.sdk import DAG, task

import egs_core as egs

SHARDS = 2


with DAG("shards", schedule=None, tags=["egs-on"]):

    @task
    def meeting_place() -> str:
        return tempfile.mkdtemp(prefix="shards-")

    @task
    @egs.task(gpus=1, gang="shards")
    def shard(number: int, place: str) -> int:
        (Path(place) / str(number)).touch()
        deadline = time.monotonic() + 60
        while len(list(Path(place).iterdir())) < SHARDS:  # natively it may wait for one that has no slot
            if time.monotonic() > deadline:
                raise TimeoutError("the other shards have not started")
            time.sleep(0.1)
        return 1

    @task
    def total(parts: list[int], place: str) -> int:
        shutil.rmtree(place)
        return sum(parts)

    place = meeting_place()
    total(shard.partial(place=place).expand(number=list(range(SHARDS))), place)
