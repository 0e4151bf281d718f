"""The time that no scheduler can beat: LB2 over the GPU phases of all pipelines, with their heads and tails."""

from __future__ import annotations

from egs_core.graph.bounds import gpu_phases, lower_bound_of
from egs_ray.demo import pipelines as demo
from egs_ray.demo.graph import demo_graph


def ideal_bound_s() -> float:
    """Seconds from the first submission to the last end, were every process warm and every switch free."""
    head, work, tail = gpu_phases(demo_graph())
    arrivals = [number * demo.ARRIVAL_S for number in range(demo.PIPELINES)]
    heads_s = [arrival + before for arrival in arrivals for before in head]
    return lower_bound_of(heads_s, tail * demo.PIPELINES, work * demo.PIPELINES, demo.GPUS)
