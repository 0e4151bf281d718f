"""Image classification on the digits that ship with scikit-learn, as a user of Kubeflow writes it.

                  ┌─ train ─── train-2 ─── train-3 ─── evaluate ─┐       each from the model of the one before
load ── prepare ──┤                                              ├── report
                  └─ train-4 … train-9, each with an evaluate ───┘       candidates
"""

# mypy: disable-error-code="no-any-return"
# Pipelines return what a task will give, not a value.
# kfp reads the annotations of components: they must not be text, so no `from __future__ import annotations`
from kfp import dsl
from kfp.dsl import Dataset, Input, Model, Output

from egs_kubeflow.demo.times import CANDIDATES, STEPS

IMAGE = "python:3.12"
GPU = "nvidia.com/gpu"


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def load(seed: int, factor: float, images: Output[Dataset], pretrained: Output[Model]):  # type: ignore[no-untyped-def]  # kfp takes `-> None` for an output
    from egs_kubeflow.demo import work

    work.load(images.path, pretrained.path, seed, factor)


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def prepare(images: Input[Dataset], factor: float, training: Output[Dataset], test: Output[Dataset]):  # type: ignore[no-untyped-def]  # as above
    from egs_kubeflow.demo import work

    work.prepare(images.path, training.path, test.path, factor)


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def train(images: Input[Dataset], start: Input[Model], number: int, factor: float, model: Output[Model]):  # type: ignore[no-untyped-def]  # as above
    from egs_kubeflow.demo import work

    decoded = work.decode(images.path, start.path, number, factor)
    weights = work.fit(decoded, start.path, number, factor)
    work.write(weights, model.path, factor)


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def evaluate(images: Input[Dataset], model: Input[Model], factor: float) -> str:
    from egs_kubeflow.demo import work

    return work.evaluate(images.path, model.path, factor)


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def report(scores: list[str], factor: float) -> str:
    from egs_kubeflow.demo import work

    return work.report(scores, factor)


@dsl.pipeline(name="digits")
def digits(seed: int = 0, factor: float = 1.0) -> str:
    loaded = load(seed=seed, factor=factor)
    images = prepare(images=loaded.outputs["images"], factor=factor)

    def trained(number: int, start: Model) -> Model:
        task = train(images=images.outputs["training"], start=start, number=number, factor=factor)
        return task.set_accelerator_type(GPU).set_accelerator_limit(1).outputs["model"]

    def score(model: Model) -> str:
        task = evaluate(images=images.outputs["test"], model=model, factor=factor)
        return task.set_accelerator_type(GPU).set_accelerator_limit(1).output

    model = loaded.outputs["pretrained"]
    for number in range(STEPS):
        model = trained(number, model)
    candidates = [trained(STEPS + number, loaded.outputs["pretrained"]) for number in range(CANDIDATES)]
    return report(scores=[score(each) for each in [model, *candidates]], factor=factor).output
