"""The pipeline as an expert tunes it by hand without EGS: each training in three tasks, of which one asks for a GPU."""

# mypy: disable-error-code="no-any-return"
# Pipelines return what a task will give, not a value.
# kfp reads the annotations of components: they must not be text, so no `from __future__ import annotations`
from kfp import dsl
from kfp.dsl import Dataset, Input, Model, Output

from egs_kubeflow.demo.pipelines.native import GPU, IMAGE, evaluate, load, prepare, report
from egs_kubeflow.demo.times import CANDIDATES, STEPS


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def decode(images: Input[Dataset], start: Input[Model], number: int, factor: float, table: Output[Dataset]):  # type: ignore[no-untyped-def]  # kfp takes `-> None` for an output
    from egs_kubeflow.demo import work

    work.decode_to(images.path, start.path, table.path, number, factor)


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def fit(table: Input[Dataset], start: Input[Model], number: int, factor: float, weights: Output[Model]):  # type: ignore[no-untyped-def]  # as above
    from egs_kubeflow.demo import work

    work.fit_to(table.path, start.path, weights.path, number, factor)


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def write(weights: Input[Model], factor: float, model: Output[Model]):  # type: ignore[no-untyped-def]  # as above
    from egs_kubeflow.demo import work

    work.write_to(weights.path, model.path, factor)


@dsl.pipeline(name="digits")
def digits(seed: int = 0, factor: float = 1.0) -> str:
    loaded = load(seed=seed, factor=factor)
    images = prepare(images=loaded.outputs["images"], factor=factor)

    def trained(number: int, start: Model) -> Model:
        table = decode(images=images.outputs["training"], start=start, number=number, factor=factor)
        fitted = fit(table=table.outputs["table"], start=start, number=number, factor=factor)
        fitted.set_accelerator_type(GPU).set_accelerator_limit(1)
        return write(weights=fitted.outputs["weights"], factor=factor).outputs["model"]

    def score(model: Model) -> str:
        task = evaluate(images=images.outputs["test"], model=model, factor=factor)
        return task.set_accelerator_type(GPU).set_accelerator_limit(1).output

    model = loaded.outputs["pretrained"]
    for number in range(STEPS):
        model = trained(number, model)
    candidates = [trained(STEPS + number, loaded.outputs["pretrained"]) for number in range(CANDIDATES)]
    return report(scores=[score(each) for each in [model, *candidates]], factor=factor).output
