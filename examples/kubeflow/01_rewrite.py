"""A pipeline written for a site: the GPU step goes to nodes with GPUs, all other steps stay off them.

    python examples/kubeflow/01_rewrite.py pipeline.yaml
    egs kubeflow compile pipeline.yaml --profile examples/kubeflow/site.yaml --diff -o for-site.yaml

The pipeline is plain kfp, without EGS. What its author has set (the selector of `publish`) is not changed.
"""

import sys

from kfp import compiler, dsl, kubernetes


@dsl.component(base_image="python:3.11")
def shards(count: int) -> list[int]:
    return list(range(count))


@dsl.component(base_image="python:3.11")
def decode(shard: int) -> int:
    return shard * 10


@dsl.component(base_image="python:3.11")
def train(parts: list[int]) -> int:
    return sum(parts)


@dsl.component(base_image="python:3.11")
def publish(loss: int) -> None:
    print("published", loss)


@dsl.pipeline(name="images")
def images(count: int = 4) -> None:
    with dsl.ParallelFor(shards(count=count).output) as shard:
        part = decode(shard=shard)
    trained = train(parts=dsl.Collected(part.output))
    trained.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(1).set_retry(2)
    kubernetes.add_node_selector(publish(loss=trained.output), "pool", "edge")


if __name__ == "__main__":
    compiler.Compiler().compile(images, sys.argv[1])
