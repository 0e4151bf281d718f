"""What the engine is told of tasks whose processes are used up by them, and what is said of gangs that cannot start."""

from __future__ import annotations

import pytest

from egs_core.engine.messages import NodeAdded
from egs_core.graph.columns import CPU, Graph, Shape, TaskOptions
from egs_ray.session.gangs import describe_lack
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


@pytest.mark.parametrize(
    ("topology", "said"),
    [
        ((), "gang 'g' is to be together in one rack, and no node has the label 'rack'"),
        (
            (("rack", "r1"),),
            "gang 'g' of 2 tasks needs 0 GPUs and 4 CPUs at once in one rack; there are 1 GPU and 2 CPUs on",
        ),
    ],
)
def test_a_gang_whose_level_no_node_has_is_told_that(topology: tuple[tuple[str, str], ...], said: str) -> None:
    """Not amounts, of which there may be enough."""
    graph = Graph()
    for number in range(2):
        graph.add_task(f"t{number}", (), ((CPU, Shape(2000), 1.0),), "t", TaskOptions(gang="g", gang_same="rack"))
    assert describe_lack(graph, "g", [0, 1], [NodeAdded("n", 2, 1, topology=topology)]).startswith(said)
