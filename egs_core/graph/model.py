"""Our own workload format, version 1, as pydantic models: what a user writes and what `egs graph --to egs` prints.

    {"format": "egs-workload", "version": 1, "id": "nightly", "tasks": [
        {"id": "load", "phases": [{"kind": "cpu", "duration_s": 1.0}]},
        {"id": "train", "parents": ["load"], "phases": [
            {"kind": "cpu", "cpus": 4, "duration_s": 1.0},
            {"kind": "gpu", "gpus": 1, "gpu_memory": "20GiB", "duration_s": 1.5}]}]}

Sizes are bytes or text such as "20GiB"; a phase without `duration_s` has an unknown duration. Inside EGS the graph is
columnar (`columns.Graph`): `GraphBuilder` takes tasks one by one, so a large file never becomes a million models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo

from egs_core.errors import InputError
from egs_core.graph.columns import CPU, GPU, KIND_NAMES, Graph, Shape, TaskOptions
from egs_core.graph.places import did_you_mean, hint_of, join
from egs_core.units import parse_bytes
from egs_core.validation_words import problem_of

FORMAT = "egs-workload"
VERSION = 1


def _size(value: object, info: ValidationInfo) -> int:
    try:
        return parse_bytes(value, info.field_name or "size")
    except InputError as error:
        raise ValueError(f"{error.problem}; {error.hint}" if error.hint else error.problem) from None


Size = Annotated[int, BeforeValidator(_size)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1)]
Whole = Annotated[int, Field(ge=-(2**31), lt=2**31)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Phase(_Model):
    """One part of a task that holds one set of resources; memory and gpu_memory (per device) in bytes or as text.
    flavor_duration_s: seconds on hardware of single flavors, where they are known apart."""

    kind: Literal["cpu", "gpu"] = "cpu"
    cpus: Amount = 1.0
    gpus: Amount = 0.0
    memory: Size = 0
    gpu_memory: Size = 0
    duration_s: Seconds | None = None
    flavor_duration_s: dict[Name, Seconds] = {}

    def to_shape(self) -> Shape:
        """What the phase holds, in whole units; a share too small for a thousandth counts as one."""
        return Shape(_milli(self.cpus), _milli(self.gpus), self.memory, self.gpu_memory)


class File(_Model):
    """Something that tasks read or write, and its size."""

    id: Name
    size_bytes: Size = 0


class Task(_Model):
    """A task: what it waits for, its phases in order, and what the scheduler may know about it."""

    id: Name
    name: str = ""
    parents: tuple[str, ...] = ()
    phases: Annotated[tuple[Phase, ...], Field(min_length=1)] = (Phase(),)
    stage: str = ""
    priority: Whole = 0
    max_wait_s: Seconds | None = None
    max_runtime_s: Seconds | None = None
    max_gpu_s: Seconds | None = None
    max_cost: Amount | None = None
    idle_timeout_s: Seconds | None = None
    on_limit: Literal["", "fail", "requeue", "end"] = ""
    deadline_s: Seconds | None = None
    warm_key: str = ""
    warmup_s: Seconds = 0.0
    warm_cpus: Amount = 1.0
    warm_memory: Size = 0
    gang: str = ""
    retries: Annotated[Whole, Field(ge=0)] = 0
    flavors: tuple[Name, ...] = ()
    gang_same: str = ""
    gang_apart: str = ""
    may_restart: bool = True
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def to_options(self) -> TaskOptions:
        """The part that most tasks do not set."""
        stated: dict[str, Any] = {name: getattr(self, name) for name in self.model_fields_set & OPTIONS}
        if "warm_cpus" in self.model_fields_set:
            stated["warm_cpu_milli"] = _milli(self.warm_cpus)
        return TaskOptions(**stated, warm_memory_bytes=self.warm_memory)


OPTIONS = frozenset(Task.model_fields) & frozenset(TaskOptions.__struct_fields__)
"""Fields of a task in a file that the engine has under the same name."""


class WorkloadHead(_Model):
    """A workload without its tasks: who submits it where, when, the files its tasks name, and what all of it together
    may use. deadline_s: seconds from its submission until it should have ended. submission: what it is a part of."""

    format: Literal["egs-workload"] = "egs-workload"
    version: Literal[1] = 1
    id: Name
    name: str = ""
    tenant: str = ""
    queue: str = ""
    arrival_s: Seconds = 0.0
    deadline_s: Seconds | None = None
    max_runtime_s: Seconds | None = None
    max_gpu_s: Seconds | None = None
    max_cost: Amount | None = None
    submission: str = ""
    files: tuple[File, ...] = ()


class Workload(WorkloadHead):
    """A whole workload as a user writes it."""

    tasks: tuple[Task, ...]

    def to_graph(self, place: str = "") -> Graph:
        """The columnar graph; InputError for a duplicate id or an unknown parent or file. See also `validate`."""
        builder = GraphBuilder(self.files, place)
        for task in self.tasks:
            builder.add(task)
        return builder.finish()

    @classmethod
    def from_graph(cls, graph: Graph, **head: Any) -> Workload:
        """The model of a graph; `head` gives id and, if wanted, name, tenant, queue and arrival_s."""
        files = [File(id=i, size_bytes=n) for i, n in zip(graph.file_ids, graph.file_sizes, strict=True)]
        return cls(files=tuple(files), tasks=tuple(iterate_tasks(graph)), **head)


class GraphBuilder:
    """Collects tasks of our own format into a Graph; ids may be used before the task that has them."""

    def __init__(self, files: tuple[File, ...] = (), place: str = "") -> None:
        self.graph = Graph(file_ids=[f.id for f in files], file_sizes=[f.size_bytes for f in files])
        self._place = place
        self._numbers: dict[str, int] = {}
        self._parents: list[tuple[str, ...]] = []
        self._shapes: dict[Shape, int] = {}
        self._files: dict[str, int] = {}
        for number, file in enumerate(files):
            if self._files.setdefault(file.id, number) != number:
                raise InputError(join(place, f"files[{number}].id"), f"duplicate file {file.id!r}")

    def add(self, task: Task) -> None:
        """Append a task; InputError when its id is taken or a file of it is not listed."""
        graph, number = self.graph, len(self.graph.ids)
        if self._numbers.setdefault(task.id, number) != number:
            problem = f"duplicate id {task.id!r}, also the id of tasks[{self._numbers[task.id]}]"
            raise InputError(join(self._place, f"tasks[{number}].id"), problem)
        graph.ids.append(task.id)
        graph.names.append(task.name or task.id)
        self._parents.append(task.parents)
        for phase in task.phases:
            if phase.flavor_duration_s:
                graph.phase_flavor_s[graph.n_phases] = phase.flavor_duration_s
            graph.phase_kind.append(GPU if phase.kind == "gpu" else CPU)
            graph.phase_shape.append(self._shape_number(phase.to_shape()))
            graph.phase_duration_s.append(phase.duration_s)
        graph.phase_offsets.append(len(graph.phase_kind))
        if (options := task.to_options()) != TaskOptions():
            graph.options[number] = options
        for field, ids, column in (("inputs", task.inputs, graph.inputs), ("outputs", task.outputs, graph.outputs)):
            if ids:
                column[number] = self._file_numbers(ids, f"tasks[{number}].{field}")

    def finish(self) -> Graph:
        """The graph, with parents as numbers; InputError names an unknown one and the nearest id."""
        number_of = self._numbers
        for task, parents in enumerate(self._parents):
            try:
                self.graph.parents.append(tuple(number_of[p] for p in parents))
            except KeyError:
                index, wrong = next((i, p) for i, p in enumerate(parents) if p not in number_of)
                place = join(self._place, f"tasks[{task}].parents[{index}]")
                raise InputError(place, f"unknown task {wrong!r}", did_you_mean(wrong, number_of)) from None
        self._parents = []
        return self.graph

    def _shape_number(self, shape: Shape) -> int:
        number = self._shapes.setdefault(shape, len(self._shapes))
        if number == len(self.graph.shapes):
            self.graph.shapes.append(shape)
        return number

    def _file_numbers(self, ids: tuple[str, ...], inside: str) -> tuple[int, ...]:
        for index, wrong in enumerate(ids):
            if wrong not in self._files:
                place = join(self._place, f"{inside}[{index}]")
                raise InputError(
                    place, f"unknown file {wrong!r}", did_you_mean(wrong, self._files) or "list it in files"
                )
        return tuple(self._files[i] for i in ids)


def iterate_tasks(graph: Graph) -> Iterator[Task]:
    """The tasks of a graph as models, one at a time. The models are made from checked columns, so not checked again."""
    phases = [_phase(graph, p) for p in range(graph.n_phases)]
    for number, task_id in enumerate(graph.ids):
        options = graph.options_of(number)
        yield Task(
            id=task_id,
            name="" if graph.names[number] == task_id else graph.names[number],
            parents=tuple(graph.ids[p] for p in graph.parents[number]),
            phases=tuple(phases[p] for p in graph.phases_of(number)),
            inputs=tuple(graph.file_ids[f] for f in graph.inputs.get(number, ())),
            outputs=tuple(graph.file_ids[f] for f in graph.outputs.get(number, ())),
            **_option_fields(options),
        )


def _phase(graph: Graph, phase: int) -> Phase:
    shape = graph.shapes[graph.phase_shape[phase]]
    return Phase(
        kind="gpu" if graph.phase_kind[phase] == GPU else "cpu",
        cpus=shape.cpu_milli / 1000,
        gpus=shape.gpu_milli / 1000,
        memory=shape.memory_bytes,
        gpu_memory=shape.gpu_memory_bytes,
        duration_s=graph.phase_duration_s[phase],
        flavor_duration_s=graph.phase_flavor_s.get(phase, {}),
    )


def _option_fields(options: TaskOptions) -> dict[str, Any]:
    """Without what is bound to one site, as devices that a task has had there."""
    fields: dict[str, Any] = {f: getattr(options, f) for f in options.__struct_fields__ if f in OPTIONS}
    return fields | {"warm_cpus": options.warm_cpu_milli / 1000, "warm_memory": options.warm_memory_bytes}


def _milli(amount: float) -> int:
    return max(1, round(amount * 1000)) if amount else 0


def input_error(error: ValidationError, place: str, inside: str = "") -> InputError:
    """The first of pydantic's errors as an InputError that names the place in the JSON."""
    first = error.errors(include_url=False, include_input=False)[0]
    path = inside
    for step in first["loc"]:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else str(step)
    known = [*Task.model_fields, *Phase.model_fields, *Workload.model_fields]
    problem = "JSON is nested too deeply" if _is_too_deep(first) else problem_of(first)
    return InputError(join(place, path), problem, hint_of(first, known))


def _is_too_deep(error: Mapping[str, Any]) -> bool:
    return bool(error["type"] == "json_invalid" and "recursion" in error["msg"])


__all__ = ["FORMAT", "KIND_NAMES", "VERSION", "File", "GraphBuilder", "Phase", "Task", "Workload", "WorkloadHead"]
