"""Broken, mutated and hostile pipeline files: one InputError, soon, whatever is wrong."""

import copy
import math
import time
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kfp import dsl, kubernetes

from egs_core.errors import InputError
from egs_kubeflow.convert.documents import Documents, documents_of, dump_documents, parse_documents
from egs_kubeflow.convert.hints import ANNOTATION
from egs_kubeflow.convert.pipeline import convert
from egs_kubeflow.rewrite.pipeline import rewrite
from egs_kubeflow.rewrite.profile import Profile

SOON_S = 5.0
SITE = Profile.model_validate(
    {
        "pools": [
            {"name": "a", "selector": {"pool": "a"}},
            {"name": "b", "selector": {"pool": "b"}, "accelerator": "nvidia.com/gpu"},
        ],
        "queues": [{"name": "team", "exists": True}],
        "time_limits": {"cpu": "1h"},
    }
)


@dsl.component(base_image="python:3.11")
def step(x: int = 1) -> int:
    return x


@dsl.component(base_image="python:3.11")
def items() -> list[int]:
    return [1]


@cache
def rich() -> Documents:
    """A pipeline with a loop, a condition, a nested DAG, resources and a platform."""

    @dsl.pipeline(name="inner")
    def inner(cpu: str = "2") -> None:
        step().set_cpu_limit(cpu)

    @dsl.pipeline(name="rich")
    def outer(cpu: str = "1", xs: list = [1, 2]) -> None:  # type: ignore[type-arg]  # noqa: B006  # as kfp's users write it
        first = step()
        with dsl.ParallelFor(xs, parallelism=2) as x:
            step(x=x)
        with dsl.If(first.output == 1):
            step().set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(1)
        with dsl.ParallelFor(items().output) as x:
            step(x=x).set_retry(2)
        placed = kubernetes.add_node_selector(step().after(first), "pool", "a")
        kubernetes.add_pod_annotation(placed, ANNOTATION, '{"gpus": 1, "gang": "g", "max_runtime_s": 5}')
        inner(cpu=cpu).after(first)

    return documents_of(outer)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something could be changed."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, part in inner for found in places(part, (*path, key)))]


def converts_or_says_why(documents: Documents) -> None:
    """Conversion and rewrite raise no other error than InputError, and end soon."""
    started_s = time.process_time()
    with suppress(InputError):
        convert(documents)
        rewrite(documents, SITE)
    assert time.process_time() - started_s < SOON_S


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        [
            "{{$.inputs.parameters['cpu']}}",
            "comp-step",
            "step",
            "comp-inner",
            "1e400",
            "[[1]]",
            '{"cpus": -1}',
            '{"expect_s": [1e308, 1e308]}',
        ]
    ),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)


def test_an_infinite_number_is_named() -> None:
    """kfp's own reader takes it in, and cannot write it out."""
    documents = copy.deepcopy(rich())
    documents.pipeline["deploymentSpec"]["executors"] = math.inf
    with pytest.raises(InputError, match=r"deploymentSpec.*Infinity"):
        convert(documents)


@pytest.mark.slow  # many examples
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_mutated_pipeline_converts_or_says_why(data: st.DataObject) -> None:
    """Any value of the documents replaced, dropped or copied elsewhere."""
    documents = copy.deepcopy(rich())
    whole = {"pipeline": documents.pipeline, "platform": documents.platform}
    for _ in range(data.draw(st.integers(1, 3))):
        found = [path for path in places(whole) if len(path) > 1]
        path = data.draw(st.sampled_from(found))
        around: Any = whole
        for step_ in path[:-1]:
            around = around[step_]
        what = data.draw(st.sampled_from(["replace", "drop", "copy"]))
        if what == "drop":
            del around[path[-1]]
        elif what == "replace":
            around[path[-1]] = data.draw(JUNK)
        else:
            source: Any = whole
            for step_ in data.draw(st.sampled_from(found)):
                source = source[step_]
            around[path[-1]] = copy.deepcopy(source)
    converts_or_says_why(documents)


@pytest.mark.slow  # many examples
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_mutated_text_converts_or_says_why(data: st.DataObject) -> None:
    """Any piece of the text cut out or replaced."""
    text = dump_documents(rich())
    start = data.draw(st.integers(0, len(text)))
    piece = data.draw(
        st.one_of(st.text(max_size=20), st.sampled_from(["*a", "&a ", "!!python/object:x ", "{", "- ", "\t"]))
    )
    text = text[:start] + piece + text[start + data.draw(st.integers(0, 30)) :]
    try:
        documents = parse_documents(text)
    except InputError:
        return
    converts_or_says_why(documents)


def nested(levels: int, wide: int) -> Documents:
    """Components that each run the next one several times: a small file that stands for very many tasks."""
    components: dict[str, Any] = {"comp-0": {"executorLabel": "exec"}}
    for level in range(1, levels):
        tasks = {f"t{n}": {"componentRef": {"name": f"comp-{level - 1}"}} for n in range(wide)}
        components[f"comp-{level}"] = {"dag": {"tasks": tasks}}
    return Documents(
        {
            "pipelineInfo": {"name": "nested"},
            "components": components,
            "deploymentSpec": {"executors": {"exec": {"container": {"image": "i"}}}},
            "root": {"dag": {"tasks": {"t": {"componentRef": {"name": f"comp-{levels - 1}"}}}}},
        }
    )


def changed(**components: Any) -> Documents:
    """A pipeline of one task with other components."""
    documents = nested(1, 1)
    documents.pipeline["components"].update({name.replace("_", "-"): value for name, value in components.items()})
    return documents


def with_tasks(**tasks: Any) -> Documents:
    """A pipeline whose root has these tasks, all of one component."""
    documents = nested(1, 1)
    for task in tasks.values():
        task.setdefault("componentRef", {"name": "comp-0"})
    documents.pipeline["root"]["dag"]["tasks"] = tasks
    return documents


BAD: dict[str, tuple[Documents, str]] = {
    "cycle": (with_tasks(a={"dependentTasks": ["b"]}, b={"dependentTasks": ["a"]}), "task 'a': waits for itself"),
    "own parent": (with_tasks(a={"dependentTasks": ["a"]}), "task 'a': waits for itself"),
    "unknown parent": (with_tasks(load={}, b={"dependentTasks": ["loda"]}), r"waits for 'loda', .* mean 'load'"),
    "missing component": (with_tasks(a={"componentRef": {"name": "comp-1"}}), "no component 'comp-1' .* 'comp-0'"),
    "missing executor": (changed(comp_0={"executorLabel": "exe"}), "no executor 'exe' .* 'exec'"),
    "contains itself": (
        changed(comp_0={"dag": {"tasks": {"t": {"componentRef": {"name": "comp-0"}}}}}),
        "component 'comp-0' contains itself",
    ),
    "empty DAG": (changed(comp_0={"dag": {}}), "a DAG without tasks"),
    "very many tasks": (nested(12, 10), "more than 100,000 tasks"),
    "very deep": (nested(60, 1), "more than 30 levels"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_no_graph_can_be_is_named(case: str) -> None:
    """Cycles, missing parts and small files that stand for much: the task and the reason, within seconds."""
    documents, problem = BAD[case]
    started_s = time.process_time()
    with pytest.raises(InputError, match=problem):
        convert(documents)
    assert time.process_time() - started_s < SOON_S


def test_placeholders_that_refer_to_each_other_end() -> None:
    """A value of its own value, and texts that double at each step, are unknown instead of endless."""
    parameters = {"own": {"runtimeValue": {"constant": "{{$.inputs.parameters['own']}}"}}}
    for number in range(40):
        text = f"{{{{$.inputs.parameters['p{number + 1}']}}}}" * 2
        parameters[f"p{number}"] = {"runtimeValue": {"constant": text}}
    for name in ("own", "p0"):
        documents = with_tasks(a={"inputs": {"parameters": parameters}})
        container = documents.pipeline["deploymentSpec"]["executors"]["exec"]["container"]
        container["resources"] = {"resourceCpuLimit": f"{{{{$.inputs.parameters['{name}']}}}}"}
        assert convert(documents).facts[0].needs.unknown == ("cpus",)


def test_a_bomb_of_aliases_is_refused() -> None:
    """A text that names itself ten times over, ten levels deep."""
    text = "a0: &a0 [1, 2]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
    with pytest.raises(InputError, match="aliases stand for too much"):
        parse_documents(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("---\n---\n", "is empty"),
        ("- a\n", "is no compiled pipeline"),
        ("a: 1\n---\nb: 2\n---\nc: 3\n", "has 3 documents"),
        ("a: [", "is no YAML"),
        ("[" * 200_000, "nested too deeply"),
        ("kind: PipelineVersion\nspec: {pipelineSpec: {}}\n", "manifest around a pipeline"),
        ("a: 1\na: 2\n", "'a' is there twice"),
    ],
)
def test_what_is_no_pipeline_file_is_refused(text: str, problem: str) -> None:
    """Each with a reason of its own."""
    with pytest.raises(InputError, match=problem):
        parse_documents(text)
