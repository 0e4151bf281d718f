"""Components with hints, phases and GPU blocks, and pipelines of them."""

# mypy: disable-error-code="no-any-return"
# Pipelines return what a task will give, not a value.
# kfp reads the annotations of components: they must not be text, so no `from __future__ import annotations`
from typing import Any, NamedTuple

from kfp import dsl
from kfp.dsl import Dataset, Input, Model, Output

import egs_core as egs
from egs_kubeflow.components import component

KFP: dict[str, Any] = {"base_image": "python:3.12", "install_kfp_package": False}


@component(gpus=1, cpus=2, memory="1GiB", max_runtime="2h", gang="shards", **KFP)
def train(epochs: int) -> int:
    """Its tasks ask for what it says."""
    return epochs * 2


@component(record=False, **KFP)
def unrecorded(epochs: int) -> int:
    return epochs


@component(**KFP)
def prints() -> None:
    print("of the author")
    print("no end of the line", end="", flush=True)


@dsl.pipeline
def printing() -> None:
    prints()


def decode(path: str) -> list[Any]:
    import json

    return [json.loads(path), {"seen", "once"}]


def fit(batch):  # type: ignore[no-untyped-def]  # a phase in between needs no annotations, and kfp copies what it has
    batch[0]["loss"] = 0.5 * batch[0]["epochs"]
    return batch


def write(batch: Any) -> float:
    assert batch[1] == {"seen", "once"}
    return batch[0]["loss"]


phased = component(egs.task(gpus=1, expect=[1, 2, 3])(egs.phases(decode, egs.on_gpu(fit), write, name="phased")), **KFP)
whole = component(egs.task(gpus=1, split=False)(egs.phases(decode, egs.on_gpu(fit), write, name="whole")), **KFP)


def parse(rows: int) -> list[float]:
    return [float(i) for i in range(rows)]


def measure(values: list[float]) -> NamedTuple("Measured", [("total", float), ("kind", str)]):  # type: ignore[valid-type]  # how kfp has it
    largest = max(map(lambda value: value, values))  # noqa: C417  # what is tested: scopes in a phase
    return sum(v for v in values), f"up to {largest}"


measured = component(egs.task(gpus=1)(egs.phases(parse, egs.on_gpu(measure), name="measured")), **KFP)


@component(gpus=1, cpus=2, **KFP)
def blocked(source: Input[Dataset], model: Output[Model], scale: float = 2.0) -> str:
    """A CPU part, the GPU part and a CPU part; the model is written in the last one."""
    import json

    def text_of(value: object) -> str:
        return json.dumps(value)

    with open(source.path) as file:
        batch = json.load(file)
    device = "none"
    with egs.gpu(cpus=1):
        import os

        device = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
        batch = [value * scale for value in batch]
    with open(model.path, "w") as out:
        out.write(text_of(batch))
    return f"trained on {device}"


@component(gpus=0, **KFP)
def on_cpu(value: int) -> int:
    """Says that it needs no GPU: its block is only a stretch of it."""
    with egs.gpu():
        value += 1
    return value


@component(**KFP)
def say(total: float, kind: str) -> str:
    return f"{total} {kind}"


@component(**KFP)
def make(values: list[int], out: Output[Dataset]) -> None:
    import json

    with open(out.path, "w") as file:
        json.dump(values, file)


@component(**KFP)
def read(model: Input[Model], said: str) -> str:
    with open(model.path) as file:
        return f"{said}: {file.read()}"


@dsl.pipeline
def all_kinds() -> str:
    """The block's pipeline between a maker and a reader of artifacts."""
    made = make(values=[1, 2])
    done = blocked(source=made.outputs["out"])
    return read(model=done.outputs["model"], said=done.outputs["Output"]).output


@dsl.pipeline
def of_phases(path: str = '{"epochs": 3}') -> float:
    return phased(path=path).output


@dsl.pipeline
def of_named_outputs(rows: int = 4) -> str:
    found = measured(rows=rows)
    return say(total=found.outputs["total"], kind=found.outputs["kind"]).output


@dsl.pipeline
def in_one(path: str = '{"epochs": 3}') -> float:
    return whole(path=path).output


@dsl.pipeline
def without_gpu() -> int:
    return on_cpu(value=1).output


@dsl.pipeline
def hinted(epochs: int = 1) -> int:
    first = train(epochs=epochs)
    second = train(epochs=epochs)
    second.set_cpu_limit("3")
    return unrecorded(epochs=first.output).output
