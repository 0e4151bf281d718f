"""Instances that the tests draw, and what a slow evaluator that shares no code with `loss.py` makes of them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from fractions import Fraction
from itertools import product

from hypothesis import strategies as st

from egs_core.model import Instance, read_devices, read_operators


def instance_of(
    sizes: Sequence[int],
    seconds: Sequence[float],
    edges: Sequence[tuple[int, int, int]],
    devices: Sequence[tuple[int, float]],
    link_bytes_s: int = 1000,
    link_latency_s: float = 0.0,
) -> Instance:
    """One from numbers. devices: memory and speed of each."""
    nodes = [
        {"id": f"n{i}", "bytes": size, "seconds": s} for i, (size, s) in enumerate(zip(sizes, seconds, strict=True))
    ]
    arcs = [{"from": f"n{i}", "to": f"n{j}", "bytes": size} for i, j, size in edges]
    entries = [{"name": f"gpu{d}", "memory": memory, "speed": speed} for d, (memory, speed) in enumerate(devices)]
    text = json.dumps({"devices": entries, "link_bytes_s": link_bytes_s, "link_latency_s": link_latency_s})
    return Instance(read_operators(json.dumps({"nodes": nodes, "edges": arcs}).encode()), read_devices(text))


@st.composite
def instances(draw: st.DrawFn, most_operators: int = 7, most_devices: int = 3) -> Instance:
    """Small ones, ids not in topological order, some with parallel edges, some that do not fit."""
    count, width = draw(st.integers(1, most_operators)), draw(st.integers(1, most_devices))
    rank = draw(st.permutations(range(count)))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1), st.integers(0, 5000))
    drawn = draw(st.lists(pairs, max_size=2 * count))
    edges = [(i, j, size) if rank[i] < rank[j] else (j, i, size) for i, j, size in drawn if i != j]
    sizes = draw(st.lists(st.integers(0, 10), min_size=count, max_size=count))
    seconds = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.5, 7.0]), min_size=count, max_size=count))
    devices = st.tuples(st.integers(1, 30), st.sampled_from([0.5, 1.0, 2.0]))
    have = draw(st.lists(devices, min_size=width, max_size=width))
    return instance_of(
        sizes, seconds, edges, have, draw(st.sampled_from([500, 10_000])), draw(st.sampled_from([0, 0.1]))
    )


def random_instance(count: int, width: int, seed: int, room: float = 1.3) -> Instance:
    """A layered graph with branches. room: memory of all devices ÷ what is needed."""
    rng = random.Random(seed)
    edges = [(j, i, rng.randint(1, 3000)) for i in range(1, count) for j in {rng.randrange(max(0, i - 8), i)}]
    edges += [(i - 3, i, rng.randint(1, 3000)) for i in range(3, count, 4)]
    sizes = [rng.randint(1, 100) for _ in range(count)]
    memory = int(sum(sizes) * room / width) + 1
    return instance_of(sizes, [rng.random() for _ in range(count)], edges, [(memory, 1.0)] * width)


def slow_loss(instance: Instance, assignment: Sequence[int], objective: str) -> Fraction | None:
    """L(A) as exact fractions, by the issue's words alone; None where a device's memory is exceeded."""
    operators, devices = instance.operators, instance.devices
    used = [
        sum(s for s, d in zip(operators.sizes, assignment, strict=True) if d == k) for k in range(len(devices.devices))
    ]
    if any(u > device.memory for u, device in zip(used, devices.devices, strict=True)):
        return None
    idle = sum(
        device.memory - u for k, (u, device) in enumerate(zip(used, devices.devices, strict=True)) if k in assignment
    )
    share = Fraction(idle, sum(device.memory for device in devices.devices))
    time = _slow_request(instance, assignment) if objective == "request" else _slow_stream(instance, assignment)
    return time + Fraction(1, 100) * sum(map(Fraction, operators.seconds)) * share


def _slow_order(instance: Instance) -> list[int]:
    """Again and again the first operator of the file that has no input from one that is not behind."""
    order: list[int] = []
    edges = instance.operators.edges
    while len(order) < len(instance.operators.ids):
        left = [i for i in range(len(instance.operators.ids)) if i not in order]
        order.append(next(i for i in left if not any(b == i and a in left for a, b, _ in edges)))
    return order


def _took(instance: Instance, i: int, d: int) -> Fraction:
    return Fraction(instance.operators.seconds[i]) / Fraction(instance.devices.devices[d].speed)


def _transfer(instance: Instance, size: int) -> Fraction:
    if instance.devices.link_bytes_s is None:
        return Fraction(0)
    return Fraction(size, instance.devices.link_bytes_s) + Fraction(instance.devices.link_latency_s)


def _slow_request(instance: Instance, assignment: Sequence[int]) -> Fraction:
    """Starts are raised until every rule holds."""
    order = _slow_order(instance)
    end = {i: _took(instance, i, assignment[i]) for i in order}
    while True:
        raised = False
        for position, i in enumerate(order):
            begins = [end[j] for j in order[:position] if assignment[j] == assignment[i]]
            for a, b, size in instance.operators.edges:
                if b == i:
                    begins.append(end[a] + (_transfer(instance, size) if assignment[a] != assignment[i] else 0))
            at = max(begins, default=Fraction(0)) + _took(instance, i, assignment[i])
            raised, end[i] = raised or at > end[i], max(at, end[i])
        if not raised:
            return max(end.values())


def _slow_stream(instance: Instance, assignment: Sequence[int]) -> Fraction:
    width = range(len(instance.devices.devices))
    busy = [sum((_took(instance, i, d) for i, d in enumerate(assignment) if d == k), Fraction(0)) for k in width]
    for a, b in product(width, width):
        crossing = [
            size for i, j, size in instance.operators.edges if (assignment[i], assignment[j]) == (a, b) and a != b
        ]
        busy.append(sum((_transfer(instance, size) for size in crossing), Fraction(0)))
    return max(busy)


def best_by_trying(instance: Instance, objective: str) -> Fraction | None:
    """The least loss of all assignments, None where none fits."""
    every = product(range(len(instance.devices.devices)), repeat=len(instance.operators.ids))
    return min((loss for one in every if (loss := slow_loss(instance, one, objective)) is not None), default=None)
