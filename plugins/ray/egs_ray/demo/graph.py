"""The demo's pipelines as a workload graph, read off the same wiring that Ray is given."""

from __future__ import annotations

from typing import Any

import msgspec

from egs_core.graph.bounds import submissions_bound
from egs_core.graph.columns import CPU, Graph, Shape
from egs_ray.demo import pipelines as demo
from egs_ray.demo.marks import task_id

CPU_SHAPE = Shape(cpu_milli=1000)
GPU_SHAPE = Shape(cpu_milli=0, gpu_milli=1000)


class _Output(msgspec.Struct, frozen=True):
    """Stands for the result of a task while the wiring is read."""

    task: int


def ideal_bound_s() -> float:
    """The time that no scheduler can beat."""
    return submissions_bound(demo_graph(), demo.GPUS, demo.PIPELINES, demo.ARRIVAL_S)


def demo_graph() -> Graph:
    """One pipeline, each task in its phases and each phase with only what it needs: the best that can be done."""
    graph = Graph()

    def record(task: Any, *arguments: Any) -> _Output:
        name, phases = demo.STAGES[task]
        parents = tuple(argument.task for argument in arguments if isinstance(argument, _Output))
        columns = tuple((kind, CPU_SHAPE if kind == CPU else GPU_SHAPE, seconds) for kind, seconds in phases)
        return _Output(graph.add_task(task_id(name, graph.names.count(name)), parents, columns, name))

    demo.pipeline(record, "", 0)
    return graph
