"""The work in the demo's pipelines: digits that ship with scikit-learn, told apart by a linear model.

Reading them needs no scikit-learn in the process, so that importing it is what a task does when it needs it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from egs_core.compat import installed_version
from egs_core.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from sklearn.linear_model import SGDClassifier

PRETRAINING_IMAGES = 297
TEST_IMAGES = 375
PIXEL_MAX = 16.0

Array = NDArray[np.float64]


def require_packages() -> None:
    """InputError where what the pipelines import is not installed."""
    for module, package in (("pandas", "pandas"), ("sklearn", "scikit-learn")):
        if not installed_version(package):
            problem = f"the demo's pipelines import {module}, which is not installed"
            raise InputError("egs demo", problem, f"pip install {package}, or 'egs-core[demo]'")


def shuffled(pipeline: int) -> Array:
    """The images with their labels, one a row, in the pipeline's own order."""
    return np.random.default_rng(pipeline).permutation(read_digits()[PRETRAINING_IMAGES:])


def mean_images() -> Array:
    """The pretrained model: the mean image of each class, found on images that no pipeline sees."""
    images = read_digits()[:PRETRAINING_IMAGES]
    labels = images[:, -1]
    return np.array([images[labels == digit, :-1].mean(axis=0) / PIXEL_MAX for digit in range(10)])


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


def report(pipeline: int, scores: list[dict[str, Any]]) -> dict[str, Any]:
    """A pipeline's result, of the pretrained model's score and each trained one's; the digest is of all predictions."""
    accuracies = [entry["accuracy"] for entry in scores[1:]]
    digest = hashlib.sha256("".join(entry["predictions"] for entry in scores).encode()).hexdigest()
    return {
        "pipeline": pipeline,
        "pretrained_accuracy": scores[0]["accuracy"],
        "accuracies": accuracies,
        "best": accuracies.index(max(accuracies)),
        "digest": digest,
    }
