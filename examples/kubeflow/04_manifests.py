"""What a site needs in its cluster, and what to load ahead for a pipeline, as files for a GitOps repository.

    python examples/kubeflow/04_manifests.py pipeline.yaml
    egs kubeflow manifests pipeline.yaml --profile examples/kubeflow/site.yaml -o gitops

`train` waits for half an hour of `decode`. Before `train` is due, a pod without a GPU pulls its image and reads torch
on a node with GPUs. `preload` says what to load. `expect` replaces a history; such an estimate is uncertain, so the pod
begins early.
"""

import sys

from kfp import compiler, dsl

import egs_core as egs
import egs_kubeflow


@egs_kubeflow.component(base_image="python:3.11", expect="30 min")
def decode(count: int) -> int:
    return count


@egs_kubeflow.component(base_image="pytorch/pytorch:2.9", gpus=1, preload=egs.modules("torch"), expect="2h")
def train(parts: int) -> int:
    return parts


@dsl.pipeline(name="images")
def images(count: int = 4) -> None:
    train(parts=decode(count=count).output)


if __name__ == "__main__":
    compiler.Compiler().compile(images, sys.argv[1])
