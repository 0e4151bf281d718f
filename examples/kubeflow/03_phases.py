"""A mixed component as three tasks: only `fit` asks for a GPU, and holds one.

    python examples/kubeflow/03_phases.py

The declaration is the same as for Ray and Airflow. In the compiled pipeline `train` is a small pipeline of its phases;
where it runs, EGS need not be installed. Each phase is called with the result of the one before.
"""

import tempfile
from typing import Any

from kfp import dsl

import egs_core as egs
import egs_kubeflow
from egs_core.runlog.io import read_run
from egs_core.runlog.records import Started
from egs_kubeflow.run import run


def decode(seed: int) -> list[int]:
    return [seed * n % 7 for n in range(6)]


def fit(images: list[int]) -> tuple[int, str]:
    import os

    return sum(value * value for value in images), os.environ["CUDA_VISIBLE_DEVICES"]


def write(fitted: Any) -> str:
    loss, device = fitted
    return f"loss {loss}, found on GPU {device}"


train = egs_kubeflow.component(
    egs.task(gpus=1, cpus=2, max_runtime="2h")(egs.phases(decode, egs.on_gpu(fit), write, name="train")),
    base_image="python:3.11",
    install_kfp_package=False,
)


@dsl.pipeline(name="images")
def images(seed: int = 3) -> str:
    result: str = train(seed=seed).output
    return result


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        result = run(images, cpus=2, gpus=1, emulate_gpus=True, root=folder)
    for record in read_run(result.runlog).records:
        if isinstance(record, Started):
            print(f"{record.task:14} GPUs held: {record.gpus:g}")
    print(result.outputs["Output"])
