"""The run log's line of a task that has come, from its graph: whatever runs a graph writes it here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from egs_core.graph.columns import KIND_NAMES, Graph
from egs_core.runlog.records import PhaseNeeds, TaskAdded


def added_tasks(t: float, workload: str, graph: Graph, id_of: Callable[[int], str] | None = None) -> list[TaskAdded]:
    """The lines of a block. id_of: the id of a task by its place in the workload; for a workload of this block alone
    the graph's own."""
    name = id_of or graph.ids.__getitem__
    return [
        added_task(t, workload, graph, task, parents=map(name, parents)) for task, parents in enumerate(graph.parents)
    ]


def added_task(
    t: float,
    workload: str,
    graph: Graph,
    task: int,
    *,
    parents: Iterable[str] | None = None,
    phases: Sequence[PhaseNeeds] | None = None,
    task_id: str = "",
    name: str = "",
    input_bytes: int = -1,
) -> TaskAdded:
    """One line. parents, phases, task_id, name: where they are others than the graph's. input_bytes: -1 unknown."""
    found = map(graph.ids.__getitem__, graph.parents[task]) if parents is None else parents
    held = needs_of(graph, task) if phases is None else phases
    known, shown = task_id or graph.ids[task], name or graph.names[task]
    return TaskAdded(t, workload, known, shown, tuple(found), tuple(held), input_bytes)


def needs_of(graph: Graph, task: int) -> list[PhaseNeeds]:
    """What each phase of a task holds."""
    found = []
    for phase in graph.phases_of(task):
        shape, kind = graph.shapes[graph.phase_shape[phase]], KIND_NAMES[graph.phase_kind[phase]]
        found.append((kind, shape.cpu_milli / 1000, shape.gpu_milli / 1000, shape.memory_bytes))
    return found
