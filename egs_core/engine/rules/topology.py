"""Topology: gangs whose members must be close to each other, all in one rack, say, or all on one node; or apart.

    zone a  |  rack r1: n0 n1  |  rack r2: n2 n3  |        gang_same="rack": on n0 and n1, or on n2 and n3
    zone b  |  rack r3: n4     |                           gang_apart="rack": on n0, n2 and n4, say

A node says in which group of each level it is (`NodeAdded.topology`); "node" is a level that every node has. Where a
node does not say it, no member starts, not even one that is its whole gang. Of the groups with room a gang takes the
one with the least GPU left, so that a large group stays for a large gang. Which member gets which of the groups that
must differ is `apart`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from egs_core.engine.state.nodes import Node
from egs_core.engine.state.state import State
from egs_core.errors import counted, node_words

NODE = "node"
Group = tuple[str, ...]  # one value for each level


def levels_of(state: State, phases: Sequence[int]) -> tuple[str, ...]:
    """The levels at which the phases of a gang must agree; none for most."""
    return tuple(sorted({state.options_of(state.task_of[p]).gang_same for p in phases} - {""}))


def levels_apart(state: State, phases: Sequence[int]) -> tuple[str, ...]:
    """The levels at which the first phases of a gang must differ; none for most, and none for those that follow: a
    task stays where it has started."""
    if not state.is_first_phase(phases[0]):
        return ()
    return tuple(sorted({state.options_of(state.task_of[p]).gang_apart for p in phases} - {""}))


def has_wish(state: State, task: int) -> bool:
    """Whether it matters to the others of the task's gang where it is."""
    options = state.options_of(task)
    return bool(options.gang_same or options.gang_apart)


def has_level(state: State, task: int, node: Node) -> bool:
    """Whether the node says in which group it is of the levels at which the task's gang must be together or apart."""
    options = state.options_of(task)
    if not options.gang:
        return True
    levels = (options.gang_same, options.gang_apart)
    return all(not level or level == NODE or node.topology.get(level) for level in levels)


def groups_of(nodes: Mapping[int, Node], levels: Sequence[str]) -> list[tuple[Group, dict[int, Node]]]:
    """The nodes by group, the one with the least GPU and CPU left first. A node that lacks a level is in none."""
    groups: dict[Group, dict[int, Node]] = {}
    for number, node in nodes.items():
        values = [_value(node, level) for level in levels]
        if all(values):
            groups.setdefault(tuple(values), {})[number] = node
    return sorted(groups.items(), key=lambda item: (*_left(item[1]), item[0]))


def _value(node: Node, level: str) -> str:
    """In which group of the level it is; "" where it does not say."""
    return node.name if level == NODE else node.topology.get(level, "")


def _left(nodes: Mapping[int, Node]) -> tuple[int, int]:
    return sum(sum(n.devices[: n.gpus]) for n in nodes.values()), sum(n.free_cpu for n in nodes.values())


def separate(nodes: Mapping[int, Node], levels: Sequence[str]) -> dict[int, int]:
    """Node -> number of its part; nodes of different parts share no group at any of the levels. Of levels of which one
    is inside of the other the parts are the groups of the wider one. A node that lacks a level is in none."""
    parts: list[tuple[set[tuple[str, str]], list[int]]] = []  # groups, nodes
    by_group: dict[tuple[str, str], int] = {}
    for number, node in nodes.items():
        groups = {(level, _value(node, level)) for level in levels}
        if not all(value for _, value in groups):
            continue
        joined = sorted({by_group[group] for group in groups if group in by_group})
        into, members = joined[0] if joined else len(parts), [number]
        if not joined:
            parts.append((set(), []))
        for other in joined[1:]:
            groups |= parts[other][0]
            members += parts[other][1]
            parts[other] = set(), []
        parts[into][0].update(groups)
        parts[into][1].extend(members)
        by_group.update(dict.fromkeys(groups, into))
    return {number: part for part, (_, members) in enumerate(parts) for number in members}


def describe_levels(state: State, levels: Sequence[str]) -> str:
    """Where the members must be, and how large the largest such group is: for those that never fit."""
    alive = {number: node for number, node in enumerate(state.nodes) if node.alive}
    groups = groups_of(alive, levels)
    wanted = " and ".join(levels)
    if not groups:
        return f"all in one {wanted} (no node says in which {wanted} it is)"
    gpus, cpus, name = max(
        (
            sum(n.gpus for n in nodes.values()),
            sum(n.cpu_milli for n in nodes.values()) / 1000,
            " of ".join(map(node_words, group)),
        )
        for group, nodes in groups
    )
    return f"all in one {wanted} (the largest, {name}, has {counted(gpus, 'GPU')} and {counted(cpus, 'CPU')})"


def describe_apart(state: State, levels: Sequence[str]) -> str:
    """The same where each must be in a group of its own, and how many such groups there are."""
    alive = {number: node for number, node in enumerate(state.nodes) if node.alive}
    count, wanted = len(set(separate(alive, levels).values())), " and ".join(levels)
    there = f"there {'is' if count == 1 else 'are'} {count}" if count else f"no node says in which {wanted} it is"
    return f"each on a {wanted} of its own ({there})"
