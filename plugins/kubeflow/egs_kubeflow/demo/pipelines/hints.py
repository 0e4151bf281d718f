"""The pipeline with hints for EGS: what needs a GPU says so, a training in which part, and both how long they take."""

# mypy: disable-error-code="no-any-return"
# Pipelines return what a task will give, not a value.
# kfp reads the annotations of components: they must not be text, so no `from __future__ import annotations`
from kfp import dsl
from kfp.dsl import Dataset, Input, Model, Output

import egs_core as egs
import egs_kubeflow
from egs_kubeflow.demo.pipelines.native import IMAGE, load, prepare, report
from egs_kubeflow.demo.times import CANDIDATES, DECODE_S, EVALUATE_S, FIT_S, STEPS, WRITE_S

# record=False: what tasks took is in the runner's own log; the record is for containers


@egs_kubeflow.component(
    base_image=IMAGE, install_kfp_package=False, record=False, gpus=1, expect=(DECODE_S, FIT_S, WRITE_S)
)
def train(images: Input[Dataset], start: Input[Model], number: int, factor: float, model: Output[Model]):  # type: ignore[no-untyped-def]  # kfp takes `-> None` for an output
    from egs_kubeflow.demo import work

    decoded = work.decode(images.path, start.path, number, factor)
    with egs.gpu():
        weights = work.fit(decoded, start.path, number, factor)
    work.write(weights, model.path, factor)


@egs_kubeflow.component(base_image=IMAGE, install_kfp_package=False, record=False, gpus=1, expect=EVALUATE_S)
def evaluate(images: Input[Dataset], model: Input[Model], factor: float) -> str:
    from egs_kubeflow.demo import work

    return work.evaluate(images.path, model.path, factor)


@dsl.pipeline(name="digits")
def digits(seed: int = 0, factor: float = 1.0) -> str:
    loaded = load(seed=seed, factor=factor)
    images = prepare(images=loaded.outputs["images"], factor=factor)

    def trained(number: int, start: Model) -> Model:
        task = train(images=images.outputs["training"], start=start, number=number, factor=factor)
        return task.outputs["model"]

    def score(model: Model) -> str:
        return evaluate(images=images.outputs["test"], model=model, factor=factor).output

    model = loaded.outputs["pretrained"]
    for number in range(STEPS):
        model = trained(number, model)
    candidates = [trained(STEPS + number, loaded.outputs["pretrained"]) for number in range(CANDIDATES)]
    return report(scores=[score(each) for each in [model, *candidates]], factor=factor).output
