"""What the nodes offer that a holder has described to its site: the holder's own knowledge, nobody is asked."""

from __future__ import annotations

from collections.abc import Iterable

from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.rules.fit import fits_ever
from egs_core.engine.state.nodes import Node
from egs_core.graph.columns import Graph, Shape

__all__ = ["Node", "Offers", "could_start_together", "fits"]


class Offers:
    """nodes: all that were ever described, as if nothing ran on them; those that are gone are not `alive`."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}

    def hear(self, event: m.Event) -> None:
        """Take an event over that tells of a node; any other says nothing."""
        if isinstance(event, m.NodeAdded):
            node = self._nodes.setdefault(event.node, Node(event.node))
            node.take_capacity(event)
        elif isinstance(event, m.NodeLost) and event.node in self._nodes:
            self._nodes[event.node].alive = False

    @property
    def nodes(self) -> list[Node]:
        return list(self._nodes.values())

    @property
    def are_several(self) -> bool:
        return len(self._nodes) > 1

    def preload_slots(self, node: str) -> int | None:
        """How many processes may load at once there; None for an unknown node."""
        return self._nodes[node].preload_slots if node in self._nodes else None


def fits(node: Node, shape: Shape) -> bool:
    """Whether the node could hold this when it is empty."""
    return fits_ever(node, shape)


def could_start_together(graph: Graph, members: Iterable[int], nodes: Iterable[m.NodeAdded]) -> bool:
    """Whether these tasks of a graph, by their indices, could start together if nothing else ran: an engine is asked
    with nothing but them and the nodes."""
    engine, alone = Engine(EngineConfig(preload=False)), Graph()
    for node in nodes:
        engine.handle(node, 0.0)
    for index in members:
        phases = [(graph.phase_kind[p], graph.shapes[graph.phase_shape[p]], 1.0) for p in graph.phases_of(index)]
        alone.add_task(graph.ids[index], (), tuple(phases), options=graph.options[index])
    engine.handle(m.WorkloadSubmitted("gang"), 0.0)
    decisions = engine.handle(m.TasksAdded("gang", alone), 0.0)
    return sum(isinstance(decision, m.Grant) for decision in decisions) == alone.n_tasks
