"""One resource kind over time: capacity, held, useful, blocked. The definitions are in `metrics`; this sums them up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from egs_core.runlog.intervals import Demand, Hold, Timeline, Wait
from egs_core.runlog.records import Capacity
from egs_core.runlog.steps import Interval, Steps, Units, clip, combine

KINDS = ("cpu", "gpu")
LEFT_OUT = frozenset({"paused", "limit", "infeasible"})
SHOWN_APART = frozenset({"quota", "reservation"})

Part = tuple[float, float, float]  # start, end, amount


class Flow(msgspec.Struct):
    """Amounts of one kind over time. withheld: ready demand kept back by quota or reservation."""

    capacity: Steps
    held: Steps
    useful: Steps
    blocked: Steps
    cold: Steps  # demand of phases that hold a GPU and are in their cold start
    withheld: Steps

    @property
    def idle_nominal(self) -> Steps:
        return combine(_free, self.capacity, self.held)

    @property
    def idle_effective(self) -> Steps:
        return combine(_free, self.capacity, self.useful)

    @property
    def blocked_effective(self) -> Steps:
        return combine(np.add, self.blocked, self.cold)

    @property
    def wasted(self) -> Steps:
        """Effective: idle while work is blocked."""
        return combine(np.minimum, self.idle_effective, self.blocked_effective)


def _free(capacity: Units, taken: Units) -> Units:
    free: Units = np.maximum(capacity - taken, 0)
    return free


def build_flow(line: Timeline, kind: str) -> Flow:
    """Sum a run's intervals for kind `cpu` or `gpu`."""
    feasible = Feasibility(line.capacities)
    return Flow(
        capacity=_capacity(line.capacities, kind),
        held=Steps.of_intervals((h.start_s, h.end_s, amount_of(h.demand, kind)) for h in line.holds),
        useful=Steps.of_intervals(part for h in line.holds for part in _useful_parts(h, kind)),
        blocked=Steps.of_intervals(_waiting(line.waits, kind, feasible, withheld=False)),
        cold=Steps.of_intervals(part for h in line.holds for part in _cold_parts(h, kind)),
        withheld=Steps.of_intervals(_waiting(line.waits, kind, feasible, withheld=True)),
    )


def amount_of(demand: Demand, kind: str) -> float:
    return demand.gpus if kind == "gpu" else demand.cpus


def _capacity(records: list[Capacity], kind: str) -> Steps:
    """The sum over nodes; a later record of a node replaces its earlier one."""
    offered: dict[str, float] = defaultdict(float)
    changes = []
    for record in records:
        amount = float(record.gpus) if kind == "gpu" else record.cpus
        changes.append((record.t, amount - offered[record.node]))
        offered[record.node] = amount
    return Steps.of_changes((t for t, _ in changes), (by for _, by in changes))


def _useful_parts(hold: Hold, kind: str) -> Iterator[Part]:
    if kind == "cpu":
        yield hold.start_s, hold.end_s, hold.demand.cpus
        return
    for start, end in hold.useful:
        yield start, end, hold.demand.gpus


def _cold_parts(hold: Hold, kind: str) -> Iterator[Part]:
    if kind == "gpu" and hold.demand.gpus > 0:
        for start, end in hold.cold:
            yield start, end, hold.demand.gpus


def _waiting(waits: list[Wait], kind: str, feasible: Feasibility, *, withheld: bool) -> Iterator[Part]:
    for wait in waits:
        amount = amount_of(wait.demand, kind)
        if amount <= 0:
            continue
        for start, end, hold in wait.pieces:
            if hold in LEFT_OUT or (hold in SHOWN_APART) != withheld:
                continue
            for a, b in clip(feasible.when(wait.demand), start, end):
                yield a, b, amount


class Feasibility:
    """When a demand fits one empty node. Capacity changes are few and shapes are few, so each is worked out once."""

    def __init__(self, capacities: Iterable[Capacity]) -> None:
        self._epochs = list(_epochs(capacities))
        self._known: dict[tuple[float, float, int], list[Interval]] = {}

    def when(self, demand: Demand) -> list[Interval]:
        shape = (demand.cpus, demand.gpus, demand.memory_bytes)
        if shape not in self._known:
            fits = [(a, b) for a, b, nodes in self._epochs if any(_fits(demand, node) for node in nodes)]
            self._known[shape] = _joined(fits)
        return self._known[shape]


def _epochs(capacities: Iterable[Capacity]) -> Iterator[tuple[float, float, list[Capacity]]]:
    """Stretches in which no node changes."""
    nodes: dict[str, Capacity] = {}
    since = 0.0
    for record in capacities:
        if nodes and record.t > since:
            yield since, record.t, list(nodes.values())
        nodes[record.node] = record
        since = record.t
    if nodes:
        yield since, float("inf"), list(nodes.values())


def _fits(demand: Demand, node: Capacity) -> bool:
    told_memory = node.memory_bytes > 0
    return (
        demand.cpus <= node.cpus
        and demand.gpus <= node.gpus
        and (demand.memory_bytes <= node.memory_bytes or not told_memory)
    )


def _joined(parts: list[Interval]) -> list[Interval]:
    """Touching neighbours as one, so that steady capacity costs one interval."""
    out: list[Interval] = []
    for start, end in parts:
        if out and out[-1][1] == start:
            out[-1] = (out[-1][0], end)
        else:
            out.append((start, end))
    return out
