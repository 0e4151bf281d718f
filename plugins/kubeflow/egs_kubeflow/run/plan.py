"""A compiled pipeline as the runner reads it: its messages, and what the converted graph says of each of its tasks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import msgspec

from egs_core.errors import InputError, counted
from egs_core.graph.columns import CPU, DEFAULT_OPTIONS, Graph, Limits, Shape, TaskOptions
from egs_core.graph.places import did_you_mean
from egs_kubeflow import compat
from egs_kubeflow.convert.documents import Documents, Spec, checked
from egs_kubeflow.convert.pipeline import Converted, convert_spec
from egs_kubeflow.run import docker
from egs_kubeflow.run.gangs import gangs_of
from egs_kubeflow.run.loads import Loads, loads_of, with_loads
from egs_kubeflow.run.values import Values, producers_of, with_defaults

NOT_HERE: dict[str, Any] = {
    name: getattr(DEFAULT_OPTIONS, name) for name in (*Limits.__struct_fields__, "flavors", "gang_same")
}
"""Options that the runner does not give to the engine, as they are where nobody states them."""

NOTHING = Shape(0)
"""What a task holds of which nothing runs."""

LEAST_CPU_MILLI = 125
"""What any other holds of a CPU, whatever it asks for: no more than eight processes a CPU are alive at once."""


OF_KUBERNETES = {
    "secret_as_env": "secrets",
    "secret_as_volume": "volumes of secrets",
    "config_map_as_env": "config maps",
    "config_map_as_volume": "volumes of config maps",
    "field_path_as_env": "fields of the pod",
    "pvc_mount": "persistent volumes",
    "generic_ephemeral_volume": "ephemeral volumes",
    "empty_dir_mounts": "empty folders",
}
"""What the platform's configuration of a task may give it, and in what words a note says that it is not here."""


NOT_KEPT = {
    "memory": ("memory_bytes", "memory is not counted"),
    "gpu_memory": ("gpu_memory_bytes", "memory of GPUs is not counted"),
    "flavors": ("flavors", "there is one machine, of one kind"),
    "grace": ("grace_s", "no checkpoint is asked for, and a task that was stopped starts from its beginning"),
}
"""Hints that mean nothing to the local runner: the field of `TaskHints`, and why. That `max_cost` and `idle_timeout`
are without effect is said wherever they are read."""


@dataclass(frozen=True)
class Slots:
    """What this machine offers to tasks. devices: its GPUs by their ids; is_emulated: those are slots only."""

    cpus: float
    devices: tuple[str, ...] = ()
    is_emulated: bool = False

    def fit(self, shape: Shape) -> Shape:
        """A shape, no larger than the machine: who asks for more gets all of it, instead of waiting for ever. And no
        smaller than what a process is: devices bound how many hold one, CPUs all others."""
        least = 0 if shape.gpu_milli and self.devices else LEAST_CPU_MILLI
        cpu_milli = min(max(shape.cpu_milli, least), math.floor(self.cpus * 1000))
        return Shape(cpu_milli, min(shape.gpu_milli, len(self.devices) * 1000), shape.memory_bytes)


@dataclass
class Plan:
    """graph: the pipeline's, one task for all iterations of a loop, by the path of its name. inputs: the arguments.
    gangs, loads: by the same paths. notes: what tasks ask for and this machine has not, in words for a person."""

    spec: Spec
    graph: Graph
    inputs: Values
    gangs: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    loads: dict[str, Loads] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.numbers = {task: number for number, task in enumerate(self.graph.ids)}

    @property
    def name(self) -> str:
        return self.spec.name

    def component_of(self, task: Any) -> Any:
        return self.spec.pipeline.components[task.component_ref.name]

    def executor_of(self, task: Any) -> Any:
        return self.spec.executors[self.component_of(task).executor_label]

    def is_group(self, task: Any) -> bool:
        """Whether a task stands for others: a nested DAG, a branch or a loop."""
        return self.component_of(task).HasField("dag") or task.WhichOneof("iterator") is not None

    def is_collected(self, component: Any, output: str) -> bool:
        """Whether an output of a DAG is what a loop in it has collected."""
        for name, key in producers_of(component.dag.outputs, output):
            task = component.dag.tasks[name]
            inner = self.component_of(task)
            if task.WhichOneof("iterator") or (inner.HasField("dag") and self.is_collected(inner, key)):
                return True
        return False

    def phase(self, kind: str) -> tuple[int, Shape, float | None]:
        """Kind, resources and expected seconds of the task that has this path."""
        phase = self.graph.phase_offsets[self.numbers[kind]]
        return (
            self.graph.phase_kind[phase],
            self.graph.shapes[self.graph.phase_shape[phase]],
            self.graph.phase_duration_s[phase],
        )

    def options(self, kind: str, gang: str = "", task_id: str = "") -> TaskOptions:
        """What the engine may know of a task, with the gang's name in this run. Left out is what needs more than one
        machine, and limits: the runner ends an attempt itself. task_id: of one that is to run; what it loads serves no
        other, as each has a process of its own."""
        found = self.graph.options_of(self.numbers[kind])
        key = f"{found.warm_key} {task_id}" if found.warm_key and task_id else ""
        return msgspec.structs.replace(found, **NOT_HERE, gang=gang, warm_key=key)

    def gpus(self, kind: str) -> float:
        """How many GPUs a task holds."""
        return self.phase(kind)[1].gpu_milli / 1000

    def limit(self, kind: str, gpu_s: float) -> tuple[float | None, str]:
        """How long an attempt of a task may take, and which limit that is. gpu_s: GPU seconds of its earlier ones."""
        stated, gpus = self.graph.options_of(self.numbers[kind]), self.gpus(kind)
        left_s = math.inf if stated.max_gpu_s is None or not gpus else max(0.0, stated.max_gpu_s - gpu_s) / gpus
        if left_s < (math.inf if stated.max_runtime_s is None else stated.max_runtime_s):
            return left_s, f"{stated.max_gpu_s:g} s of GPU time"
        return stated.max_runtime_s, "" if stated.max_runtime_s is None else f"{stated.max_runtime_s:g} s"

    def group_seconds(self, kind: str, unknown_s: float) -> float:
        """The longest path through what a task stands for; a loop counts as one iteration. unknown_s: for each task
        of which nobody knows."""
        longest: dict[int, float] = {}
        for number, task in enumerate(self.graph.ids):  # parents first
            if task.startswith(f"{kind}."):
                own = self.graph.phase_duration_s[self.graph.phase_offsets[number]]
                before = max((longest.get(parent, 0.0) for parent in self.graph.parents[number]), default=0.0)
                longest[number] = before + (unknown_s if own is None else own)
        return max(longest.values(), default=0.0)


def make_plan(documents: Documents, given: Values, slots: Slots, place: str) -> Plan:
    """Read a pipeline and check it, its arguments and what its components need. Raises InputError: nothing has run."""
    if not compat.available("local"):
        raise InputError(f"kfp {compat.kfp_version()}", "has no local executor that EGS knows", "kfp.local may run it")
    spec = checked(documents, place)
    inputs = _inputs(spec, given, place)
    converted = convert_spec(spec, inputs, place)
    for number, facts in enumerate(converted.facts):
        if facts.kind == "container":
            _check_container(spec.executors[facts.executor].container, f"{place}: task {converted.graph.ids[number]!r}")
        elif facts.kind not in ("importer", "join"):
            raise InputError(
                f"{place}: task {converted.graph.ids[number]!r}", f"is of a kind not run here: {facts.kind}"
            )
    loads, not_loaded = loads_of(spec, converted)
    runs = [facts.kind == "container" for facts in converted.facts]
    gangs, left_out = gangs_of(converted.graph)
    notes = (
        *_lacking(converted.graph, runs, slots),
        *left_out,
        *_not_kept(converted),
        *not_loaded,
        *_of_kubernetes(spec, converted),
    )
    graph = with_loads(_fitted(converted.graph, runs, slots), loads)
    return Plan(spec, graph, inputs, gangs, notes, loads=loads)


def _check_container(container: Any, place: str) -> None:
    if not compat.runs_user_code(list(container.command)) and (problem := docker.why_not()):
        hint = "lightweight Python components need none"
        raise InputError(place, f"needs its container {container.image!r}, and {problem}", hint)


def _fitted(graph: Graph, runs: list[bool], slots: Slots) -> Graph:
    """The graph with what this machine has for each task; tasks of which nothing runs hold nothing."""
    found = Graph(ids=graph.ids, names=graph.names, parents=graph.parents, options=graph.options)
    for number, first in enumerate(graph.phase_offsets[:-1]):
        shape = slots.fit(graph.shapes[graph.phase_shape[first]]) if runs[number] else NOTHING
        found.phase_kind.append(graph.phase_kind[first] if shape.gpu_milli else CPU)
        found.phase_shape.append(found.intern_shape(shape))
        found.phase_duration_s.append(graph.phase_duration_s[first])
        found.phase_offsets.append(number + 1)
    return found


def _lacking(graph: Graph, runs: list[bool], slots: Slots) -> tuple[str, ...]:
    """What tasks ask for and there is not: one line for GPUs, one for CPUs."""
    shapes = [graph.shapes[graph.phase_shape[first]] for first in graph.phase_offsets[:-1]]
    asked = [shape for shape, is_run in zip(shapes, runs, strict=True) if is_run]
    gpus = [shape.gpu_milli / 1000 for shape in asked if shape.gpu_milli > 1000 * len(slots.devices)]
    cpus = [shape.cpu_milli / 1000 for shape in asked if shape.cpu_milli > 1000 * slots.cpus]
    notes = []
    if gpus and slots.devices:
        most = counted(max(gpus), "GPU")
        notes.append(f"{_ask(gpus)} for up to {most}, there are {len(slots.devices)}: one such task gets all")
    elif gpus:
        notes.append(f"{_ask(gpus)} for a GPU, there is none here: --gpus 1 --emulate-gpus makes slots")
    if cpus:
        most = counted(max(cpus), "CPU")
        notes.append(f"{_ask(cpus)} for up to {most}, there are {slots.cpus:g}: one such task gets all")
    return tuple(notes)


def _not_kept(converted: Converted) -> list[str]:
    """One line for each hint that some task has and that nothing here keeps."""
    found = []
    for hint, (name, why) in NOT_KEPT.items():
        tasks = [
            task for task, facts in zip(converted.graph.ids, converted.facts, strict=True) if getattr(facts.hints, name)
        ]
        if tasks:
            more = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
            found.append(f"the hint {hint} of {tasks[0]!r}{more} is not kept on this machine: {why}")
    return found


def _of_kubernetes(spec: Spec, converted: Converted) -> list[str]:
    """What tasks expect in their environment or files that only a cluster has."""
    found = []
    for task, facts in zip(converted.graph.ids, converted.facts, strict=True):
        config = spec.kubernetes.get(facts.executor)
        words = [word for name, word in OF_KUBERNETES.items() if config is not None and len(getattr(config, name))]
        if words:
            found.append(f"task {task!r} runs without its {' and '.join(words)} of Kubernetes, which are not here")
    return found


def _ask(tasks: list[float]) -> str:
    return "1 task asks" if len(tasks) == 1 else f"{len(tasks)} tasks ask"


def _inputs(spec: Spec, given: Values, place: str) -> Values:
    known = spec.pipeline.root.input_definitions
    for name in given:
        if name not in known.parameters:
            raise InputError(
                f"{place}: argument {name!r}", "is no parameter of it", did_you_mean(name, known.parameters)
            )
    for name, stated in [*known.parameters.items(), *known.artifacts.items()]:
        if name not in given and not stated.is_optional:
            problem = "is an artifact, and cannot be given here" if name in known.artifacts else "is missing"
            raise InputError(f"{place}: argument {name!r}", problem)
    return with_defaults(given, spec.pipeline.root)
