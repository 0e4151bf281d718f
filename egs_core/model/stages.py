"""A split as work for the engine: the operators of a device that can run one after another are one stage, a task.

request   level of an operator: how often its inputs changed the device on their way to it, at most. A stage is a
          device's operators of one level, so that no two stages wait for each other:

              a ─► b ─┐               gpu0.0: a b    gpu0.2: d
              └──► c ─┴─► d           gpu1.1: c          a file from each stage to each that reads from it
          (a, b, d on gpu0)

stream    every device holds its part as long as the model serves: a task for each, in one gang, so that either all
          of them start or none
"""

from __future__ import annotations

from collections.abc import Sequence

from egs_core.graph.model import File, Phase, Task, Workload
from egs_core.model.instance import Instance
from egs_core.model.loss import Objective, used_bytes


def workload_of(instance: Instance, assignment: Sequence[int], objective: Objective, name: str) -> Workload:
    """The workload of one request, or of a model that serves. assignment: the number of a device for each operator."""
    return _serving(instance, assignment, name) if objective == "stream" else _request(instance, assignment, name)


def _serving(instance: Instance, assignment: Sequence[int], name: str) -> Workload:
    used, devices = used_bytes(instance, assignment), instance.devices.devices
    tasks = [
        Task(id=devices[d].name, gang=name, phases=(Phase(kind="gpu", gpus=1.0, gpu_memory=used[d]),))
        for d in sorted(set(assignment))
    ]
    return Workload(id=name, tasks=tuple(tasks))


def _request(instance: Instance, assignment: Sequence[int], name: str) -> Workload:
    operators, devices = instance.operators, instance.devices.devices
    stages = stages_of(instance, assignment)
    sent: dict[tuple[int, int], dict[tuple[int, int], int]] = {}  # to a stage, from a stage: bytes
    for source, target, size in operators.edges:
        if stages[source] != stages[target]:
            coming = sent.setdefault(stages[target], {})
            coming[stages[source]] = coming.get(stages[source], 0) + size
    seconds, held = dict.fromkeys(stages, 0.0), dict.fromkeys(stages, 0)
    for i in operators.order:
        seconds[stages[i]] += operators.seconds[i] / devices[assignment[i]].speed
        held[stages[i]] += operators.sizes[i]

    def called(stage: tuple[int, int]) -> str:
        return f"{devices[stage[1]].name}.{stage[0]}"

    def file(source: tuple[int, int], target: tuple[int, int]) -> str:
        return f"{called(source)} to {called(target)}"

    tasks, files = list[Task](), list[File]()
    for stage in sorted(seconds):
        coming = sent.get(stage, {})
        files += [File(id=file(source, stage), size_bytes=size) for source, size in sorted(coming.items())]
        tasks.append(
            Task(
                id=called(stage),
                parents=tuple(called(source) for source in sorted(coming)),
                inputs=tuple(file(source, stage) for source in sorted(coming)),
                outputs=tuple(file(stage, target) for target in sorted(sent) if stage in sent[target]),
                phases=(Phase(kind="gpu", gpus=1.0, gpu_memory=held[stage], duration_s=seconds[stage]),),
            )
        )
    return Workload(id=name, files=tuple(files), tasks=tuple(tasks))


def stages_of(instance: Instance, assignment: Sequence[int]) -> list[tuple[int, int]]:
    """The stage of each operator: its level, and the number of its device. An edge between two stages goes to a higher
    level, so they have no cycle."""
    operators = instance.operators
    before: list[list[int]] = [[] for _ in assignment]
    for source, target, _ in operators.edges:
        before[target].append(source)
    levels = [0] * len(assignment)
    for i in operators.order:
        levels[i] = max([levels[j] + (assignment[j] != assignment[i]) for j in before[i]], default=0)
    return list(zip(levels, assignment, strict=True))
