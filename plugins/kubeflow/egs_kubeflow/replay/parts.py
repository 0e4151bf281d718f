"""The tasks of a workload file as kfp tasks, before they are written into a pipeline.

native   `tN` is task N of the file: one kfp task, which holds all that any of its phases needs
egs      a task with phases of both kinds is one kfp task a phase, `tN-0`, `tN-1`, …, each with only what it needs
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import msgspec

from egs_core.adapter import ReplayWorkload
from egs_core.errors import InputError
from egs_core.graph.columns import CPU, GPU, KIND_NAMES, Graph

_PATH = re.compile(r"w(\d+)\.t(\d+)(?:-(\d+))?")


class Code(msgspec.Struct, frozen=True):
    """What tasks of one component have in common. The last four are hints: with EGS only."""

    cpu_milli: int
    gpus: int
    expect_s: float | None = None
    stage: str = ""
    priority: int = 0
    max_wait_s: float | None = None


class Part(msgspec.Struct, frozen=True):
    """One kfp task. phases: kind and seconds of each that it plays; parents: kfp tasks of the same workload."""

    name: str
    code: Code
    phases: tuple[tuple[str, float], ...]
    load_s: float
    parents: tuple[str, ...]


def check_expressible(workload: ReplayWorkload) -> None:
    """InputError that names a task which a pipeline of kfp's has no way to state."""
    graph = workload.graph
    for task, task_id in enumerate(graph.ids):
        place = f"{workload.name}: task {task_id!r}"
        if gang := graph.options_of(task).gang:
            raise InputError(place, f"is in gang {gang!r}: locally, tasks start one by one", "use --on sim")
        if any(graph.shapes[graph.phase_shape[phase]].gpu_milli % 1000 for phase in graph.phases_of(task)):
            raise InputError(place, "needs a share of a GPU: Kubernetes hands out whole ones", "use --on sim or ray")


def place_of(path: str) -> tuple[int, int, int] | None:
    """Workload, task and phase of a kfp task by its path in the pipeline; None where it is of no workload."""
    found = _PATH.fullmatch(path)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3] or 0))


def groups_of(graph: Graph, task: int, with_egs: bool) -> list[list[int]]:
    """The phases of each kfp task that a task becomes."""
    phases = list(graph.phases_of(task))
    is_mixed = {graph.phase_kind[phase] for phase in phases} == {CPU, GPU}
    return [[phase] for phase in phases] if with_egs and is_mixed else [phases]


def parts_of(graph: Graph, time_scale: float, with_egs: bool) -> list[Part]:
    """All kfp tasks of a workload. With EGS they carry hints, and how long tasks of their name usually take."""
    groups = [groups_of(graph, task, with_egs) for task in range(graph.n_tasks)]
    names = [_names(task, len(of_task)) for task, of_task in enumerate(groups)]
    usual_s = _usual_seconds(graph, groups, time_scale) if with_egs else {}
    found = []
    for task, of_task in enumerate(groups):
        loads = _loads(graph, task, of_task, time_scale)
        for number, phases in enumerate(of_task):
            parents = names[task][number - 1 : number] if number else [names[up][-1] for up in graph.parents[task]]
            code = code_of(graph, phases)
            if with_egs:
                code = _hinted(code, graph, task, usual_s[graph.names[task], len(of_task), number], time_scale)
            played = tuple(_played(graph, phase, time_scale) for phase in phases)
            found.append(Part(names[task][number], code, played, loads[number], tuple(parents)))
    return found


def _names(task: int, parts: int) -> list[str]:
    return [f"t{task}"] if parts == 1 else [f"t{task}-{number}" for number in range(parts)]


def _played(graph: Graph, phase: int, time_scale: float) -> tuple[str, float]:
    return KIND_NAMES[graph.phase_kind[phase]], round((graph.phase_duration_s[phase] or 0.0) * time_scale, 6)


def _loads(graph: Graph, task: int, groups: Sequence[Sequence[int]], time_scale: float) -> list[float]:
    """How long each kfp task of a task loads: each is a process of its own, and the first with a GPU needs it."""
    options = graph.options_of(task)
    load_s = round(options.warmup_s * time_scale, 6) if options.warm_key else 0.0
    kinds = [GPU in {graph.phase_kind[phase] for phase in phases} for phases in groups]
    where = kinds.index(True) if True in kinds else 0
    return [load_s if number == where else 0.0 for number in range(len(groups))]


def code_of(graph: Graph, phases: Sequence[int]) -> Code:
    """The most that any of these phases needs."""
    shapes = [graph.shapes[graph.phase_shape[phase]] for phase in phases]
    return Code(max(shape.cpu_milli for shape in shapes), max(shape.gpu_milli for shape in shapes) // 1000)


def _hinted(code: Code, graph: Graph, task: int, usual_s: float, time_scale: float) -> Code:
    options = graph.options_of(task)
    max_wait_s = None if options.max_wait_s is None else options.max_wait_s * time_scale
    return msgspec.structs.replace(
        code, expect_s=usual_s, stage=options.stage, priority=options.priority, max_wait_s=max_wait_s
    )


def _usual_seconds(
    graph: Graph, groups: Sequence[Sequence[Sequence[int]]], time_scale: float
) -> dict[tuple[str, int, int], float]:
    """What a kfp task is expected to take, as if learned: the median over tasks of its name, cut into as many parts."""
    found: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for task, of_task in enumerate(groups):
        for number, phases in enumerate(of_task):
            seconds = sum(_played(graph, phase, time_scale)[1] for phase in phases)
            found[graph.names[task], len(of_task), number].append(seconds)
    return {kind: median(seconds) for kind, seconds in found.items()}
