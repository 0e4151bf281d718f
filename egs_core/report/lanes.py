"""Which lane of the chart each phase is drawn in.

A phase with known devices has a bar on each of them. What holds GPUs of a node that nobody named has the rows of those
of it of which nothing is told. What holds no GPU goes into the first lane of its group that is free, so the number of
lanes is the largest number that ran at once. Shares of one device overlap in time: such a device gets as many rows as
it had phases at once.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec

from egs_core.runlog.intervals import Hold, Preload, Timeline

NOT_TOLD = "which GPU is not told"


class Bar(msgspec.Struct):
    """One bar: a hold, or a preload."""

    start_s: float
    end_s: float
    hold: Hold | None = None
    preload: Preload | None = None


class Lane(msgspec.Struct):
    """One row; group is `gpu`, `cpu` or `preload`. Its bars do not overlap and are in order."""

    name: str
    group: str
    bars: list[Bar] = []


def lay_out(line: Timeline) -> list[Lane]:
    """All lanes of a run: devices first (idle ones too), then CPU lanes, then preloads."""
    on_device: dict[tuple[str, int], list[Bar]] = {key: [] for key in _offered(line)}
    offered = Counter(node for node, _ in on_device)
    untold: dict[str, list[Bar]] = defaultdict(list)
    cpu: list[Bar] = []
    for hold in line.holds:
        bar = Bar(hold.start_s, hold.end_s, hold=hold)
        if hold.demand.gpus > 0 and hold.devices:
            for device in hold.devices:
                on_device.setdefault((hold.node, device), []).append(bar)
        elif hold.demand.gpus > 0:
            untold[hold.node] += [bar] * max(1, min(int(hold.demand.gpus), offered[hold.node]))
        else:
            cpu.append(bar)
    preloads = [Bar(p.start_s, p.end_s, preload=p) for p in line.preloads]
    nodes = sorted({node for node, _ in on_device} | set(untold))
    lanes = []
    for node in nodes:
        devices = sorted(device for where, device in on_device if where == node)
        told = [device for device in devices if on_device[node, device] or node not in untold]
        for device in told:
            name = f"{node} GPU {device}" if len(nodes) > 1 else f"GPU {device}"
            lanes += _packed(name, "gpu", on_device[node, device]) or [Lane(name, "gpu")]
        rows = _packed(f"{node}, {NOT_TOLD}" if len(nodes) > 1 and node else "GPU ?", "gpu", untold.get(node, []))
        lanes += rows + [Lane("", "gpu") for _ in range(len(devices) - len(told) - len(rows))]
    lanes += _packed("CPU", "cpu", cpu)
    return lanes + _packed("Preload", "preload", preloads)


def _offered(line: Timeline) -> Iterable[tuple[str, int]]:
    most: dict[str, int] = defaultdict(int)
    for record in line.capacities:
        most[record.node] = max(most[record.node], record.gpus)
    return ((node, device) for node, gpus in most.items() for device in range(gpus))


def _packed(name: str, group: str, bars: list[Bar]) -> list[Lane]:
    """First free row for each bar, in order of start: a heap of free rows and one of busy ones. O(n log n)."""
    rows: list[list[Bar]] = []
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    for bar in sorted(bars, key=lambda b: (b.start_s, b.end_s)):
        while busy and busy[0][0] <= bar.start_s + 1e-9:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, len(rows))
            rows.append([])
        row = heapq.heappop(free)
        rows[row].append(bar)
        heapq.heappush(busy, (bar.end_s, row))
    return [Lane(name if number == 0 else "", group, row) for number, row in enumerate(rows)]
