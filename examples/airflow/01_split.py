"""A mixed task as three Airflow tasks: only `train.fit` takes a slot of the GPU pool.

In airflow.cfg: `[egs] mode = on`, `tags = egs-on`, `pools = gpu=2`. Then trigger `images`.
"""

from airflow.sdk import DAG, task

import egs_core as egs
from egs_airflow.split import split


def decode(seed: int) -> list[float]:
    return [float(seed * n % 7) for n in range(6)]


def fit(images: list[float]) -> float:
    return sum(value * value for value in images)


def write(loss: float) -> str:
    return f"loss {loss:.1f}"


train = split(
    egs.task(gpus=1)(egs.phases(decode, egs.on_gpu(fit), write, name="train")),
    gpu={"retries": 2},  # a failure on the GPU is retried without decoding again
)

with DAG("images", schedule=None, tags=["egs-on"]):

    @task
    def prepare() -> int:
        return 3

    @task
    def report(found: str) -> str:
        return f"report: {found}"

    report(train(prepare()))
