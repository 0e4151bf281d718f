"""The loss of an assignment A of operators to devices, in seconds: L(A) = T(A) + lambda · I(A).

T, objective `request`: when the last operator of one request ends. Each device runs one operator at a time, in the
stable topological order (`instance.topological_order`), as soon as its inputs are there:

    order:  a b c d      a ─► b ─► d        gpu0  |a|b|      |d|
                         └──► c ───┘        gpu1     ──|c|──        ── a transfer: bytes ÷ link_bytes_s + link_latency_s

An operator takes its seconds ÷ its device's speed. Transfers wait for nothing: a link carries any number at once.

T, objective `stream`: requests follow each other without a gap, so the busiest device or link sets the pace: its
seconds a request. A link joins two devices in one direction and carries one transfer at a time.

I: memory that the devices in use have left ÷ the memory of all devices. A device that has no operator is free for
others, not idle. lambda: 0.01 · the seconds of all operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from egs_core.model.instance import Instance

Objective = Literal["request", "stream"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


class Loss(msgspec.Struct, frozen=True):
    """latency_s: T, by the objective. cut_edges: edges between operators on different devices. fits: no device holds
    more than its memory."""

    loss: float
    latency_s: float
    idle_bytes: int
    cut_edges: int
    fits: bool


def evaluate(instance: Instance, assignment: Sequence[int], objective: Objective) -> Loss:
    """The loss of an assignment. assignment: the number of a device for each operator, as the file orders them."""
    used = used_bytes(instance, assignment)
    devices = instance.devices.devices
    in_use = set(assignment)
    idle = sum(devices[d].memory - used[d] for d in in_use)
    seconds = (request_s if objective == "request" else stream_s)(instance, assignment)
    cut = sum(assignment[i] != assignment[j] for i, j, _ in instance.operators.edges)
    fits = all(used[d] <= devices[d].memory for d in in_use)
    loss = seconds + instance.lambda_s * idle / instance.devices.total_memory
    return Loss(loss, seconds, idle, cut, fits)


def used_bytes(instance: Instance, assignment: Sequence[int]) -> list[int]:
    """Bytes of the operators on each device."""
    used = [0] * len(instance.devices.devices)
    for size, d in zip(instance.operators.sizes, assignment, strict=True):
        used[d] += size
    return used


def busy_s(instance: Instance, assignment: Sequence[int]) -> list[float]:
    """Seconds that each device computes for one request."""
    busy = [0.0] * len(instance.devices.devices)
    for seconds, d in zip(instance.operators.seconds, assignment, strict=True):
        busy[d] += seconds / instance.devices.devices[d].speed
    return busy


def request_s(instance: Instance, assignment: Sequence[int]) -> float:
    """When the last operator of one request ends."""
    operators, devices = instance.operators, instance.devices
    inputs: list[list[tuple[int, int]]] = [[] for _ in assignment]
    for source, target, size in operators.edges:
        inputs[target].append((source, size))
    free_s, end_s = [0.0] * len(devices.devices), [0.0] * len(assignment)
    for i in operators.order:
        d = assignment[i]
        arrived = [
            end_s[j] if assignment[j] == d else end_s[j] + devices.transfer_s(size_bytes) for j, size_bytes in inputs[i]
        ]
        free_s[d] = end_s[i] = max([free_s[d], *arrived]) + operators.seconds[i] / devices.devices[d].speed
    return max(end_s)


def stream_s(instance: Instance, assignment: Sequence[int]) -> float:
    """Seconds a request of the busiest device or link."""
    on_link: dict[tuple[int, int], float] = {}
    for source, target, size_bytes in instance.operators.edges:
        link = assignment[source], assignment[target]
        if link[0] != link[1]:
            on_link[link] = on_link.get(link, 0.0) + instance.devices.transfer_s(size_bytes)
    return max([*busy_s(instance, assignment), *on_link.values()])
