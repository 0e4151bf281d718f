"""The time that no scheduler can beat: LB2 over the GPU phases of all pipelines, with their heads and tails."""

from __future__ import annotations

from egs_airflow.demo import times
from egs_core.graph.bounds import gpu_phases, lower_bound_of
from egs_core.graph.columns import CPU, GPU, Graph, Shape

ON_CPU, ON_GPU = Shape(cpu_milli=1000), Shape(cpu_milli=0, gpu_milli=1000)


def ideal_bound_s() -> float:
    """Seconds from the first submission to the last end, were every process warm and every switch free."""
    head, work, tail = gpu_phases(demo_graph())
    heads_s = [number * times.ARRIVAL_S + before for number in range(times.PIPELINES) for before in head]
    return lower_bound_of(heads_s, tail * times.PIPELINES, work * times.PIPELINES, times.GPUS)


def demo_graph() -> Graph:
    """One pipeline, each task in its phases and each phase with only what it needs: the best that can be done."""
    graph = Graph()
    load = graph.add_task("load", (), ((CPU, ON_CPU, times.LOAD_S),), "load")
    images = graph.add_task("preprocess", (load,), ((CPU, ON_CPU, times.PREPROCESS_S),), "preprocess")
    training = ((CPU, ON_CPU, times.DECODE_S), (GPU, ON_GPU, times.FIT_S), (CPU, ON_CPU, times.WRITE_S))
    trained = [graph.add_task(f"train_{number}", (images,), training, "train") for number in range(times.TRAININGS)]
    scores = graph.add_task("evaluate", (images, *trained), ((GPU, ON_GPU, times.EVALUATE_S),), "evaluate")
    graph.add_task("report", (scores,), ((CPU, ON_CPU, times.REPORT_S),), "report")
    return graph
