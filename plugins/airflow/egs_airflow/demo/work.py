"""What the tasks of the demo's pipelines do: a short real computation on images, then a wait to the stated length.

There is no GPU in it: a GPU phase (`mark.gpu`) is emulated on a slot of a pool. Libraries and the model are imported
where they are used, inside the tasks, as one does in Airflow. Tasks hand each other the folder of their pipeline, and
leave their results there.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from egs_airflow.demo import times
from egs_airflow.replay.play import marking
from egs_core import digits

REPORT = "report.json"


def load(folder: str, pipeline: str) -> str:
    """The images with their labels, one a row, in the pipeline's own order."""
    with marking() as mark, mark.cpu(times.LOAD_S):
        Path(folder).mkdir(parents=True, exist_ok=True)
        np.save(f"{folder}/images.npy", digits.shuffled(int(pipeline)))
    return folder


def preprocess(folder: str) -> str:
    """Training and test images, compressed."""
    with marking() as mark, mark.cpu(times.PREPROCESS_S):
        images = np.load(f"{folder}/images.npy")
        Path(f"{folder}/test").write_bytes(digits.pack(images[: digits.TEST_IMAGES]))
        Path(f"{folder}/train").write_bytes(digits.pack(images[digits.TEST_IMAGES :]))
    return folder


def train(folder: str, number: int) -> str:
    """Fit one classifier, starting from the pretrained model, and write it to a file; gives the file's path."""
    with marking() as mark:
        with mark.cold():
            import pandas as pd
            from sklearn.linear_model import SGDClassifier
        with mark.cpu(times.DECODE_S):
            table = pd.DataFrame(_images(folder, "train"))
        with mark.cold():
            from egs_airflow.demo.model import MODEL
        with mark.gpu(times.FIT_S):
            weights = digits.fit(SGDClassifier(**digits.settings(number)), table, MODEL)
        with mark.cpu(times.WRITE_S):
            return digits.write(folder, 0, number, weights)


# The same training in three functions, each with what it needs only.


def decode(folder: str, number: int) -> list[Any]:
    """Leave the table of a training in a file."""
    with marking() as mark:
        with mark.cold():
            import pandas as pd
        with mark.cpu(times.DECODE_S):
            Path(f"{folder}/table-{number}").write_bytes(pickle.dumps(pd.DataFrame(_images(folder, "train"))))
    return [folder, number]


def fit(training: list[Any]) -> list[Any]:
    """Leave the weights of a training in a file."""
    folder, number = training
    with marking() as mark:
        with mark.cold():
            from sklearn.linear_model import SGDClassifier

            from egs_airflow.demo.model import MODEL
        with mark.gpu(times.FIT_S):
            table = pickle.loads(Path(f"{folder}/table-{number}").read_bytes())
            np.save(
                f"{folder}/weights-{number}.npy", digits.fit(SGDClassifier(**digits.settings(number)), table, MODEL)
            )
    return training


def write(training: list[Any]) -> str:
    """Write the trained classifier to its file; gives the file's path."""
    folder, number = training
    with marking() as mark, mark.cpu(times.WRITE_S):
        return digits.write(folder, 0, number, np.load(f"{folder}/weights-{number}.npy"))


def evaluate(folder: str, paths: list[str]) -> list[dict[str, Any]]:
    """How well the pretrained model and each trained one recognise the test images."""
    with marking() as mark:
        with mark.cold():
            import pandas as pd
            from sklearn.metrics import accuracy_score

            from egs_airflow.demo.model import MODEL
        with mark.gpu(times.EVALUATE_S):
            table = pd.DataFrame(_images(folder, "test"))
            everything = (digits.centred(MODEL), *map(digits.read, paths))
            return [digits.score(accuracy_score, table, weights) for weights in everything]


def report(folder: str, pipeline: str, scores: list[dict[str, Any]]) -> None:
    """The pipeline's result: the same in every variant, which the digest of all predictions makes sure."""
    with marking() as mark, mark.cpu(times.REPORT_S):
        Path(f"{folder}/{REPORT}").write_text(json.dumps(digits.report(int(pipeline), scores)))


def _images(folder: str, name: str) -> digits.Array:
    return digits.unpack(Path(f"{folder}/{name}").read_bytes())
