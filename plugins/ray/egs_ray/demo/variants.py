"""The ways to run the same six pipelines.

A variant is a function that submits the pipelines as they arrive and waits for their reports; `variant` registers it
under its name. Ray is started and stopped outside of what is measured, in the same way for all of them.
"""

# mypy: disable-error-code="untyped-decorator"
# Ray's types are not followed (see pyproject.toml), so its decorators have none.

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import ray

from egs_core import digits
from egs_core.errors import InputError
from egs_ray.demo import pipelines as demo
from egs_ray.demo.marks import marking
from egs_ray.session.api import run
from egs_ray.session.session import Options, Session

if TYPE_CHECKING:
    import pandas as pd


DEADLINE_S = 400.0  # several times what the slowest variant takes on two cores
EGS_LOG = "egs.jsonl"  # the session's own run log, in the folder of the marks
HOOK = {"RAY_RUNTIME_ENV_HOOK": "egs_ray.hook", "EGS_MODE": "on"}


class DemoRun(msgspec.Struct, frozen=True):
    """What a variant gives: when each pipeline was submitted (Unix time) and what it reported, by pipeline."""

    submitted: tuple[float, ...]
    reports: tuple[dict[str, Any], ...]


class Variant(msgspec.Struct, frozen=True):
    """One way to run the demo.

    run: called with the folder for the marks. policy, mode: what the run log's header says. split: whether a task that
    is leased its resources gets them phase by phase. environment: variables that are set while Ray runs.
    """

    name: str
    run: Callable[[str], DemoRun]
    policy: str = "native"
    mode: str = "off"
    split: bool = True
    environment: dict[str, str] = {}


VARIANTS: dict[str, Variant] = {}


def variant(name: str, **facts: Any) -> Callable[[Callable[[str], DemoRun]], Callable[[str], DemoRun]]:
    """Register a function as the variant `name`; facts: further fields of `Variant`."""

    def register(function: Callable[[str], DemoRun]) -> Callable[[str], DemoRun]:
        VARIANTS[name] = Variant(name, function, **facts)
        return function

    return register


def find_variant(name: str) -> Variant:
    """The variant of that name, or an InputError that says which there are."""
    if name not in VARIANTS:
        raise InputError("--variant", f"unknown variant {name!r}", f"one of: {', '.join(VARIANTS)}")
    return VARIANTS[name]


def submit_arrivals(submit: Callable[[int], Any]) -> tuple[tuple[float, ...], list[Any]]:
    """Call `submit` with each pipeline at its arrival; gives the times of the calls and what they returned."""
    first = time.time()
    submitted, handles = [], []
    for number in range(demo.PIPELINES):
        time.sleep(max(0.0, first + number * demo.ARRIVAL_S - time.time()))
        submitted.append(time.time())
        handles.append(submit(number))
    return tuple(submitted), handles


@variant("native")
def native(folder: str) -> DemoRun:
    """The pipelines as written, EGS off."""
    return run_with(lambda task, *arguments: task.remote(*arguments), folder)


@variant("tuned")
def tuned(folder: str) -> DemoRun:
    """What an expert does by hand without EGS: training in three Ray tasks, GPU processes kept, the model cached."""
    by_hand = {demo.train: train_by_hand, demo.evaluate: evaluate_by_hand.remote}
    return run_with(lambda task, *arguments: by_hand.get(task, task.remote)(*arguments), folder)


def run_with(call: Callable[..., Any], folder: str) -> DemoRun:
    submitted, refs = submit_arrivals(lambda number: demo.pipeline(call, folder, number))
    return DemoRun(submitted=submitted, reports=tuple(ray.get(refs, timeout=DEADLINE_S)))


@functools.cache
def cached_model() -> digits.Array:
    return demo.load_model()


def train_by_hand(folder: str, pipeline: int, number: int, images: Any) -> Any:
    table = decode_by_hand.remote(folder, pipeline, number, images)
    weights = fit_by_hand.remote(folder, pipeline, number, table)
    return write_by_hand.remote(folder, pipeline, number, weights)


@ray.remote
def decode_by_hand(folder: str, pipeline: int, number: int, images: dict[str, bytes]) -> pd.DataFrame:
    with marking(folder, "train", pipeline, number, part=0) as mark:
        with mark.cold():
            import pandas as pd
        with mark.cpu(demo.DECODE_S):
            return pd.DataFrame(digits.unpack(images["train"]))


@ray.remote(num_gpus=1, num_cpus=0, max_calls=0)
def fit_by_hand(folder: str, pipeline: int, number: int, table: pd.DataFrame) -> digits.Array:
    with marking(folder, "train", pipeline, number, part=1) as mark, mark.held():
        with mark.cold():
            from sklearn.linear_model import SGDClassifier

            model = cached_model()
        with mark.gpu(demo.FIT_S):
            return digits.fit(SGDClassifier(**digits.settings(number)), table, model)


@ray.remote
def write_by_hand(folder: str, pipeline: int, number: int, weights: digits.Array) -> str:
    with marking(folder, "train", pipeline, number, part=2) as mark, mark.cpu(demo.WRITE_S):
        return digits.write(folder, pipeline, number, weights)


@ray.remote(num_gpus=1, num_cpus=0, max_calls=0)
def evaluate_by_hand(folder: str, pipeline: int, images: dict[str, bytes], *paths: str) -> list[dict[str, Any]]:
    with marking(folder, "evaluate", pipeline) as mark, mark.held():
        with mark.cold():
            import pandas as pd
            from sklearn.metrics import accuracy_score

            model = cached_model()
        with mark.gpu(demo.EVALUATE_S):
            table = pd.DataFrame(digits.unpack(images["test"]))
            everything = (digits.centred(model), *map(digits.read, paths))
            return [digits.score(accuracy_score, table, weights) for weights in everything]


def with_egs(folder: str, **options: Any) -> DemoRun:
    """The pipelines as Ray graphs under `egs_ray.run`; its run log and an empty history of its own in `folder`.

    Entering the session waits until Ray has started EGS's processes, as `ray.init` does for Ray's own: both are over
    before the first pipeline is submitted, which is when the clock starts.
    """
    history = f"sqlite:///{folder}/history.sqlite"
    runlog = str(Path(folder) / EGS_LOG)
    with Session(Options(runlog=runlog, history=history, **options)) as session:

        def start(number: int) -> Any:
            graph = demo.pipeline(lambda task, *arguments: task.bind(*arguments), folder, number)
            return run(graph, name="digits", session=session)

        submitted, runs = submit_arrivals(start)
        return DemoRun(submitted=submitted, reports=tuple(one.get(DEADLINE_S) for one in runs))


@variant("egs", policy="egs", mode="on")
def egs_with_hints(folder: str) -> DemoRun:
    """The same tasks with their hints, run by EGS."""
    return with_egs(folder)


@variant("egs-no-preload", policy="egs", mode="on")
def without_preload(folder: str) -> DemoRun:
    """Ablation: nothing is loaded ahead of its task."""
    return with_egs(folder, preload=False)


@variant("egs-no-split", policy="egs", mode="on", split=False)
def without_split(folder: str) -> DemoRun:
    """Ablation: a task holds its GPU from start to end."""
    return with_egs(folder, split=False)


@variant("egs-no-order", policy="fifo", mode="on")
def without_order(folder: str) -> DemoRun:
    """Ablation: first ready, first served."""
    return with_egs(folder, policy="fifo")


@variant("hook", policy="egs", mode="on", environment=HOOK)
def hook_only(folder: str) -> DemoRun:
    """The pipelines as written, with nothing but the hook set from outside."""
    return run_with(lambda task, *arguments: task.remote(*arguments), folder)
