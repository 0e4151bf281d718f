"""What the engine is told of tasks whose processes are used up by them."""

from __future__ import annotations

from egs_core.graph.columns import CPU, Graph, Shape, TaskOptions
from egs_ray.session.ways import unshared


def test_used_up_processes_have_keys_of_their_own() -> None:
    """The tasks named get keys that no other task has, in no other run; the rest, and the graph given, stay as is."""
    graph = Graph()
    for number in range(3):
        options = TaskOptions(warm_key="model", warmup_s=2.0) if number < 2 else None
        graph.add_task(f"t{number}", (), ((CPU, Shape(1000), 1.0),), "t", options)
    told = unshared(graph, [0, 2], "run#1")
    keys = [told.options_of(task).warm_key for task in range(3)]
    assert keys[0] not in ("", "model")
    assert keys[1:] == ["model", ""]
    assert unshared(graph, [0], "run#2").options_of(0).warm_key != keys[0]
    assert told.options_of(0).warmup_s == 2.0
    assert graph.options_of(0).warm_key == "model"
