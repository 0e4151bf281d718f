"""Six image-classification pipelines on the digits that ship with scikit-learn, as a Ray user writes them.

                    ┌─ train 0 ─┐
                    ├─ train 1 ─┤
    load ─ preprocess           evaluate ─ report
                    ├─ train 2 ─┤
                    └─ train 3 ─┘

A phase is a short real computation on the images, then a wait to its stated length. There is no GPU in it: a GPU
phase (`mark.gpu`) is emulated on one of Ray's logical devices. Libraries are imported where they are used, inside
the tasks, as one does in Ray; `mark` only notes the times (see `marks`). Without EGS, `egs.task` and `egs.gpu` do
nothing and `egs.loaded` is a cache.
"""

# mypy: disable-error-code="untyped-decorator"
# Ray's types are not followed (see pyproject.toml), so its decorators have none.

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray

import egs_core as egs
from egs_core import digits
from egs_core.graph.columns import CPU, GPU
from egs_ray.demo.marks import marking

PIPELINES = 6
TRAININGS = 4
ARRIVAL_S = 1.0
CPUS = 4
GPUS = 2
EMULATED_GPUS = True

LOAD_S = 1.0
PREPROCESS_S = 1.0
DECODE_S = 1.0
FIT_S = 1.5
WRITE_S = 0.3
EVALUATE_S = 0.7
REPORT_S = 0.3
MODEL_LOAD_S = 1.0


@ray.remote
def load(folder: str, pipeline: int) -> digits.Array:
    """The images with their labels, one a row, in the pipeline's own order."""
    with marking(folder, "load", pipeline) as mark, mark.cpu(LOAD_S):
        return digits.shuffled(pipeline)


@ray.remote
def preprocess(folder: str, pipeline: int, images: digits.Array) -> dict[str, bytes]:
    """Training and test images, compressed."""
    with marking(folder, "preprocess", pipeline) as mark, mark.cpu(PREPROCESS_S):
        return {"test": digits.pack(images[: digits.TEST_IMAGES]), "train": digits.pack(images[digits.TEST_IMAGES :])}


def load_model() -> digits.Array:
    """A pretrained model: the mean image of each class, found on images that no pipeline sees."""
    start = time.time()
    model = digits.mean_images()
    time.sleep(max(0.0, start + MODEL_LOAD_S - time.time()))
    return model


# What training and evaluation both need: the same list, so that a process that is warm for one is warm for the other.
PRELOAD = (egs.modules("pandas", "sklearn.linear_model", "sklearn.metrics"), egs.call(load_model))


@ray.remote(num_gpus=1)
@egs.task(preload=PRELOAD, gpu_cpus=0, expect=(DECODE_S, FIT_S, WRITE_S))
def train(folder: str, pipeline: int, number: int, images: dict[str, bytes]) -> str:
    """Fit one classifier, starting from the pretrained model, and write it to a file; gives the file's path."""
    with marking(folder, "train", pipeline, number) as mark:
        with mark.cold():
            import pandas as pd
            from sklearn.linear_model import SGDClassifier
        with mark.cpu(DECODE_S):
            table = pd.DataFrame(digits.unpack(images["train"]))
        with egs.gpu(), mark.held():
            with mark.cold():
                model = egs.loaded(load_model)
            with mark.gpu(FIT_S):
                weights = digits.fit(SGDClassifier(**digits.settings(number)), table, model)
        with mark.cpu(WRITE_S):
            return digits.write(folder, pipeline, number, weights)


@ray.remote(num_gpus=1)
@egs.task(preload=PRELOAD, gpu_cpus=0, expect=EVALUATE_S)
def evaluate(folder: str, pipeline: int, images: dict[str, bytes], *paths: str) -> list[dict[str, Any]]:
    """How well the pretrained model and each trained one recognise the test images."""
    with marking(folder, "evaluate", pipeline) as mark:
        with mark.cold():
            import pandas as pd
            from sklearn.metrics import accuracy_score

            model = egs.loaded(load_model)
        with mark.gpu(EVALUATE_S):
            table = pd.DataFrame(digits.unpack(images["test"]))
            return [
                digits.score(accuracy_score, table, weights)
                for weights in (digits.centred(model), *map(digits.read, paths))
            ]


@ray.remote
def report(folder: str, pipeline: int, scores: list[dict[str, Any]]) -> dict[str, Any]:
    """The pipeline's result: the same in every variant, which the digest of all predictions makes sure."""
    with marking(folder, "report", pipeline) as mark, mark.cpu(REPORT_S):
        return digits.report(pipeline, scores)


def pipeline(call: Callable[..., Any], folder: str, number: int) -> Any:
    """Wire a pipeline. `call(task, *arguments)` is `task.remote(*arguments)`, or for a DAG `task.bind(*arguments)`."""
    images = call(preprocess, folder, number, call(load, folder, number))
    trained = [call(train, folder, number, training, images) for training in range(TRAININGS)]
    return call(report, folder, number, call(evaluate, folder, number, images, *trained))


# What each task is made of, as declared: name, and its phases' kinds and lengths in seconds.
STAGES: dict[Any, tuple[str, tuple[tuple[int, float], ...]]] = {
    load: ("load", ((CPU, LOAD_S),)),
    preprocess: ("preprocess", ((CPU, PREPROCESS_S),)),
    train: ("train", ((CPU, DECODE_S), (GPU, FIT_S), (CPU, WRITE_S))),
    evaluate: ("evaluate", ((GPU, EVALUATE_S),)),
    report: ("report", ((CPU, REPORT_S),)),
}
