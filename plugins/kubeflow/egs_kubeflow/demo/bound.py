"""The time that no scheduler can beat: LB2 over the GPU phases of the pipeline, with their heads and tails."""

from __future__ import annotations

from egs_core.graph.bounds import submissions_bound
from egs_core.graph.columns import CPU, GPU, Graph, Shape
from egs_kubeflow.demo import times

ON_CPU, ON_GPU = Shape(cpu_milli=1000), Shape(cpu_milli=1000, gpu_milli=1000)


def ideal_bound_s(factor: float = 1.0) -> float:
    return factor * submissions_bound(demo_graph(), times.GPUS)


def demo_graph() -> Graph:
    """The pipeline, each task in its phases and each phase with only what it needs: the best that can be done.

    What a step decodes depends on the model of the step before: no training can begin earlier than its model is there.
    """
    graph = Graph()
    loaded = graph.add_task("load", (), ((CPU, ON_CPU, times.LOAD_S),))
    images = graph.add_task("prepare", (loaded,), ((CPU, ON_CPU, times.PREPARE_S),))
    training = ((CPU, ON_CPU, times.DECODE_S), (GPU, ON_GPU, times.FIT_S), (CPU, ON_CPU, times.WRITE_S))
    model, scores = images, []
    for number in range(times.STEPS):
        model = graph.add_task(f"train_{number}", (model,), training)
    candidates = [graph.add_task(f"candidate_{number}", (images,), training) for number in range(times.CANDIDATES)]
    for number, each in enumerate((model, *candidates)):
        scores.append(graph.add_task(f"evaluate_{number}", (each,), ((GPU, ON_GPU, times.EVALUATE_S),)))
    graph.add_task("report", tuple(scores), ((CPU, ON_CPU, times.REPORT_S),))
    return graph
