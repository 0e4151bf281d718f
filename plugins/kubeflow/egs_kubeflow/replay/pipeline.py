"""Workload files as one compiled pipeline, in which each workload is a DAG that opens when the workload arrives.

    w0                                  at once
    arrive-1 ─┬─ w1
              └─ arrive-2 ─── w2        each waits until its workload is due: one process at a time, no CPU slot

kfp compiles each component once, with its hints; the tasks are written beside them as kfp's compiler would, which
takes up to a tenth of a second to trace each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kfp import dsl

from egs_core.adapter import ReplayWorkload
from egs_kubeflow.components.wrapper import component
from egs_kubeflow.convert.documents import Documents, documents_of
from egs_kubeflow.replay.parts import Code, Part
from egs_kubeflow.replay.tasks import arrive, play

BEGAN = "began"
"""The pipeline's parameter: the Unix time from which arrivals count."""
IMAGE = "python:3.12"
ARRIVE = "arrive"


def pipeline_of(workloads: Sequence[ReplayWorkload], parts: Sequence[Sequence[Part]], time_scale: float) -> Documents:
    """The compiled pipeline. parts: of each workload."""
    codes = list(dict.fromkeys(part.code for of_workload in parts for part in of_workload))
    documents, references = _compiled(codes)
    for number, of_workload in enumerate(parts):
        tasks = {part.name: _task(references[part.code], part.parents, _given(part)) for part in of_workload}
        documents.pipeline["components"][_dag(number)] = {"dag": {"tasks": tasks}}
    documents.pipeline["root"]["dag"]["tasks"] = dict(_arrivals(workloads, references[ARRIVE], time_scale))
    return documents


def _compiled(codes: Sequence[Code]) -> tuple[Documents, dict[Code | str, str]]:
    """A pipeline with a task of each component, and what each component is called in it."""
    made: dict[Code | str, Any] = {code: _component(code) for code in codes}
    made[ARRIVE] = component(record=False, base_image=IMAGE, install_kfp_package=False, cpus=0)(arrive)
    names: dict[Code | str, str] = {}

    def replay(began: float) -> None:
        for code, one in made.items():
            given = {"began": began, "due_s": 0.0} if code == ARRIVE else {"phases": [], "load_s": 0.0}
            names[code] = one(**given).name

    replay.__annotations__ = {BEGAN: float}  # kfp reads them, and here they would be text
    documents = documents_of(dsl.pipeline(name="replay")(replay))
    tasks = documents.pipeline["root"]["dag"]["tasks"]
    return documents, {code: tasks[name]["componentRef"]["name"] for code, name in names.items()}


def _component(code: Code) -> Any:
    """What tasks of one code are made from. It notes itself, so EGS's recorder has nothing to do."""
    hints: dict[str, Any] = {"cpus": code.cpu_milli / 1000, "gpus": code.gpus or None, "expect": code.expect_s}
    hints |= {"stage": code.stage, "priority": code.priority, "max_wait": code.max_wait_s}
    stated = {name: value for name, value in hints.items() if value not in (None, "")}
    return component(record=False, base_image=IMAGE, install_kfp_package=False, **stated)(play)


def _arrivals(workloads: Sequence[ReplayWorkload], reference: str, time_scale: float) -> Iterator[tuple[str, Any]]:
    """The tasks of the pipeline itself."""
    first_s, due_s = min(workload.submit_s for workload in workloads), 0.0
    before: list[str] = []
    for number in sorted(range(len(workloads)), key=lambda number: workloads[number].submit_s):
        own_s = (workloads[number].submit_s - first_s) * time_scale
        if own_s > due_s:
            given = {BEGAN: {"componentInputParameter": BEGAN}, "due_s": _constant(own_s)}
            yield f"{ARRIVE}-{number}", _task(reference, before, given)
            due_s, before = own_s, [f"{ARRIVE}-{number}"]
        yield f"w{number}", _task(_dag(number), before, {})


def _dag(number: int) -> str:
    return f"comp-w{number}"


def _given(part: Part) -> dict[str, Any]:
    return {"phases": _constant([list(phase) for phase in part.phases]), "load_s": _constant(part.load_s)}


def _constant(value: Any) -> dict[str, Any]:
    return {"runtimeValue": {"constant": value}}


def _task(reference: str, before: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "componentRef": {"name": reference},
        "dependentTasks": list(before),
        "inputs": {"parameters": dict(given)},
    }
