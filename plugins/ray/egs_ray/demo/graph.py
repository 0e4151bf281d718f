"""The demo's pipelines as a workload graph, read off the same wiring that Ray is given."""

from __future__ import annotations

from typing import Any

import msgspec

from egs_core.graph.columns import CPU, Graph, Shape
from egs_ray.demo.marks import task_id
from egs_ray.demo.pipelines import STAGES, pipeline

CPU_SHAPE = Shape(cpu_milli=1000)
GPU_SHAPE = Shape(cpu_milli=0, gpu_milli=1000)


class _Output(msgspec.Struct, frozen=True):
    """Stands for the result of a task while the wiring is read."""

    task: int


def demo_graph() -> Graph:
    """One pipeline, each task in its phases and each phase with only what it needs: the best that can be done."""
    graph = Graph()

    def record(task: Any, *arguments: Any) -> _Output:
        name, phases = STAGES[task]
        parents = tuple(argument.task for argument in arguments if isinstance(argument, _Output))
        columns = tuple((kind, CPU_SHAPE if kind == CPU else GPU_SHAPE, seconds) for kind, seconds in phases)
        return _Output(graph.add_task(task_id(name, graph.names.count(name)), parents, columns, name))

    pipeline(record, "", 0)
    return graph
