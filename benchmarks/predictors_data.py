"""Series of durations for `benchmarks.predictors`: three public ones, and synthetic ones with stated rules."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from egs_core.errors import InputError
from egs_core.graph.columns import Shape
from egs_core.graph.load import load_workload
from egs_core.predict import Features, Signature, signature_of

SEED = 1


class Observation(msgspec.Struct, frozen=True):
    """One phase in arrival order. Its signature is the category of the baseline."""

    signature: Signature
    features: Features
    seconds: float
    at_s: float | None = None  # when it arrived; None where the data does not say


def workflows(folder: Path) -> list[Observation]:
    """WfInstances: files by name, tasks as listed. Category: the program; run: the file; size: bytes of its inputs."""
    paths = sorted((folder / "workflows").glob("*.json"))
    if not paths:
        raise InputError(str(folder / "workflows"), "has no *.json", "WfFormat files of WfInstances")
    found = []
    for path in paths:
        graph = load_workload(path).graph
        for task in range(graph.n_tasks):
            seconds = graph.phase_duration_s[graph.phase_offsets[task]]
            size = float(sum(graph.file_sizes[file] for file in graph.inputs.get(task, ())))
            if seconds is not None:
                found.append(
                    Observation(signature_of("", graph.names[task]), Features(path.stem, input_bytes=size), seconds)
                )
    return found


def philly(folder: Path) -> list[Observation]:
    """Philly's jobs. Category: the virtual cluster and the number of GPUs; label: the time of day."""
    found = []
    for row in _table(folder / "gpu" / "philly_jobs.csv"):
        at = datetime.fromisoformat(row["timestamp"])
        cluster, gpus = row["cluster"], row["num_gpus"]
        signature = signature_of("", cluster, 0, Shape(0, 1000 * int(gpus)))
        features = Features(labels=(f"{at.hour // 4}",))
        found.append(Observation(signature, features, float(row["duration"]), at.timestamp()))
    return found


def genai(folder: Path) -> list[Observation]:
    """Image requests. Category: the checkpoint model; numbers: steps, images, length of the prompt."""
    found = []
    for row in _table(folder / "gpu" / "genai_lora_requests.csv"):
        seconds = _number(row["exec_time_seconds"])
        if seconds < 0:
            continue
        names = ("num_inference_steps", "num_images_per_prompt", "prompt_length")
        numbers = tuple(max(0.0, _number(row[name])) for name in names)
        labels = (row["groupId"], row["predict_type"], row["num_lora"])
        signature = signature_of("", row["checkpoint_model_version_id"])
        features = Features("", labels, numbers)
        found.append(Observation(signature, features, seconds, datetime.fromisoformat(row["gmt_create"]).timestamp()))
    return found


def _table(path: Path) -> Iterator[dict[str, str]]:
    try:
        with path.open(newline="") as stream:
            yield from csv.DictReader(stream)
    except OSError as error:
        raise InputError(
            str(path), error.strerror or "cannot be read", "set EGS_DATA to the folder of the data"
        ) from None


def _number(text: str) -> float:
    return float(text) if text else -1.0


def plain(task: str) -> Signature:
    return signature_of("", task)


def stationary(count: int = 4000) -> list[Observation]:
    """SYNTHETIC: five categories, each log-normal with a median of 5 to 80 s and sigma 0.5."""
    rng = random.Random(SEED)
    names = [rng.randrange(5) for _ in range(count)]
    return [
        Observation(plain(f"c{c}"), Features(), 5 * 2**c * rng.lognormvariate(0, 0.5), float(i))
        for i, c in enumerate(names)
    ]


def shifting(count: int = 4000) -> list[Observation]:
    """SYNTHETIC: three categories, log-normal with sigma 0.2; all are 3 times as long in every second 500."""
    rng = random.Random(SEED)
    found = []
    for i in range(count):
        level = 10.0 * (3 if i // 500 % 2 else 1)
        found.append(
            Observation(plain(f"c{i % 3}"), Features(), level * (1 + i % 3) * rng.lognormvariate(0, 0.2), float(i))
        )
    return found


def sized(count: int = 4000) -> list[Observation]:
    """SYNTHETIC: seconds = (bytes / 1 MB)^0.8, sigma 0.2; bytes log-uniform from 1 MB to 10 GB; two categories."""
    rng = random.Random(SEED)
    found = []
    for i in range(count):
        size = 1e6 * 10 ** rng.uniform(0, 4)
        seconds = (1 + i % 2) * (size / 1e6) ** 0.8 * rng.lognormvariate(0, 0.2)
        found.append(Observation(plain(f"c{i % 2}"), Features(input_bytes=size), seconds, float(i)))
    return found


def runs(count: int = 80) -> list[Observation]:
    """SYNTHETIC: runs of 5 categories with 10 tasks each; sigma 0.1 within a run, each run's own factor sigma 0.5."""
    rng = random.Random(SEED)
    found: list[Observation] = []
    for run in range(count):
        factor = rng.lognormvariate(0, 0.5)
        for c in [c for c in range(5) for _ in range(10)]:
            seconds = factor * 3.0 * 2**c * rng.lognormvariate(0, 0.1)
            found.append(Observation(plain(f"c{c}"), Features(f"run{run}"), seconds, float(len(found))))
    return found


PUBLIC: dict[str, Callable[[Path], list[Observation]]] = {"wfinstances": workflows, "philly": philly, "genai": genai}
SYNTHETIC: dict[str, Callable[[], list[Observation]]] = {
    "synthetic stationary": stationary,
    "synthetic shifts": shifting,
    "synthetic sizes": sized,
    "synthetic runs": runs,
}
