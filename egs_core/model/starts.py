"""Assignments to begin the search from, each by a rule of its own; all fit the devices' memory.

single      all on one device
contiguous  an order of the operators cut into runs, one a device: the best by dynamic programming (as PipeDream,
            SOSP 2019, does for chains; here devices may differ)      a b c│d e│f g h
listed      each operator in turn to the device on which it ends first (as HEFT, Topcuoglu et al. 2002)
packed      whatever fits
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from egs_core.model.cuts import contiguous
from egs_core.model.instance import Device
from egs_core.model.levels import Level, depth_first
from egs_core.model.loss import Objective
from egs_core.model.packing import pack

MOST_SUBSETS = 8


def starts(level: Level, devices: Sequence[Device], objective: Objective, idle_s: float) -> Iterator[list[int]]:
    """All of them. idle_s: loss in seconds of a byte of memory that a device in use has left."""
    needed, count = sum(level.sizes), len(level)
    yield from ([d] * count for d, device in enumerate(devices) if _is_first(devices, d) and device.memory >= needed)
    orders = [list(range(count))]
    if (other := depth_first(level)) != orders[0]:
        orders.append(other)
    for order in orders:
        yield from contiguous(level, order, devices, objective, idle_s)
    fastest = sorted(range(len(devices)), key=lambda d: (-devices[d].speed, -devices[d].memory))
    for used in range(2, min(len(devices), MOST_SUBSETS) + 1):
        if found := listed(level, devices, fastest[:used]):
            yield found
    if (found := pack(level.sizes, [device.memory for device in devices]).assignment) is not None:
        yield found


def _is_first(devices: Sequence[Device], d: int) -> bool:
    """Whether no device before it is equal."""
    like = (devices[d].memory, devices[d].speed)
    return next(i for i, other in enumerate(devices) if (other.memory, other.speed) == like) == d


def listed(level: Level, devices: Sequence[Device], used: Sequence[int]) -> list[int] | None:
    """Each operator, in topological order, to the device of `used` with room on which it ends first."""
    left = {d: devices[d].memory for d in used}
    free_s = dict.fromkeys(used, 0.0)
    end_s, found = [0.0] * len(level), [0] * len(level)
    for i in range(len(level)):
        best = None
        for d in used:
            if left[d] >= level.sizes[i]:
                arrived = [end_s[j] if found[j] == d else end_s[j] + t for j, t in level.inputs[i]]
                end = max([free_s[d], *arrived]) + level.seconds[i] / devices[d].speed
                if best is None or end < best[0]:
                    best = end, d
        if best is None:
            return None
        end_s[i], d = best
        found[i], free_s[d] = d, end_s[i]
        left[d] -= level.sizes[i]
    return found
