"""The local runner's parts that need no process: conditions, values, what may run after what, its plan."""

# kfp reads the annotations of components: they must not be text, so no `from __future__ import annotations`
import re
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl, kubernetes

import egs_core as egs
from egs_core.errors import InputError
from egs_core.graph.columns import GPU, Graph, Shape, TaskOptions
from egs_kubeflow.components import component
from egs_kubeflow.convert.documents import documents_of, dump_documents
from egs_kubeflow.convert.pipeline import load_workload
from egs_kubeflow.run import docker
from egs_kubeflow.run.condition import is_met
from egs_kubeflow.run.echo import AuthorsLines, harmless
from egs_kubeflow.run.gangs import gangs_of, keep_possible
from egs_kubeflow.run.opening import backoff_s, folder_of
from egs_kubeflow.run.plan import Slots, make_plan
from egs_kubeflow.run.scope import FAILED, SUCCEEDED, Node, Scope
from egs_kubeflow.run.values import select

BASE = "python:3.12"
INPUTS = {"coin": "heads", "n": 4.0, "flag": True, "odd": "it's && ! true"}


@pytest.mark.parametrize(
    ("condition", "met"),
    [
        ("inputs.parameter_values['coin'] == 'heads'", True),
        ("!(inputs.parameter_values['coin'] == 'heads') && int(inputs.parameter_values['n']) > 3", False),
        ("!(inputs.parameter_values['coin'] == 'tails') && !(int(inputs.parameter_values['n']) > 4)", True),
        ("inputs.parameter_values['flag'] == true || 1 == 2", True),
        ("inputs.parameter_values['flag'] != false", True),
        ("double(int(inputs.parameter_values['n'])) >= 4.0", True),
        ("int(inputs.parameter_values['n']) < -1", False),
        ("inputs.parameter_values['odd'] == \"it's && ! true\"", True),
    ],
)
def test_a_condition_is_read_as_kfp_means_it(condition: str, met: bool) -> None:
    """The operators, casts and constants of kfp's compiler; operators inside text stay text."""
    assert is_met(condition, INPUTS, "pick") is met


@pytest.mark.parametrize(
    "condition",
    ["__import__('os').system('x') == 0", "inputs.parameter_values['none'] == 1", "a ==", "().__class__", "int(1, 2)"],
)
def test_a_condition_runs_no_code(condition: str) -> None:
    """Whatever else stands there is an error that names the task."""
    with pytest.raises(InputError, match=r"^pick: its condition"):
        is_met(condition, INPUTS, "pick")


def test_a_loop_items_field_is_selected() -> None:
    """Fields of an item, also of JSON text; one that is not there is an error that names the input."""
    assert select({"a": [5, {"b": 6}]}, 'parseJson(string_value)["a"][1]["b"]', "x") == 6
    assert select('{"a": 7}', 'parseJson(string_value)["a"]', "x") == 7
    with pytest.raises(InputError, match=r"^train: x"):
        select({"a": 1}, 'parseJson(string_value)["b"]', "train: x")


@dsl.component(base_image=BASE, install_kfp_package=False)
def step(text: str = "", wait: str = "") -> str:
    return text + wait


@dsl.component(base_image=BASE, install_kfp_package=False)
def tidy(status: dsl.PipelineTaskFinalStatus) -> None:
    print(status.state)


@dsl.pipeline
def guarded() -> None:
    """first ─► second ─► fourth and third beside them, all in an exit handler; fourth runs whatever happens."""
    end = tidy()
    with dsl.ExitHandler(end):
        first = step(text="first")
        second = step(text="second", wait=first.output)
        step(text="third")
        step(text="fourth", wait="").after(second).ignore_upstream_failure()


def _scope(pipeline: Any, task: str = "") -> Scope:
    plan = make_plan(documents_of(pipeline), {}, Slots(2.0), "test")
    component = plan.spec.pipeline.components[task] if task else plan.spec.pipeline.root
    return Scope(component, {}, "job")


def _end(node: Node, state: str) -> list[str]:
    node.state = state
    return [lost.name for lost in node.scope.to_skip()]


def test_after_a_failure_only_what_wants_it_still_runs() -> None:
    """What waits for the failed task and what has not started is skipped, an `ignore_upstream_failure` is not."""
    scope = _scope(guarded, "comp-exit-handler-1")
    assert _end(scope.nodes["step"], FAILED) == ["step-2", "step-3"] or scope.nodes["step-3"].state == "skipped"
    assert scope.nodes["step-2"].state == "skipped"
    assert scope.nodes["step-4"].state == "pending"
    assert not scope.is_over
    assert _end(scope.nodes["step-4"], SUCCEEDED) == []
    assert scope.is_over
    assert scope.failed is scope.nodes["step"]


def test_an_exit_task_hears_how_its_pipeline_ended() -> None:
    """The final status has the backend's words and the error's text."""
    scope = _scope(guarded)
    scope.nodes["exit-handler-1"].error = "it broke"
    assert _end(scope.nodes["exit-handler-1"], FAILED) == []
    status = scope.arguments(scope.nodes["tidy"])["status"]
    assert status["state"] == "FAILED"
    assert status["error"]["message"] == "it broke"
    assert status["pipelineTaskName"] == "exit-handler-1"


@dsl.pipeline
def needing(n: int) -> None:
    big = step(text=f"{n}")
    big.set_cpu_limit("64").set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(8)
    again = step(text="again")
    again.set_retry(num_retries=3, backoff_duration="2s", backoff_factor=3.0, backoff_max_duration="10s")


def test_no_task_asks_for_more_than_the_machine() -> None:
    """Who needs more than there is takes all of it, instead of waiting for ever."""
    documents = documents_of(needing)
    _, shape, _ = make_plan(documents, {"n": 1}, Slots(4.0, ("0", "1")), "test").phase("step")
    assert (shape.cpu_milli, shape.gpu_milli) == (4000, 2000)
    kind, shape, _ = make_plan(documents, {"n": 1}, Slots(4.0), "test").phase("step")
    assert (kind, shape.gpu_milli) == (0, 0)


@pytest.mark.parametrize(
    ("slots", "notes"),
    [
        (
            Slots(4.0),
            (
                "1 task asks for a GPU, there is none here: --gpus 1 --emulate-gpus makes slots",
                "1 task asks for up to 64 CPUs, there are 4: one such task gets all",
            ),
        ),
        (Slots(64.0, ("0", "1")), ("1 task asks for up to 8 GPUs, there are 2: one such task gets all",)),
        (Slots(64.0, tuple("01234567")), ()),
    ],
)
def test_what_a_machine_lacks_is_a_note(slots: Slots, notes: tuple[str, ...]) -> None:
    """One for GPUs and one for CPUs; none where there is enough."""
    assert make_plan(documents_of(needing), {"n": 1}, slots, "test").notes == notes


@dsl.pipeline
def of_a_cluster() -> None:
    """A task with what only Kubernetes has."""
    task = step(text="a")
    kubernetes.use_secret_as_env(task, "keys", {"password": "PASSWORD"})
    kubernetes.mount_pvc(task, "data", "/data")
    kubernetes.add_pod_label(task, "a", "b")


def test_what_only_a_cluster_has_is_a_note() -> None:
    """The task runs without it; labels and places are nothing that it could miss."""
    notes = make_plan(documents_of(of_a_cluster), {}, Slots(2.0), "test").notes
    assert notes == ("task 'step' runs without its secrets and persistent volumes of Kubernetes, which are not here",)


def hinted_twice() -> None:
    print("nothing")


HINTS: dict[str, Any] = {
    "preload": egs.modules("json"),
    "memory": "1GiB",
    "gpu_memory": "1GiB",
    "flavors": "a100",
    "grace": "5s",
    "gang_same": "node",
    "priority": 3,
    "max_gpu_time": "1h",
}
hinted = component(gpus=1, record=False, base_image=BASE, install_kfp_package=False, **HINTS)(hinted_twice)


@dsl.pipeline
def of_hints() -> None:
    hinted()
    hinted()
    step(text="a")


def test_a_hint_that_is_not_kept_is_named_once() -> None:
    """With a task that has it, and why; those that are kept, or are so on any one machine, are not."""
    notes = make_plan(documents_of(of_hints), {}, Slots(2.0, ("0",)), "test").notes
    named = [note.partition(" is not kept on this machine: ")[0] for note in notes]
    missing = ("memory", "gpu_memory", "flavors", "grace")
    assert named == [f"the hint {name} of 'hinted-twice' and 1 more" for name in missing]


@dsl.component(base_image=BASE, install_kfp_package=False)
def numbers(n: int) -> list[int]:
    return list(range(n))


@dsl.pipeline
def looped(n: int) -> None:
    with dsl.ParallelFor([1, 2]):
        step(text="a")
        with dsl.ParallelFor([1, 2, 3]):
            step(text="b")
    with dsl.ParallelFor(numbers(n=n).output):
        step(text="c")


def test_a_graph_says_how_often_a_loop_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, beside the graph, which has each task of a loop once."""
    (tmp_path / "p.yaml").write_text(dump_documents(documents_of(looped)))
    assert load_workload(tmp_path / "p.yaml").graph.n_tasks == 4
    said = capsys.readouterr().err.strip().partition("as its loop goes: ")[2]
    assert set(re.sub(r"for-loop-\d+", "loop", said).split(", ")) == {
        "loop.step (2)",
        "loop.loop.step-2 (6)",
        "loop.step-3 (known at run time)",
    }


def graph_of(*tasks: tuple[str, tuple[int, ...], str]) -> Graph:
    """Tasks of one GPU each: path, parents, gang."""
    graph = Graph()
    for task, parents, gang in tasks:
        graph.add_task(task, parents, ((GPU, Shape(500, 1000), 1.0),), options=TaskOptions(gang=gang))
    return graph


def test_a_gang_is_of_one_dag() -> None:
    """One whose tasks are in several is left out, with a note."""
    graph = graph_of(("a", (), "x"), ("b", (), "x"), ("in.c", (), "y"), ("d", (), "y"), ("e", (), ""))
    gangs, notes = gangs_of(graph)
    assert gangs == {"a": "x", "b": "x"}
    assert notes == ("gang 'y' is in several DAGs: its tasks start each as it can",)


@pytest.mark.parametrize(
    ("parents", "slots", "problem"),
    [
        ((), (1.0, 2), ""),
        ((), (0.9, 2), "it needs 1 CPU and 2 GPUs at once, and there are 0.9 and 2"),
        ((), (4.0, 1), "it needs 1 CPU and 2 GPUs at once, and there are 4 and 1"),
        ((7,), (4.0, 2), "its tasks wait for each other"),
    ],
)
def test_a_gang_that_cannot_be_whole_is_none(parents: tuple[int, ...], slots: tuple[float, int], problem: str) -> None:
    """Its tasks would wait for ever; they start each as it can instead, and a note says why."""
    graph, notes = graph_of(("a", (), "loop/x"), ("b", parents, "loop/x")), list[str]()
    keep_possible(graph, 7, *slots, notes.append)
    assert notes == ([f"gang 'x': {problem}; its tasks start each as it can"] if problem else [])
    assert {graph.options_of(task).gang for task in (0, 1)} == {"" if problem else "loop/x"}


def test_only_the_authors_lines_are_shown() -> None:
    """kfp's own log, the executor's input and EGS's record are left out, and not what looks a little like them."""
    said = "[KFP Executor 2026-01-01 00:00:00,000 INFO]: "
    lines = [
        f"{said}Looking for component `f` in --component_module_path `/x`",
        f"{said}Got executor_input:",
        *("{", '    "inputs": {', "    }", "}"),
        *("mine", "{", "}", "", f"{said}a line of the author's logger"),
        f"half a line{said}Wrote executor output file to /x.",
        'egs-record {"version": 1}',
    ]
    heard = AuthorsLines()
    shown = [part for line in lines if (part := heard.part(f"{line}\n"))]
    assert shown == ["mine\n", "{\n", "}\n", "\n", f"{said}a line of the author's logger\n", "half a line\n"]


def test_a_caller_that_cannot_listen_hurts_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    """A function that fails is called once, and its error is one warning."""
    calls = []

    def broken(task: str, line: str) -> None:
        calls.append((task, line))
        raise BrokenPipeError("nobody reads")

    told = harmless(broken)
    told("a", "x")
    told("a", "y")
    assert calls == [("a", "x")]
    assert capsys.readouterr().err == "egs: what tasks print is shown no more: nobody reads\n"


def test_a_tasks_folder_is_a_name_in_the_runs_folder() -> None:
    """Names in a file may be any text: none leads out of the folder, and no two lead to one."""
    assert folder_of("train.for-loop-1[2].fit", 1) == "train.for-loop-1[2].fit"
    assert folder_of("fit", 3) == "fit.attempt3"
    assert {"/" in folder_of(name, 1) or folder_of(name, 1).startswith(".") for name in ("..", "../x", "a/b")} == {
        False
    }
    assert folder_of("a/b", 1) != folder_of("a%2Fb", 1)


def test_a_retry_waits_longer_each_time_up_to_its_most() -> None:
    """2 s, 6 s, then the most, as the pipeline says."""
    policy = make_plan(documents_of(needing), {"n": 1}, Slots(4.0), "test").spec.pipeline.root.dag.tasks["step-2"]
    assert [backoff_s(policy.retry_policy, attempt) for attempt in (1, 2, 3)] == [2.0, 6.0, 10.0]


@pytest.mark.parametrize(
    ("given", "problem"),
    [({}, "argument 'n': is missing"), ({"n": 1, "m": 2}, "argument 'm': is no parameter")],
)
def test_wrong_arguments_are_named(given: dict[str, Any], problem: str) -> None:
    """An argument that is missing or unknown is an error before anything runs."""
    with pytest.raises(InputError, match=problem):
        make_plan(documents_of(needing), given, Slots(2.0), "test")


@dsl.container_component
def contained() -> dsl.ContainerSpec:
    return dsl.ContainerSpec(image="alpine:3", command=["echo"], args=["hello"])


@dsl.pipeline
def boxed() -> None:
    contained()


def test_a_container_component_without_docker_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error names the task and its image, before anything has run."""
    monkeypatch.setenv("PATH", str(tmp_path))
    docker.why_not.cache_clear()
    with pytest.raises(InputError, match=r"task 'contained': needs its container 'alpine:3', and there is no docker"):
        make_plan(documents_of(boxed), {}, Slots(2.0), "test")
    docker.why_not.cache_clear()


def test_a_container_gets_its_folder_its_gpus_and_its_variables() -> None:
    """What docker is asked to run; whether it does was not tried where there is none."""
    command = docker.in_container("alpine:3", ["sh", "-c", "true"], {"A": "b c"}, Path("/runs/x"), "x-1", ["0", "2"])
    text = " ".join(command)
    assert text.startswith("docker run --rm --name x-1 --user ")
    assert '--volume /runs/x:/runs/x --env A=b c --gpus "device=0,2" --entrypoint sh alpine:3 -c true' in text
