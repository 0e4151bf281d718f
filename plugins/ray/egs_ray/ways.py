"""How each task of a graph reaches Ray on the nodes that there are, and what the engine is told of those that EGS does
not start phase by phase. Pure: reads and rewrites a block of the graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from egs_core.engine.capacity import Node
from egs_core.engine.placement import fits_ever
from egs_core.graph.columns import Graph, Shape
from egs_ray.payload import Payload
from egs_ray.tasks import Way, is_placed_by_ray, is_ungated, way_of


def choose_way(payload: Payload, graph: Graph, index: int, nodes: Sequence[Node]) -> Way:
    """As the graph says, but tasks that only Ray can place, or that need what no node offers yet, are Ray's."""
    if is_placed_by_ray(payload.options, len(nodes)):
        return Way.NATIVE
    shapes = [graph.shapes[graph.phase_shape[p]] for p in graph.phases_of(index)]
    fits = any(all(fits_ever(node, shape) for shape in shapes) for node in nodes)
    return way_of(graph, index) if fits else Way.NATIVE


def for_engine(graph: Graph, ways: Sequence[Way], nodes: Sequence[Node]) -> Graph:
    """The block as the engine gets it: short CPU tasks need nothing of its capacity, so that they are granted the
    moment they are ready, and tasks that are Ray's are one piece."""
    block = msgspec.structs.replace(
        graph, shapes=list(graph.shapes), phase_shape=list(graph.phase_shape), options=dict(graph.options)
    )
    for index, way in enumerate(ways):
        first = block.phase_offsets[index]
        if way is Way.NATIVE:
            _make_whole(block, index, nodes)
        elif is_ungated(block, index, block.phase_duration_s[first]):
            block.phase_shape[first] = block.intern_shape(Shape(0))
    return block


def unshared(block: Graph, tasks: Iterable[int], workload: str) -> Graph:
    """The block with warm keys of their own for these tasks: no process that is left over serves another."""
    options = dict(block.options)
    for index in tasks:
        if index in options and (key := options[index].warm_key):
            options[index] = msgspec.structs.replace(options[index], warm_key=f"{key}#{workload}#{index}")
    return msgspec.structs.replace(block, options=options)


def _make_whole(block: Graph, index: int, nodes: Sequence[Node]) -> None:
    """A task that runs as written holds all it needs from its start to its end; what fits nowhere only waits in Ray."""
    phases = block.phases_of(index)
    shapes = [block.shapes[block.phase_shape[p]] for p in phases]
    whole = max(shapes, key=lambda shape: (shape.gpu_milli, shape.cpu_milli))
    fits = any(fits_ever(node, whole) for node in nodes)
    for p in phases:
        block.phase_shape[p] = block.intern_shape(whole if fits and p == phases[0] else Shape(0))
    if index in block.options:
        block.options[index] = msgspec.structs.replace(block.options[index], warm_key="", warmup_s=0.0)
