"""Runs a pipeline on this machine, in parallel. The GPU slot is emulated, so no GPU is needed.

    python examples/kubeflow/02_run.py

The same for a compiled pipeline: `egs kubeflow run pipeline.yaml --cpus 3 --gpus 1 --emulate-gpus --arg count=3`.
kfp's own local runner fails on this pipeline: it lacks exit handlers, retries and collected results.
"""

import tempfile

from kfp import dsl

from egs_kubeflow.run import run


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def shards(count: int) -> list[int]:
    return list(range(count))


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def decode(shard: int, meet: str) -> int:
    """Ends only when three shards are being decoded at the same time."""
    import pathlib
    import time

    pathlib.Path(meet, f"shard-{shard}").touch()
    until = time.monotonic() + 60
    while len(list(pathlib.Path(meet).glob("shard-*"))) < 3:
        if time.monotonic() > until:
            raise TimeoutError("the others have not started")
        time.sleep(0.01)
    return shard * 10


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def train(parts: list[int], meet: str) -> str:
    """Fails at first, as on a node that is taken away."""
    import os
    import pathlib

    mark = pathlib.Path(meet, "tried")
    if not mark.exists():
        mark.touch()
        raise RuntimeError("the node is gone")
    return f"loss {sum(parts)} on device {os.environ['CUDA_VISIBLE_DEVICES']}"


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def clean(status: dsl.PipelineTaskFinalStatus) -> str:
    return f"cleaned after {status.state}"


@dsl.pipeline(name="images")
def images(meet: str, count: int = 3) -> None:
    with dsl.ExitHandler(clean()):
        with dsl.ParallelFor(shards(count=count).output) as shard:
            part = decode(shard=shard, meet=meet)
        trained = train(parts=dsl.Collected(part.output), meet=meet).set_retry(2)
        trained.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        result = run(images, {"meet": folder}, cpus=3, gpus=1, emulate_gpus=True, root=folder)
    for task in result.tasks:
        print(f"{task.task:36} {task.state}, attempts: {task.attempts}")
    outputs = {task.task: task.outputs["Output"] for task in result.tasks}
    print(outputs["exit-handler-1.train"], "and", outputs["clean"])
