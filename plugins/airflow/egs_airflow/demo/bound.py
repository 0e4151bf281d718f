"""The time that no scheduler can beat: LB2 over the GPU phases of all pipelines, with their heads and tails."""

from __future__ import annotations

from egs_airflow.demo import times
from egs_core.graph.bounds import submissions_bound
from egs_core.graph.columns import CPU, GPU, Graph, Shape

ON_CPU, ON_GPU = Shape(cpu_milli=1000), Shape(cpu_milli=0, gpu_milli=1000)


def ideal_bound_s() -> float:
    return submissions_bound(demo_graph(), times.GPUS, times.PIPELINES, times.ARRIVAL_S)


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
