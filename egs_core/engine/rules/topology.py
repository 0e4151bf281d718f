"""Topology: gangs whose members must be close to each other, all in one rack, say, or all on one node.

    zone a  |  rack r1: n0 n1  |  rack r2: n2 n3  |        gang_same="rack": on n0 and n1, or on n2 and n3
    zone b  |  rack r3: n4     |

A node says in which group of each level it is (`NodeAdded.topology`); "node" is a level that every node has. Where a
node does not say it, no member starts, not even one that is its whole gang. Of the groups with room a gang takes the
one with the least GPU left, so that a large group stays for a large gang.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from egs_core.engine.state.nodes import Node
from egs_core.engine.state.state import State
from egs_core.errors import counted

NODE = "node"
Group = tuple[str, ...]  # one value for each level


def levels_of(state: State, phases: Sequence[int]) -> tuple[str, ...]:
    """The levels at which the phases of a gang must agree; none for most."""
    return tuple(sorted({state.options_of(state.task_of[p]).gang_same for p in phases} - {""}))


def has_level(state: State, task: int, node: Node) -> bool:
    """Whether the node says in which group it is of the level at which the task's gang must be together."""
    options = state.options_of(task)
    level = options.gang_same if options.gang else ""
    return not level or level == NODE or bool(node.topology.get(level))


def groups_of(nodes: Mapping[int, Node], levels: Sequence[str]) -> list[tuple[Group, dict[int, Node]]]:
    """The nodes by group, the one with the least GPU and CPU left first. A node that lacks a level is in none."""
    groups: dict[Group, dict[int, Node]] = {}
    for number, node in nodes.items():
        values = [node.name if level == NODE else node.topology.get(level, "") for level in levels]
        if all(values):
            groups.setdefault(tuple(values), {})[number] = node
    return sorted(groups.items(), key=lambda item: (*_left(item[1]), item[0]))


def _left(nodes: Mapping[int, Node]) -> tuple[int, int]:
    return sum(sum(n.devices[: n.gpus]) for n in nodes.values()), sum(n.free_cpu for n in nodes.values())


def describe_levels(state: State, levels: Sequence[str]) -> str:
    """Where the members must be, and how large the largest such group is: for those that never fit."""
    alive = {number: node for number, node in enumerate(state.nodes) if node.alive}
    groups = groups_of(alive, levels)
    wanted = " and ".join(levels)
    if not groups:
        return f"all in one {wanted} (no node says in which {wanted} it is)"
    gpus, cpus, name = max(
        (sum(n.gpus for n in nodes.values()), sum(n.cpu_milli for n in nodes.values()) / 1000, " of ".join(group))
        for group, nodes in groups
    )
    return f"all in one {wanted} (the largest, {name}, has {counted(gpus, 'GPU')} and {counted(cpus, 'CPU')})"
