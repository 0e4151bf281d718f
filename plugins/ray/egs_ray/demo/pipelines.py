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

import hashlib
import importlib.util
import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from numpy.typing import NDArray

import egs_core as egs
from egs_core.graph.columns import CPU, GPU
from egs_ray.demo.marks import marking

if TYPE_CHECKING:
    import pandas as pd
    from sklearn.linear_model import SGDClassifier

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

PRETRAINING_IMAGES = 297
TEST_IMAGES = 375
PIXEL_MAX = 16.0

Array = NDArray[np.float64]


@ray.remote
def load(folder: str, pipeline: int) -> Array:
    """The images with their labels, one a row, in the pipeline's own order."""
    with marking(folder, "load", pipeline) as mark, mark.cpu(LOAD_S):
        images = read_digits()[PRETRAINING_IMAGES:]
        return np.random.default_rng(pipeline).permutation(images)


@ray.remote
def preprocess(folder: str, pipeline: int, images: Array) -> dict[str, bytes]:
    """Training and test images, compressed."""
    with marking(folder, "preprocess", pipeline) as mark, mark.cpu(PREPROCESS_S):
        return {"test": pack(images[:TEST_IMAGES]), "train": pack(images[TEST_IMAGES:])}


def load_model() -> Array:
    """A pretrained model: the mean image of each class, found on images that no pipeline sees."""
    start = time.time()
    images = read_digits()[:PRETRAINING_IMAGES]
    labels = images[:, -1]
    model = np.array([images[labels == digit, :-1].mean(axis=0) / PIXEL_MAX for digit in range(10)])
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
            table = pd.DataFrame(unpack(images["train"]))
        with egs.gpu(), mark.held():
            with mark.cold():
                model = egs.loaded(load_model)
            with mark.gpu(FIT_S):
                weights = fit(SGDClassifier(**settings(number)), table, model)
        with mark.cpu(WRITE_S):
            return write(folder, pipeline, number, weights)


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
            table = pd.DataFrame(unpack(images["test"]))
            return [score(accuracy_score, table, weights) for weights in (centred(model), *map(read, paths))]


@ray.remote
def report(folder: str, pipeline: int, scores: list[dict[str, Any]]) -> dict[str, Any]:
    """The pipeline's result: the same in every variant, which the digest of all predictions makes sure."""
    with marking(folder, "report", pipeline) as mark, mark.cpu(REPORT_S):
        accuracies = [entry["accuracy"] for entry in scores[1:]]
        digest = hashlib.sha256("".join(entry["predictions"] for entry in scores).encode()).hexdigest()
        return {
            "pipeline": pipeline,
            "pretrained_accuracy": scores[0]["accuracy"],
            "accuracies": accuracies,
            "best": accuracies.index(max(accuracies)),
            "digest": digest,
        }


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


def read_digits() -> Array:
    """1797 rows of 64 pixels (0 to 16) and a label. Reading the file needs no scikit-learn in the process."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the demo needs scikit-learn: pip install scikit-learn")
    return np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")


def pack(images: Array) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, images=images.astype(np.uint8))
    return buffer.getvalue()


def unpack(packed: bytes) -> Array:
    """Pixels between 0 and 1, and the label in the last column."""
    with np.load(io.BytesIO(packed)) as archive:
        images: Array = archive["images"].astype(np.float64)
    images[:, :-1] /= PIXEL_MAX
    return images


def settings(number: int) -> dict[str, Any]:
    """What differs between the trainings of one pipeline. A fixed number of passes: the same result everywhere."""
    return {"alpha": 10.0 ** -(number + 2), "random_state": number, "max_iter": 20, "tol": None}


def fit(classifier: SGDClassifier, table: pd.DataFrame, model: Array) -> Array:
    """The weights, one row a class with its bias last, of a classifier trained from the pretrained model on."""
    start = centred(model)
    pixels, labels = table.iloc[:, :-1].to_numpy(), table.iloc[:, -1].to_numpy()
    classifier.fit(pixels, labels, coef_init=start[:, :-1], intercept_init=start[:, -1])
    return np.column_stack([classifier.coef_, classifier.intercept_])


def centred(model: Array) -> Array:
    """Nearest mean image as a linear rule: largest x·m - |m|²/2 wins."""
    return np.column_stack([model, -0.5 * (model**2).sum(axis=1)])


def score(accuracy_score: Callable[..., float], table: pd.DataFrame, weights: Array) -> dict[str, Any]:
    pixels, labels = table.iloc[:, :-1].to_numpy(), table.iloc[:, -1].to_numpy()
    predictions = (pixels @ weights[:, :-1].T + weights[:, -1]).argmax(axis=1)
    return {
        "accuracy": round(float(accuracy_score(labels, predictions)), 6),
        "predictions": "".join(map(str, predictions)),
    }


def write(folder: str, pipeline: int, number: int, weights: Array) -> str:
    path = Path(folder) / f"model-{pipeline}-{number}.npy"
    np.save(path, weights)
    return str(path)


def read(path: str) -> Array:
    weights: Array = np.load(path)
    return weights
