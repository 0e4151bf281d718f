"""What a node has and what is taken of it, as numbers side by side: CPUs, memory, devices of drivers, and GPUs or parts
of them by the resource of their device plugin.

                    CPUs   memory   of drivers   nvidia.com/gpu   nvidia.com/mig-1g.5gb
    a node has      8000   64 GiB            0                1                       7
    a pod takes     1000    4 GiB            0                0                       1

Devices of drivers are one kind here: which of them a claim may have is for who asks `places.allows`.
"""

from __future__ import annotations

from operator import add, ge, sub

from egs_core.graph.columns import Shape
from egs_core.kubernetes.pods import OF_DRIVERS, Counts, Node

Amounts = tuple[int, ...]
_OF_DRIVERS = 2


def had_by(node: Node) -> Amounts:
    """All that pods may take there."""
    return node.cpu_milli, node.memory_bytes, len(node.devices), *(count for _, count in node.resources)


def taken_on(node: Node, shape: Shape, devices: Counts) -> Amounts:
    """By a pod of this shape with these devices. A resource that no plugin offers there is of drivers, as a class may
    stand for it."""
    found = [shape.cpu_milli, shape.memory_bytes, 0, *(0 for _ in node.resources)]
    at = {name: number for number, (name, count) in enumerate(node.resources, _OF_DRIVERS + 1) if count}
    for name, count in devices:
        found[_OF_DRIVERS if name == OF_DRIVERS else at.get(name, _OF_DRIVERS)] += count
    return tuple(found)


def covers(one: Amounts, other: Amounts) -> bool:
    return all(map(ge, one, other))


def less(one: Amounts, other: Amounts) -> Amounts:
    return tuple(map(sub, one, other))


def more(one: Amounts, other: Amounts) -> Amounts:
    return tuple(map(add, one, other))
