"""How each task of a graph reaches Ray on the nodes that there are, and what the site is told of those that EGS does
not start phase by phase. Pure: reads and rewrites a block of the graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from egs_core.engine import messages as m
from egs_core.errors import InputError, counted
from egs_core.graph.columns import Graph, Shape
from egs_core.site import Node, could_start_together, fits
from egs_ray.payload import Payload
from egs_ray.session.gangs import describe_lack, members_by_gang
from egs_ray.session.tasks import Way, is_placed_by_ray, is_ungated, way_of


class Plan(msgspec.Struct):
    """A graph as it can be run on the nodes that there are, how each task reaches Ray, and what of the user's hints had
    to be left out."""

    graph: Graph
    ways: list[Way]
    left_out: list[str]


def plan_ways(payloads: Sequence[Payload], graph: Graph, nodes: Sequence[Node], grows: bool) -> Plan:
    """grows: more nodes may come, so tasks may wait for what there is not yet.

    A gang with a task that only Ray can place is none: Ray would not start it with the others. Flavors that no node has
    are no preference of anything, and the task may run anywhere, as it would without EGS.
    """
    plan = Plan(msgspec.structs.replace(graph, options=dict(graph.options)), [], [])
    _leave_out_flavors(plan, nodes, grows)
    plan.ways = [choose_way(payloads[i], plan.graph, i, nodes, grows) for i in range(graph.n_tasks)]
    for gang, members in members_by_gang(plan.graph).items():
        rays = [index for index in members if plan.ways[index] is Way.NATIVE]
        if not rays:
            continue
        why = f"only Ray can place {graph.ids[rays[0]]}"
        plan.left_out.append(f"the tasks of gang {gang!r} are not started together: {why}")
        for index in members:
            plan.graph.options[index] = msgspec.structs.replace(plan.graph.options[index], gang="", gang_same="")
            plan.ways[index] = choose_way(payloads[index], plan.graph, index, nodes, grows)
    return plan


def _leave_out_flavors(plan: Plan, nodes: Sequence[Node], grows: bool) -> None:
    there = {node.flavor for node in nodes if node.alive}
    for index, options in plan.graph.options.items():
        if options.flavors and not grows and there.isdisjoint(options.flavors):
            plan.graph.options[index] = msgspec.structs.replace(options, flavors=())
            known = ", ".join(sorted(there - {""})) or "none has a name"
            name, wanted = plan.graph.names[index], ", ".join(options.flavors)
            plan.left_out.append(f"{name} may run anywhere: no node is of flavor {wanted} (there: {known})")


def check_gangs(name: str, plan: Plan, offers: Sequence[m.NodeAdded]) -> None:
    """Raises InputError for a gang that could not start even if nothing else ran."""
    for gang, members in members_by_gang(plan.graph).items():
        if not could_start_together(plan.graph, members, offers):
            problem = describe_lack(plan.graph, gang, members, offers)
            raise InputError(name, problem, "fewer or smaller tasks in the gang, or more nodes")


def choose_way(payload: Payload, graph: Graph, index: int, nodes: Sequence[Node], grows: bool = False) -> Way:
    """As the graph says, but tasks that only Ray can place, or that need what no node offers yet, are Ray's: it tells
    its autoscaler. A gang waits for nodes that may come as one."""
    if is_placed_by_ray(payload.options, len(nodes)):
        return Way.NATIVE
    shapes = [graph.shapes[graph.phase_shape[p]] for p in graph.phases_of(index)]
    has_room = any(all(fits(node, shape) for shape in shapes) for node in nodes)
    may_wait = grows and bool(graph.options_of(index).gang)
    return way_of(graph, index) if has_room or may_wait else Way.NATIVE


def lack_of(graph: Graph, index: int, nodes: Sequence[Node]) -> str:
    """What a task needs that no node offers, with the numbers; "" where some node can hold each of its phases."""
    shapes = [graph.shapes[graph.phase_shape[p]] for p in graph.phases_of(index)]
    alive = [node for node in nodes if node.alive]
    if any(all(fits(node, shape) for shape in shapes) for node in alive):
        return ""
    gpus = max(shape.gpu_milli for shape in shapes) / 1000
    cpus = max(shape.cpu_milli for shape in shapes) / 1000
    most = max(((node.gpus, node.cpu_milli / 1000) for node in alive), default=(0, 0.0))
    needs = f"{counted(gpus, 'GPU')} and {counted(cpus, 'CPU')}"
    return f"needs {needs} on one node; the largest has {most[0]} and {most[1]:g}"


def for_site(graph: Graph, ways: Sequence[Way], nodes: Sequence[Node]) -> Graph:
    """The block as the site gets it: short CPU tasks need nothing of its capacity, so that they are granted the
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
    has_room = any(fits(node, whole) for node in nodes)
    for p in phases:
        block.phase_shape[p] = block.intern_shape(whole if has_room and p == phases[0] else Shape(0))
    if index in block.options:
        block.options[index] = msgspec.structs.replace(block.options[index], warm_key="", warmup_s=0.0)
