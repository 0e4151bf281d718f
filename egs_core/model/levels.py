"""The graph that the search works on, and coarser ones of it: operators joined that belong on one device.

a ─► b ─► d        level 0: a b c d e
└──► c ───┘► e     level 1: [a c] b [d e]     c has no input but a's, e none but d's: no cycle can come of it
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from egs_core.model.instance import Instance, topological_order
from egs_core.model.loss import Objective

Edges = dict[tuple[int, int], float]
COARSEST = 120
"""So few operators are searched thoroughly."""


class Level(msgspec.Struct, frozen=True):
    """A graph whose operators are numbered in topological order. members: what each is made of, numbers of the finer
    level, or of the file on the finest. inputs, outputs: of each, neighbours with the seconds of a transfer."""

    members: list[list[int]]
    sizes: list[int]
    seconds: list[float]
    inputs: list[list[tuple[int, float]]]
    outputs: list[list[tuple[int, float]]]

    def __len__(self) -> int:
        return len(self.sizes)

    def finer(self, assignment: Sequence[int]) -> list[int]:
        """An assignment of this level's operators, to the numbers that `members` has."""
        found = [0] * sum(map(len, self.members))
        for members, d in zip(self.members, assignment, strict=True):
            for i in members:
                found[i] = d
        return found


def levels_of(instance: Instance, objective: Objective) -> list[Level]:
    """From the finest to the coarsest."""
    found = [finest(instance, objective)]
    while len(found[-1]) > COARSEST:
        coarser = coarsened(found[-1], instance, objective)
        if len(coarser) > 0.95 * len(found[-1]):
            break
        found.append(coarser)
    return found


def finest(instance: Instance, objective: Objective) -> Level:
    """The operators as they are, in their stable topological order."""
    operators, devices = instance.operators, instance.devices
    position = [0] * len(operators.ids)
    for p, i in enumerate(operators.order):
        position[i] = p
    edges: Edges = {}
    for source, target, size_bytes in operators.edges:
        _add(edges, (position[source], position[target]), devices.transfer_s(size_bytes), objective)
    order = operators.order
    return _level(
        [[i] for i in order], [operators.sizes[i] for i in order], [operators.seconds[i] for i in order], edges
    )


def coarsened(level: Level, instance: Instance, objective: Objective) -> Level:
    """The next coarser one. Joined are: an operator with the only one that it has input from; with the only one that
    has input from it; those with the same inputs; else neighbours in an order that finishes what it has begun."""
    most_bytes = max(max(device.memory for device in instance.devices.devices) // 4, max(level.sizes))
    most_s = max(2.0 * instance.operators.total_s / COARSEST, max(level.seconds))
    for pairs in (_only_inputs(level), _only_outputs(level), _siblings(level), _in_sequence(level)):
        clusters = _joined(level, pairs, most_bytes, most_s)
        if max(clusters) + 1 <= 0.9 * len(level):
            break
    return _contracted(level, clusters, objective)


def depth_first(level: Level) -> list[int]:
    """A topological order that goes on with what it has just begun, so that branches lie together."""
    waits_for = [len(inputs) for inputs in level.inputs]
    ready = [i for i in range(len(level) - 1, -1, -1) if not waits_for[i]]
    order = []
    while ready:
        order.append(i := ready.pop())
        for j, _ in reversed(level.outputs[i]):
            waits_for[j] -= 1
            if not waits_for[j]:
                ready.append(j)
    return order


def _level(members: list[list[int]], sizes: list[int], seconds: list[float], edges: Edges) -> Level:
    inputs: list[list[tuple[int, float]]] = [[] for _ in sizes]
    outputs: list[list[tuple[int, float]]] = [[] for _ in sizes]
    for (i, j), transfer_s in edges.items():
        inputs[j].append((i, transfer_s))
        outputs[i].append((j, transfer_s))
    return Level(members, sizes, seconds, inputs, outputs)


def _add(edges: Edges, pair: tuple[int, int], transfer_s: float, objective: Objective) -> None:
    """Edges between two operators become one: in `stream` a link carries one after the other, in `request` all at
    once."""
    there = edges.get(pair, 0.0)
    edges[pair] = there + transfer_s if objective == "stream" else max(there, transfer_s)


Pairs = list[tuple[float, int, int]]
"""What may be joined: seconds of the transfer that this saves, and both operators."""


def _only_inputs(level: Level) -> Pairs:
    return [(inputs[0][1], inputs[0][0], j) for j, inputs in enumerate(level.inputs) if len(inputs) == 1]


def _only_outputs(level: Level) -> Pairs:
    return [(outputs[0][1], i, outputs[0][0]) for i, outputs in enumerate(level.outputs) if len(outputs) == 1]


def _siblings(level: Level) -> Pairs:
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, inputs in enumerate(level.inputs):
        groups.setdefault(tuple([j for j, _ in inputs]), []).append(i)
    return [(0.0, group[k], group[k + 1]) for group in groups.values() for k in range(0, len(group) - 1, 2)]


def _in_sequence(level: Level) -> Pairs:
    """Each second pair of neighbours in an order: joined runs of an order never make a cycle."""
    order = depth_first(level)
    return [(0.0, order[k], order[k + 1]) for k in range(0, len(order) - 1, 2)]


def _joined(level: Level, pairs: Pairs, most_bytes: int, most_s: float) -> list[int]:
    """The cluster of each operator: heaviest transfers first, none larger than the most, and none that takes in more
    than a handful at once, so that the graph shrinks evenly."""
    root = list(range(len(level)))
    sizes, seconds, count = list(level.sizes), list(level.seconds), [1] * len(level)

    def find(i: int) -> int:
        while root[i] != i:
            root[i] = i = root[root[i]]
        return i

    for _, i, j in sorted(pairs, key=lambda pair: -pair[0]):
        a, b = find(i), find(j)
        small = sizes[a] + sizes[b] <= most_bytes and seconds[a] + seconds[b] <= most_s
        if a != b and small and count[a] + count[b] <= 4:
            root[b] = a
            sizes[a], seconds[a], count[a] = sizes[a] + sizes[b], seconds[a] + seconds[b], count[a] + count[b]
    numbers: dict[int, int] = {}
    return [numbers.setdefault(find(i), len(numbers)) for i in range(len(level))]


def _contracted(level: Level, clusters: list[int], objective: Objective) -> Level:
    """The graph of the clusters, renumbered in its own stable topological order."""
    count = max(clusters) + 1
    between = {(clusters[i], clusters[j], 0) for i, outputs in enumerate(level.outputs) for j, _ in outputs}
    order = topological_order(count, sorted(edge for edge in between if edge[0] != edge[1]))
    position = [0] * count
    for p, cluster in enumerate(order):
        position[cluster] = p
    members: list[list[int]] = [[] for _ in order]
    for i, cluster in enumerate(clusters):
        members[position[cluster]].append(i)
    edges: Edges = {}
    for i, outputs in enumerate(level.outputs):
        for j, transfer_s in outputs:
            pair = position[clusters[i]], position[clusters[j]]
            if pair[0] != pair[1]:
                _add(edges, pair, transfer_s, objective)
    sizes = [sum(level.sizes[i] for i in group) for group in members]
    return _level(members, sizes, [sum(level.seconds[i] for i in group) for group in members], edges)
