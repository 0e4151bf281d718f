"""The time that no scheduler can beat: LB2 over the GPU phases of all pipelines, with their heads and tails."""

from __future__ import annotations

from egs_core.graph.analysis import heads, tails
from egs_core.graph.bounds import lower_bound_of
from egs_core.graph.columns import GPU, Graph
from egs_ray.demo import pipelines as demo
from egs_ray.demo.graph import demo_graph


def ideal_bound_s() -> float:
    """Seconds from the first submission to the last end, were every process warm and every switch free."""
    head, work, tail = gpu_phases(demo_graph())
    arrivals = [number * demo.ARRIVAL_S for number in range(demo.PIPELINES)]
    heads_s = [arrival + before for arrival in arrivals for before in head]
    return lower_bound_of(heads_s, tail * demo.PIPELINES, work * demo.PIPELINES, demo.GPUS)


def gpu_phases(graph: Graph) -> tuple[list[float], list[float], list[float]]:
    """Of each GPU phase of a graph: the least time before it since submission, its length, the least time after it."""
    task_heads, task_tails = heads(graph), tails(graph)
    rows = []
    for task in range(graph.n_tasks):
        phases = graph.phases_of(task)
        seconds = [graph.phase_duration_s[phase] or 0.0 for phase in phases]
        for at, phase in enumerate(phases):
            if graph.phase_kind[phase] == GPU:
                before, after = sum(seconds[:at]), sum(seconds[at + 1 :])
                rows.append((task_heads[task] + before, seconds[at], after + task_tails[task]))
    head, work, tail = (list(column) for column in zip(*rows, strict=True))
    return head, work, tail
