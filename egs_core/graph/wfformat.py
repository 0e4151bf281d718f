"""WfFormat 1.5 and 1.6 (wfcommons.org) in and out.

    workflow.specification.tasks[]   id, name, parents, children, inputFiles, outputFiles
    workflow.specification.files[]   id, sizeInBytes
    workflow.execution.tasks[]       id, runtimeInSeconds, coreCount, memoryInBytes, command.program

A task becomes one CPU phase. Its parents are the union of `parents` and `children`; its duration is unknown without an
execution entry; its cores are `coreCount`, else 1. A file that is named but not listed has size 0. The execution's
`priority` is what a planner gave a job back then, not the user's wish, so it is not taken over.

A million tasks are read without a million objects: JSON is first cut into raw entries (views of the file's bytes), then
decoded entry by entry straight into columns.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Annotated, Any

import msgspec
import numpy as np

from egs_core.described import describe
from egs_core.errors import InputError
from egs_core.graph.columns import CPU, DEFAULT_OPTIONS, Graph, Shape
from egs_core.graph.places import did_you_mean, join
from egs_core.graph.source import json_errors
from egs_core.graph.validate import task_place

VERSIONS = ("1.5", "1.6")
_TASKS, _FILES, _RUNS = "workflow.specification.tasks", "workflow.specification.files", "workflow.execution.tasks"

_Id = Annotated[str, msgspec.Meta(min_length=1)]
_Size = Annotated[int, msgspec.Meta(ge=0, le=10**15)]


class _Specification(msgspec.Struct, gc=False):
    tasks: list[msgspec.Raw]
    files: list[msgspec.Raw] = []


class _Execution(msgspec.Struct, gc=False):
    tasks: list[msgspec.Raw] = []


class _Workflow(msgspec.Struct, gc=False):
    specification: _Specification
    execution: _Execution | None = None


describe(_Workflow)


class _Identity(msgspec.Struct, gc=False):
    id: _Id


class _Task(msgspec.Struct, gc=False, rename="camel"):
    id: _Id
    name: str = ""
    parents: list[str] = []
    children: list[str] = []
    input_files: list[str] = []
    output_files: list[str] = []


class _File(msgspec.Struct, gc=False, rename="camel"):
    id: _Id
    size_in_bytes: _Size = 0


class _Command(msgspec.Struct, gc=False):
    program: str = ""


class _Run(msgspec.Struct, gc=False, rename="camel"):
    id: _Id
    runtime_in_seconds: Annotated[float, msgspec.Meta(ge=0)] | None = None
    core_count: Annotated[float, msgspec.Meta(gt=0, le=1e6)] | None = None
    memory_in_bytes: Annotated[float, msgspec.Meta(ge=0, le=1e15)] | None = None
    command: _Command | None = None


def read_workflow(workflow: msgspec.Raw, place: str) -> Graph:
    """The graph of a document's `workflow` member; InputError names `place` and the path inside it."""
    with json_errors(place, "workflow"):
        parts = msgspec.json.decode(workflow, type=_Workflow)
    specification, runs = parts.specification, parts.execution.tasks if parts.execution else []
    number_of = _numbers(specification.tasks, _TASKS, place)
    graph = Graph(ids=list(number_of))
    _read_tasks(graph, specification, number_of, place)
    _read_runs(graph, runs, number_of, place)
    graph.phase_offsets = list(range(graph.n_tasks + 1))
    graph.phase_kind = [CPU] * graph.n_tasks
    return graph


def _entries(raws: Iterable[msgspec.Raw], kind: type[Any], inside: str, place: str) -> Iterator[Any]:
    """Each raw entry decoded; an error names its index."""
    decode: Callable[[msgspec.Raw], Any] = msgspec.json.Decoder(kind).decode
    index = 0
    try:
        for raw in raws:
            yield decode(raw)
            index += 1
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        with json_errors(place, f"{inside}[{index}]"):
            raise error


def _numbers(raws: list[msgspec.Raw], inside: str, place: str) -> dict[str, int]:
    """Number of each entry's id, in the order of the file; InputError on a duplicate."""
    number_of: dict[str, int] = {}
    for number, entry in enumerate(_entries(raws, _Identity, inside, place)):
        if number_of.setdefault(entry.id, number) != number:
            problem = f"duplicate id {entry.id!r}, also the id of {inside.rpartition('.')[2]}[{number_of[entry.id]}]"
            raise InputError(join(place, f"{inside}[{number}].id"), problem)
    return number_of


class _Links:
    """Edges as two flat columns: for each task how many ids it lists, and the listed tasks' numbers."""

    def __init__(self, field: str, number_of: dict[str, int], place: str) -> None:
        self.counts, self.flat = array("q"), array("q")
        self._field, self._number_of, self._place = field, number_of, place

    def add(self, ids: list[str]) -> None:
        try:
            self.flat.extend([self._number_of[i] for i in ids])
        except KeyError:
            index, wrong = next((i, p) for i, p in enumerate(ids) if p not in self._number_of)
            place = join(self._place, f"{_TASKS}[{len(self.counts)}].{self._field}[{index}]")
            raise InputError(place, f"unknown task {wrong!r}", did_you_mean(wrong, self._number_of)) from None
        self.counts.append(len(ids))


def _read_tasks(graph: Graph, specification: _Specification, number_of: dict[str, int], place: str) -> None:
    file_of = _numbers(specification.files, _FILES, place)
    graph.file_sizes = [f.size_in_bytes for f in _entries(specification.files, _File, _FILES, place)]
    up, down = _Links("parents", number_of, place), _Links("children", number_of, place)
    shared: dict[str, str] = {}
    for number, task in enumerate(_entries(specification.tasks, _Task, _TASKS, place)):
        graph.names.append(shared.setdefault(task.name, task.name))
        up.add(task.parents)
        down.add(task.children)
        if task.input_files:
            graph.inputs[number] = tuple([file_of.setdefault(f, len(file_of)) for f in task.input_files])
        if task.output_files:
            graph.outputs[number] = tuple([file_of.setdefault(f, len(file_of)) for f in task.output_files])
    graph.file_ids = list(file_of)
    graph.file_sizes += [0] * (len(file_of) - len(graph.file_sizes))
    graph.parents = _merge(up, down)


def _merge(up: _Links, down: _Links) -> list[tuple[int, ...]]:
    """Parents of each task, rising: the union of what tasks say about their parents and about their children."""
    tasks = len(up.counts)
    numbers = np.arange(tasks, dtype=np.int64)
    child = np.concatenate((np.repeat(numbers, up.counts), np.frombuffer(down.flat, dtype=np.int64)))
    parent = np.concatenate((np.frombuffer(up.flat, dtype=np.int64), np.repeat(numbers, down.counts)))
    edges = np.sort(child * tasks + parent)  # not np.unique, which hashes: seven times slower on six million
    edges = edges[np.diff(edges, prepend=-1) > 0]
    flat = (edges % tasks).tolist()
    bounds = np.searchsorted(edges // tasks, np.arange(tasks + 1)).tolist()
    return [tuple(flat[a:b]) for a, b in pairwise(bounds)]


def _read_runs(graph: Graph, runs: list[msgspec.Raw], number_of: dict[str, int], place: str) -> None:
    seconds: list[float | None] = [None] * graph.n_tasks
    shape_of: dict[Shape, int] = {Shape(): 0}
    shapes = [0] * graph.n_tasks
    seen, programs = bytearray(graph.n_tasks), dict[str, str]()
    names: list[str] = [""] * graph.n_tasks
    for index, run in enumerate(_entries(runs, _Run, _RUNS, place)):
        number = number_of.get(run.id)
        if number is None or seen[number]:
            problem = f"unknown task {run.id!r}" if number is None else f"duplicate id {run.id!r}"
            hint = did_you_mean(run.id, number_of) if number is None else ""
            raise InputError(join(place, f"{_RUNS}[{index}].id"), problem, hint)
        seen[number] = 1
        seconds[number] = run.runtime_in_seconds
        if run.core_count is not None or run.memory_in_bytes:
            shape = Shape(max(1, round((run.core_count or 1) * 1000)), 0, int(run.memory_in_bytes or 0))
            shapes[number] = shape_of.setdefault(shape, len(shape_of))
        if run.command is not None:
            program = run.command.program
            names[number] = programs.setdefault(program, program)
    _name(graph, names)
    graph.phase_duration_s, graph.phase_shape, graph.shapes = seconds, shapes, list(shape_of)


_PROGRAM = re.compile(r"[\w./:+-]*\w[\w./:+-]*\Z")  # one word; a whole script says nothing about the kind of task
_SERIAL = re.compile(r"[_.-]?(?:ID)?\d+\Z")


def _name(graph: Graph, programs: list[str]) -> None:
    """Category of each task: its program, else its name, else what is left of its id without the serial number."""
    words = {program: program if _PROGRAM.match(program) else "" for program in set(programs)}
    shared: dict[str, str] = {}
    for task, (program, name, task_id) in enumerate(zip(programs, graph.names, graph.ids, strict=True)):
        category = words[program] or _category(name, task_id)
        graph.names[task] = shared.setdefault(category, category)


def _category(name: str, task_id: str) -> str:
    """What tasks of the same code have in common: the name, or what is left of an id without its serial number."""
    if name and name != task_id:
        return name
    return _SERIAL.sub("", task_id) or task_id


def write_document(graph: Graph, name: str, place: str = "", version: str = "1.6") -> bytes:
    """The graph as a WfFormat document. InputError for what WfFormat cannot hold: GPU or several phases, options."""
    if version not in VERSIONS:
        raise InputError(place, f"unknown WfFormat version {version!r}", f"EGS writes {' and '.join(VERSIONS)}")
    for task in range(graph.n_tasks):
        if problem := _unfit(graph, task):
            raise InputError(task_place(graph, place, task), problem, "use --to egs, which keeps everything")
    children = graph.children()
    specification = {
        "tasks": [_task_entry(graph, task, children[task]) for task in range(graph.n_tasks)],
        "files": [{"id": i, "sizeInBytes": n} for i, n in zip(graph.file_ids, graph.file_sizes, strict=True)],
    }
    runs = [_run_entry(graph, task) for task in range(graph.n_tasks) if graph.phase_duration_s[task] is not None]
    workflow: dict[str, Any] = {"specification": specification}
    if runs:  # the format asks for the makespan and date of a run; there was none, so all tasks in a row
        makespan = sum(run["runtimeInSeconds"] for run in runs)
        workflow["execution"] = {
            "makespanInSeconds": makespan,
            "executedAt": "1970-01-01T00:00:00+00:00",
            "tasks": runs,
        }
    return msgspec.json.encode({"name": name or "workload", "schemaVersion": version, "workflow": workflow})


def _unfit(graph: Graph, task: int) -> str:
    phases = graph.phases_of(task)
    if len(phases) != 1 or graph.phase_kind[phases[0]] != CPU:
        return "WfFormat holds one CPU phase a task"
    options = graph.options_of(task)
    changed = [f for f in options.__struct_fields__ if getattr(options, f) != getattr(DEFAULT_OPTIONS, f)]
    if changed:
        return f"WfFormat has no place for {', '.join(changed)}"
    if graph.phase_duration_s[phases[0]] is None and graph.shapes[graph.phase_shape[phases[0]]] != Shape():
        return "WfFormat has no place for the resources of a task of unknown duration"
    return ""


def _task_entry(graph: Graph, task: int, children: list[int]) -> dict[str, Any]:
    return {
        "name": graph.names[task],
        "id": graph.ids[task],
        "parents": [graph.ids[p] for p in graph.parents[task]],
        "children": [graph.ids[c] for c in children],
        "inputFiles": [graph.file_ids[f] for f in graph.inputs.get(task, ())],
        "outputFiles": [graph.file_ids[f] for f in graph.outputs.get(task, ())],
    }


def _run_entry(graph: Graph, task: int) -> dict[str, Any]:
    shape = graph.shapes[graph.phase_shape[task]]
    cores, rest = divmod(shape.cpu_milli, 1000)
    entry: dict[str, Any] = {"id": graph.ids[task], "runtimeInSeconds": graph.phase_duration_s[task]}
    entry["coreCount"] = shape.cpu_milli / 1000 if rest else cores
    if shape.memory_bytes:
        entry["memoryInBytes"] = shape.memory_bytes
    return entry | {"command": {"program": graph.names[task]}}
