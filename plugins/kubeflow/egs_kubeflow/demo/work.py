"""What the tasks of the demo's pipeline do: a short real computation on images, then a wait to the stated length.

There is no GPU in it: a GPU phase (`mark.gpu`) is emulated on a slot of the runner. Runs in the tasks' processes. Paths
are those of kfp's artifacts; `factor` stretches all lengths.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from egs_core import digits
from egs_kubeflow.demo import times
from egs_kubeflow.replay.marking import marking

PASSES = 60
CLASSES = 10


def load(images: str, pretrained: str, seed: int, factor: float) -> None:
    """The images with their labels, one a row, in an order of the seed; and a model to start from."""
    with marking() as mark, mark.cpu(times.LOAD_S * factor):
        _save(images, digits.shuffled(seed))
        _save(pretrained, digits.centred(digits.mean_images()))


def prepare(images: str, training: str, test: str, factor: float) -> None:
    """Training and test images, compressed."""
    with marking() as mark, mark.cpu(times.PREPARE_S * factor):
        rows = np.load(images)
        Path(test).write_bytes(digits.pack(rows[: digits.TEST_IMAGES]))
        Path(training).write_bytes(digits.pack(rows[digits.TEST_IMAGES :]))


def decode(images: str, start: str, number: int, factor: float) -> digits.Array:
    """The training images in memory: those that the model to start from is least sure of."""
    with marking() as mark, mark.cpu(times.DECODE_S * factor):
        rows = _read(images)
        scores = _with_bias(rows) @ np.load(start).T
        own = scores[np.arange(len(rows)), rows[:, -1].astype(int)]
        hardest = np.argsort(own - scores.max(axis=1), kind="stable")
        return rows[hardest[: len(rows) * (number + 10) // 20]]


def fit(images: digits.Array, start: str, number: int, factor: float) -> digits.Array:
    """The weights of a softmax regression, trained from a model on; what differs between trainings is the rate."""
    with marking() as mark, mark.gpu(times.FIT_S * factor):
        pixels = _with_bias(images)
        wanted = np.eye(CLASSES)[images[:, -1].astype(int)]
        weights: digits.Array = np.load(start)
        for _ in range(PASSES):
            scores = pixels @ weights.T
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            weights = weights - (number + 1) * (shares - wanted).T @ pixels / len(pixels)
        return weights


def write(weights: digits.Array, model: str, factor: float) -> None:
    """The trained model."""
    with marking() as mark, mark.cpu(times.WRITE_S * factor):
        _save(model, weights)


def evaluate(images: str, model: str, factor: float) -> str:
    """How well a model recognises the test images, and a digest of all that it takes them for."""
    with marking() as mark, mark.gpu(times.EVALUATE_S * factor):
        rows, weights = _read(images), np.load(model)
        found = (_with_bias(rows) @ weights.T).argmax(axis=1)
        digest = hashlib.sha256("".join(map(str, found)).encode()).hexdigest()
        return f"{(found == rows[:, -1]).mean():.6f} {digest}"


def report(scores: list[str], factor: float) -> str:
    """The pipeline's result: the same in every variant, which the digests of all predictions make sure."""
    with marking() as mark, mark.cpu(times.REPORT_S * factor):
        accuracies = [float(score.split()[0]) for score in scores]
        return json.dumps({"best": accuracies.index(max(accuracies)), "scores": scores})


def decode_to(images: str, start: str, table: str, number: int, factor: float) -> None:
    """`decode`, for a task of its own."""
    _save(table, decode(images, start, number, factor))


def fit_to(table: str, start: str, weights: str, number: int, factor: float) -> None:
    """`fit`, for a task of its own."""
    _save(weights, fit(np.load(table), start, number, factor))


def write_to(weights: str, model: str, factor: float) -> None:
    """`write`, for a task of its own."""
    write(np.load(weights), model, factor)


def _with_bias(rows: digits.Array) -> digits.Array:
    """The pixels of images, without their labels, and a constant."""
    return np.column_stack([rows[:, :-1], np.ones(len(rows))])


def _read(packed: str) -> digits.Array:
    return digits.unpack(Path(packed).read_bytes())


def _save(path: str, values: Any) -> None:
    """As a file of that very name: numpy would add an ending."""
    with open(path, "wb") as file:
        np.save(file, values)
