"""Compiled pipelines become workload graphs: every construct of kfp, compiled here by kfp itself."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kfp import compiler, dsl, kubernetes

from egs_core.cli.app import run
from egs_core.errors import InputError
from egs_core.graph.columns import CPU, GPU
from egs_core.hints import TaskHints, call, files, modules
from egs_kubeflow.convert.documents import Documents, documents_of, dump_documents, load_documents, parse_documents
from egs_kubeflow.convert.flatten import MOST_ENDS, Loop
from egs_kubeflow.convert.hints import ANNOTATION, decode_hints, encode_hints
from egs_kubeflow.convert.pipeline import Converted, convert

IMAGE = "python:3.11"


@dsl.component(base_image=IMAGE)
def make(x: int = 1) -> int:
    return x


@dsl.component(base_image=IMAGE)
def names() -> list[str]:
    return ["a", "b"]


@dsl.component(base_image=IMAGE)
def size() -> str:
    return "4"


@dsl.component(base_image=IMAGE)
def use(x: int) -> int:
    return x + 1


@dsl.component(base_image=IMAGE)
def total(xs: list[int]) -> int:
    return sum(xs)


@dsl.component(base_image=IMAGE)
def write(out: dsl.Output[dsl.Dataset]) -> None:
    Path(out.path).write_text("rows")


@dsl.component(base_image=IMAGE)
def read(data: dsl.Input[dsl.Dataset]) -> None:
    print(data.path)


@dsl.component(base_image=IMAGE)
def clean(status: dsl.PipelineTaskFinalStatus) -> None:
    print(status.state)


def edges(converted: Converted) -> set[tuple[str, str]]:
    """Each edge as the ids of its two tasks."""
    ids = converted.graph.ids
    return {(ids[up], ids[down]) for down, parents in enumerate(converted.graph.parents) for up in parents}


def facts(converted: Converted, task: str) -> Any:
    """The facts of a task."""
    return converted.facts[converted.graph.ids.index(task)]


def test_all_kinds_of_links_are_edges() -> None:
    """Results, artifacts and plain order: an edge each, and no other."""

    @dsl.pipeline(name="links")
    def links() -> None:
        first = make()
        use(x=first.output)
        data = write()
        data.after(first)
        read(data=data.outputs["out"])

    converted = convert(links)
    assert edges(converted) == {("make", "use"), ("make", "write"), ("write", "read")}
    assert converted.name == "links"


def test_a_link_that_only_the_inputs_know_is_an_edge() -> None:
    """What a compiler left out of dependentTasks is still waited for."""

    @dsl.pipeline(name="links")
    def links() -> None:
        use(x=make().output)

    documents = documents_of(links)
    del documents.pipeline["root"]["dag"]["tasks"]["use"]["dependentTasks"]
    assert edges(convert(documents)) == {("make", "use")}


def test_a_volume_that_another_task_names_is_an_edge() -> None:
    """A platform document's reference to a task's result counts as a link."""

    @dsl.pipeline(name="volumes")
    def volumes() -> None:
        claim = kubernetes.CreatePVC(
            pvc_name_suffix="-data", access_modes=["ReadWriteOnce"], size="1Gi", storage_class_name="fast"
        )
        kubernetes.mount_pvc(use(x=1), pvc_name=claim.outputs["name"], mount_path="/data")

    documents = documents_of(volumes)
    documents.pipeline["root"]["dag"]["tasks"]["use"].pop("dependentTasks", None)
    assert edges(convert(documents)) == {("createpvc", "use")}


def test_nested_dags_are_flat_and_their_tasks_know_their_stage() -> None:
    """Who waits for a DAG waits for its last tasks; its first tasks wait for what the DAG waits for."""

    @dsl.pipeline(name="inner")
    def inner(x: int) -> int:
        return use(x=use(x=x).output).output  # type: ignore[no-any-return]  # kfp is not typed

    @dsl.pipeline(name="outer")
    def outer() -> None:
        use(x=inner(x=make().output).output)

    converted = convert(outer)
    assert converted.graph.ids == ["make", "inner.use", "inner.use-2", "use"]
    assert edges(converted) == {("make", "inner.use"), ("inner.use", "inner.use-2"), ("inner.use-2", "use")}
    assert [converted.graph.options_of(task).stage for task in range(4)] == ["", "inner", "inner", ""]
    assert converted.graph.names == ["make", "use", "use", "use"]


def test_loops_have_a_width_where_it_is_written() -> None:
    """Constants and arguments with a default give a width; a task's result gives none."""

    @dsl.pipeline(name="loops")
    def loops(given: list = [1, 2]) -> None:  # type: ignore[type-arg]  # noqa: B006  # as kfp's users write it
        with dsl.ParallelFor([1, 2, 3], parallelism=2) as x:
            use(x=x)
        with dsl.ParallelFor(given) as x:
            use(x=x)
        with dsl.ParallelFor(names().output):
            make()

    converted = convert(loops)
    found = {task: facts(converted, task).loops for task in converted.graph.ids if "." in task}
    assert found == {
        "for-loop-2.use": (Loop("for-loop-2", 3, 2),),
        "for-loop-3.use-2": (Loop("for-loop-3", 2, 0, ("given",)),),
        "for-loop-4.make": (Loop("for-loop-4", None, 0),),
    }
    assert facts(convert(loops, {"given": [1] * 5}), "for-loop-3.use-2").width == 5


def test_a_loop_over_parts_of_items_has_the_width_that_all_parts_have() -> None:
    """Nested lists of one length give a width; of several lengths, none."""

    @dsl.pipeline(name="parts")
    def parts() -> None:
        with dsl.ParallelFor([{"a": [1, 2], "b": [1]}, {"a": [3, 4], "b": [1, 2]}]) as item:
            with dsl.ParallelFor(item.a) as x:
                use(x=x)
            with dsl.ParallelFor(item.b) as x:
                use(x=x)

    converted = convert(parts)
    assert [facts.width for facts in converted.facts] == [4, None]


def test_conditions_exit_handlers_and_collected_results_are_kept() -> None:
    """Branches carry their conditions, a clean-up runs after failures, and a fan-in waits for its loop."""

    @dsl.pipeline(name="control")
    def control() -> None:
        done = clean()
        with dsl.ExitHandler(done):
            coin = make()
            with dsl.If(coin.output == 1):
                heads = use(x=1)
            with dsl.Else():
                tails = use(x=2)
            use(x=dsl.OneOf(heads.output, tails.output))
            with dsl.ParallelFor([1, 2]) as x:
                each = use(x=x)
            total(xs=dsl.Collected(each.output))

    converted = convert(control)
    inside = "exit-handler-1."
    branches = {task for task in converted.graph.ids if facts(converted, task).conditions}
    assert branches == {
        f"{inside}condition-branches-2.condition-3.use",
        f"{inside}condition-branches-2.condition-4.use-2",
    }
    assert {(task, f"{inside}use-3") for task in branches} < edges(converted)
    assert (f"{inside}for-loop-6.use-4", f"{inside}total") in edges(converted)
    assert facts(converted, "clean").after_failure
    assert {up for up, down in edges(converted) if down == "clean"} == {f"{inside}use-3", f"{inside}total"}
    assert not facts(converted, f"{inside}total").after_failure


def test_importers_hold_nothing_and_retries_count() -> None:
    """An importer is a task that takes no room; `set_retry` is the task's number of retries."""

    @dsl.pipeline(name="import")
    def imports() -> None:
        data = dsl.importer(artifact_uri="gs://bucket/file", artifact_class=dsl.Dataset)
        read(data=data.output).set_retry(num_retries=3).set_caching_options(False)

    converted = convert(imports)
    graph = converted.graph
    assert [facts.kind for facts in converted.facts] == ["importer", "container"]
    assert graph.shapes[graph.phase_shape[0]].cpu_milli == 1
    assert graph.options_of(1).retries == 3
    assert [facts.caching for facts in converted.facts] == [True, False]


def test_resources_are_read_as_numbers_and_as_texts() -> None:
    """Requests before limits, texts before numbers; an accelerator makes a GPU phase."""

    @dsl.pipeline(name="resources")
    def resources() -> None:
        make().set_cpu_request("500m").set_cpu_limit("2").set_memory_limit("1536Mi")
        use(x=1).set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(2)

    documents = documents_of(resources)
    texts = convert(documents)
    for executor in documents.pipeline["deploymentSpec"]["executors"].values():
        stated = executor["container"]["resources"]
        for key in [key for key in stated if key.startswith("resource")]:
            del stated[key]
        stated.get("accelerator", {}).pop("resourceType", None)
        stated.get("accelerator", {}).pop("resourceCount", None)
    numbers = convert(documents)
    for converted in (texts, numbers):
        shapes = [converted.graph.shapes[n] for n in converted.graph.phase_shape]
        assert shapes[0].cpu_milli == 500
        assert shapes[0].memory_bytes == pytest.approx(1.5 * 2**30, rel=1e-6)
        assert shapes[1].gpu_milli == 2000
        assert converted.graph.phase_kind == [CPU, GPU]
        assert facts(converted, "use").needs.accelerator == "nvidia.com/gpu"


def test_resources_follow_the_pipelines_arguments() -> None:
    """A placeholder becomes the argument's value, through nested pipelines too; what a task makes is unknown."""

    @dsl.pipeline(name="inner")
    def inner(cpu: str) -> None:
        make().set_cpu_limit(cpu)

    @dsl.pipeline(name="sized")
    def sized(cpu: str = "3", memory: str = "2G", gpus: str = "1") -> None:
        inner(cpu=cpu)
        task = use(x=1).set_memory_limit(memory)
        task.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(gpus)
        make().set_cpu_limit(size().output)

    converted = convert(sized)
    assert facts(converted, "inner.make").needs.cpus == 3
    assert facts(converted, "use").needs.memory_bytes == 2_000_000_000
    assert facts(converted, "use").needs.gpus == 1
    assert facts(converted, "make").needs.unknown == ("cpus",)
    assert facts(convert(sized, {"cpu": "8", "gpus": "4"}), "inner.make").needs.cpus == 8
    assert facts(convert(sized, {"cpu": "8", "gpus": "4"}), "use").needs.gpus == 4
    with pytest.raises(InputError, match=r"has no argument 'cpus' \(did you mean 'cpu'"):
        convert(sized, {"cpus": "8"})


@pytest.mark.proves("kubeflow run", "stage")
def test_hints_travel_as_an_annotation() -> None:
    """Hints say what the executor does not: GPUs, seconds, stage, gang, limits."""
    hints = TaskHints(gpus=2.0, expect_s=(30.0,), stage="train", priority=5, max_runtime_s=60.0)

    @dsl.pipeline(name="hinted")
    def hinted() -> None:
        kubernetes.add_pod_annotation(make(), ANNOTATION, encode_hints(hints))

    converted = convert(hinted)
    graph = converted.graph
    assert (graph.shapes[0].gpu_milli, graph.phase_duration_s) == (2000, [30.0])
    options = graph.options_of(0)
    assert (options.stage, options.priority, options.max_runtime_s) == ("train", 5, 60.0)


def test_hints_are_read_as_they_were_written() -> None:
    """Every hint survives the annotation but functions to preload; a wrong one is named."""
    hints = TaskHints(gpus=0.5, cpus=2.0, gang="g", expect_s=(1.0, 2.0), flavors=("a100",), split=True)
    loaded = replace(hints, preload=(modules("torch", "numpy"), files("model.pt")))
    assert decode_hints(encode_hints(replace(loaded, preload=(*loaded.preload, call(lambda: 1)))), "task 'x'") == loaded
    assert decode_hints(encode_hints(hints), "task 'x'") == hints
    assert encode_hints(TaskHints()) == "{}"
    for text in ('{"gpu": 1}', '{"gpus": "many"}', "[]", "{", '{"preload": []}', '{"preload": {"modules": ["a b"]}}'):
        with pytest.raises(InputError, match=r"task 'x': egs.io/hints"):
            decode_hints(text, "task 'x'")


def test_a_wide_dag_before_a_wide_dag_has_few_edges() -> None:
    """A join stands between two DAGs of many tasks each, instead of an edge for each pair."""
    wide = MOST_ENDS + 1

    @dsl.pipeline(name="inner")
    def inner() -> None:
        for _ in range(wide):
            make()

    @dsl.pipeline(name="outer")
    def outer() -> None:
        inner().after(inner())

    converted = convert(outer)
    joins = [task for task, facts in zip(converted.graph.ids, converted.facts, strict=True) if facts.kind == "join"]
    assert len(joins) == 2
    assert len(edges(converted)) == 3 * wide
    assert converted.graph.n_tasks == 2 * wide + 2


def test_the_command_line_reads_a_pipeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`egs graph pipeline.yaml` knows the file by its suffix, and says in one line why another one is none."""

    @dsl.pipeline(name="links")
    def links() -> None:
        use(x=make().output)

    good, bad = tmp_path / "links.yaml", tmp_path / "bad.yaml"
    compiler.Compiler().compile(links, str(good))
    bad.write_text("just: this\n")
    assert run(["graph", str(good), "--json"]) == 0
    assert '"tasks": 2, "edges": 1' in capsys.readouterr().out
    assert run(["graph", str(good), "--to", "egs"]) == 0
    assert '"id":"use"' in capsys.readouterr().out
    assert run(["graph", str(bad)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {bad}: ")
    assert error.count("\n") == 1


def test_documents_survive_being_written() -> None:
    """Text, documents and text again: nothing changes, comments stay."""

    @dsl.pipeline(name="volumes", description="Has a platform.")
    def volumes() -> None:
        kubernetes.use_secret_as_env(make(), "secret", {"key": "KEY"})

    text = "# PIPELINE DEFINITION\n# Name: volumes\n" + dump_documents(documents_of(volumes))
    again = parse_documents(text)
    assert again.platform
    assert dump_documents(again) == text


DATA = Path(os.environ.get("EGS_DATA", "")) / "kfp-pipelines"


@pytest.mark.skipif("EGS_DATA" not in os.environ, reason="EGS_DATA names no folder with kfp-pipelines")
def test_the_pipelines_of_kubeflow_convert() -> None:
    """Each valid file of kubeflow/pipelines converts; each invalid one is one clear error."""
    files = sorted(DATA.glob("*.yaml"))
    assert files
    for file in files:
        if file.name.startswith("invalid"):
            with pytest.raises(InputError, match=file.name):
                convert(load_documents(file), place=str(file))
        else:
            assert convert(load_documents(file), place=str(file)).graph.n_tasks


def test_what_is_no_pipeline_is_refused() -> None:
    """A function that nobody decorated is named, not tried."""
    with pytest.raises(InputError, match="is no pipeline or component of kfp"):
        documents_of(len)
    with pytest.raises(InputError, match="root: is missing"):
        convert(Documents({"pipelineInfo": {"name": "empty"}}))
