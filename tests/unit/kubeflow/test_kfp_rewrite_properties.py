"""What holds for every rewrite, on pipelines that hypothesis makes up and kfp compiles, loads and nests."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kfp import components, dsl, kubernetes

from egs_core.graph.columns import Graph
from egs_core.hints import TaskHints, files, modules
from egs_kubeflow import compat
from egs_kubeflow.convert.documents import (
    Documents,
    checked,
    documents_of,
    dump_documents,
    load_documents,
    parse_documents,
    parsed,
)
from egs_kubeflow.convert.hints import ANNOTATION, encode_hints
from egs_kubeflow.convert.pipeline import convert
from egs_kubeflow.rewrite.pipeline import rewrite
from egs_kubeflow.rewrite.profile import PreloadRules, Profile
from tests.unit.kubeflow.made_site import SITE, made_up

LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


@dsl.component(base_image="python:3.11")
def load(x: int = 1) -> int:
    return x


@dsl.component(base_image="python:3.12")
def train(x: int = 1) -> int:
    return x * 2


@dsl.pipeline(name="inner")
def inner(x: int = 1) -> int:
    return train(x=load(x=x).output).output  # type: ignore[no-any-return]  # kfp is not typed


TASKS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from([load, train, inner]),
        "loop": st.booleans(),
        "condition": st.booleans(),
        "after": st.lists(st.integers(0, 5), max_size=2),
        "gpus": st.sampled_from([0, 0, 1, 2]),
        "placed": st.booleans(),
        "limited": st.booleans(),
        "hints": st.one_of(
            st.none(),
            st.builds(
                TaskHints,
                gpus=st.sampled_from([None, 0.25, 1.0, 2.0]),
                cpus=st.sampled_from([None, 0.5, 3.0, 1 / 3]),
                memory_bytes=st.sampled_from([None, 2**30]),
                expect_s=st.sampled_from([(), (12.5,)]),
                priority=st.integers(-5, 30),
                max_runtime_s=st.sampled_from([None, 7.5]),
                flavors=st.sampled_from([(), ("a100",)]),
                preload=st.sampled_from([(), (modules("json"), files("a.bin"))]),
            ),
        ),
    }
)

PROFILES = st.builds(
    lambda pools, queues, classes, cpu_s, step: Profile.model_validate(
        {
            "pools": pools,
            "queues": queues,
            "priority_classes": classes,
            "time_limits": {"cpu": cpu_s} if cpu_s else {},
            "preload": {"step": step},
        }
    ),
    st.lists(
        st.sampled_from(
            [
                {"name": "cpu", "selector": {"pool": "cpu"}},
                {"name": "big", "selector": {"pool": "big"}, "tolerations": [{"key": "big", "value": "1"}]},
                {"name": "t4", "selector": {"pool": "t4"}, "accelerator": "nvidia.com/gpu", "gpus_per_node": 1},
                {
                    "name": "a100",
                    "selector": {"pool": "a100", "zone": "b"},
                    "accelerator": "nvidia.com/gpu",
                    "flavor": "a100",
                    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
                },
            ]
        ),
        unique_by=lambda pool: str(pool["name"]),
    ),
    st.sampled_from([[], [{"name": "team", "exists": True}], [{"name": "team"}]]),
    st.sampled_from([[], [{"name": "normal", "exists": True}, {"name": "urgent", "at_least": 10, "exists": True}]]),
    st.sampled_from([None, "90s"]),
    st.booleans(),
)


def compiled(made_up: list[dict[str, Any]]) -> Documents:
    """A pipeline of these tasks."""

    @dsl.pipeline(name="made-up")
    def pipeline(x: int = 1) -> None:
        done: list[Any] = []
        for one in made_up:
            if one["loop"]:
                with dsl.ParallelFor([1, 2]) as item:
                    configure(one["kind"](x=item), one)
            elif one["condition"]:
                with dsl.If(x == 1):
                    configure(one["kind"](x=x), one)
            else:
                task = one["kind"](x=x)
                configure(task, one)
                for before in one["after"]:
                    if before < len(done):
                        task.after(done[before])
                done.append(task)

    return documents_of(pipeline)


def configure(task: Any, one: dict[str, Any]) -> None:
    """Resources, hints and the author's own settings, where a task can have them."""
    if one["kind"] is inner:
        return
    if one["gpus"]:
        task.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(one["gpus"])
    if one["placed"]:
        kubernetes.add_node_selector(task, "mine", "yes")
    if one["limited"]:
        kubernetes.set_timeout(task, 33)
    if one["hints"] is not None:
        kubernetes.add_pod_annotation(task, ANNOTATION, encode_hints(one["hints"]))


def cache_keys(documents: Documents) -> dict[str, Any]:
    """What the key of kfp's cache is made of, for each task as it is written."""
    spec = documents.pipeline
    executors, found = spec["deploymentSpec"]["executors"], {}
    for around, component in {"": spec["root"], **spec["components"]}.items():
        for name, task in component.get("dag", {}).get("tasks", {}).items():
            used = spec["components"][task["componentRef"]["name"]]
            container = executors.get(used.get("executorLabel"), {}).get("container", {})
            parts = {part: container.get(part) for part in ("image", "command", "args")}
            interface = {part: used.get(part) for part in ("inputDefinitions", "outputDefinitions")}
            if not is_step(name):
                found[f"{around}/{name}"] = (parts, interface, task.get("inputs"))
    return found


def is_step(name: str) -> bool:
    """Whether a task or an executor is a step that a rewrite has added."""
    return "egs-prefetch-" in name


def edges(graph: Graph) -> list[tuple[str, list[str]]]:
    """The author's tasks with the names of their parents."""
    found = zip(graph.ids, graph.parents, strict=True)
    return [(name, [graph.ids[parent] for parent in parents]) for name, parents in found if not is_step(name)]


def author_set(documents: Documents) -> list[str]:
    """The settings that `configure` made, wherever they are now; a step goes where its task does."""
    configs = compat.kubernetes_executors(checked(documents, "pipeline").platform)
    text = json.dumps([config for label, config in configs.items() if not is_step(label)])
    return sorted(re.findall(r'"mine": "yes"|"activeDeadlineSeconds": "33"', text))


def holds(documents: Documents, profile: Profile) -> None:
    """All promises of a rewrite."""
    before = dump_documents(documents)
    result = rewrite(documents, profile)
    text = dump_documents(result.documents)
    assert dump_documents(documents) == before, "the input was changed"
    assert dump_documents(rewrite(documents, profile).documents) == text, "not the same bytes again"
    again = rewrite(parse_documents(text), profile)
    assert again.changes == (), "not idempotent"
    assert dump_documents(again.documents) == text
    assert cache_keys(result.documents) == cache_keys(documents)
    assert edges(convert(result.documents).graph) == edges(convert(documents).graph)
    spec = checked(result.documents, "result")
    for config in compat.kubernetes_executors(spec.platform).values():
        parsed(config, compat.executor_config(), "result")
        for labels in (
            config.get("podMetadata", {}).get("labels", {}),
            config.get("nodeSelector", {}).get("labels", {}),
        ):
            assert all(LABEL.fullmatch(value) for value in labels.values())


def loads_and_nests(documents: Documents, profile: Profile) -> None:
    """kfp loads the rewritten pipeline, compiles it to the same again, and nests it, where the promises hold again."""
    loaded = components.load_component_from_text(dump_documents(documents))
    assert dump_documents(documents_of(loaded)) == dump_documents(documents)

    @dsl.pipeline(name="outer")
    def outer() -> None:
        loaded()

    holds(documents_of(outer), profile)


def test_a_pipeline_with_a_prefetch_step_keeps_the_promises_too() -> None:
    """On one that is sure to get a step, whatever hypothesis makes up."""
    profile = SITE.model_copy(update={"preload": PreloadRules(step=True)})
    documents = documents_of(made_up)
    holds(documents, profile)
    result = rewrite(documents, profile).documents
    assert any(is_step(name) for name in result.pipeline["root"]["dag"]["tasks"])
    loads_and_nests(result, profile)


@pytest.mark.slow  # many examples; the test above has one
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(made_up=st.lists(TASKS, min_size=1, max_size=6), profile=PROFILES)
def test_every_rewrite_keeps_its_promises(made_up: list[dict[str, Any]], profile: Profile) -> None:
    """Pure, byte-stable, idempotent, strictly valid, with the graph and cache keys of before; the author's values win;
    kfp loads the result, compiles it to the same again, and nests it."""
    documents = compiled(made_up)
    holds(documents, profile)
    result = rewrite(documents, profile).documents
    assert author_set(result) == author_set(documents)
    loads_and_nests(result, profile)


DATA = Path(os.environ.get("EGS_DATA", "")) / "kfp-pipelines"


@pytest.mark.skipif("EGS_DATA" not in os.environ, reason="EGS_DATA names no folder with kfp-pipelines")
def test_the_pipelines_of_kubeflow_keep_their_promises() -> None:
    """The same for each valid file of kubeflow/pipelines."""
    profile = Profile.model_validate(
        {
            "pools": [
                {"name": "cpu", "selector": {"pool": "cpu"}},
                {"name": "gpu", "selector": {"pool": "gpu"}, "accelerator": "nvidia.com/gpu"},
            ],
            "queues": [{"name": "team", "exists": True}],
            "time_limits": {"cpu": "1h", "gpu": "1h"},
            "preload": {"step": True},
        }
    )
    files = [file for file in sorted(DATA.glob("*.yaml")) if not file.name.startswith("invalid")]
    assert files
    for file in files:
        documents = load_documents(file)
        holds(documents, profile)
        text = dump_documents(rewrite(documents, profile).documents)
        assert dump_documents(documents_of(components.load_component_from_text(text))).strip() in text
