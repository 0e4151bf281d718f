"""When what waits should start: the order as it is now, filled into the devices as they become free. Pure.

    now   | running until …      | first in the order | second …
    GPU 0 | aaaaaaaaaaaaaaaaaaaa | ccccccccccccccccccccccc
    GPU 1 | bbbbbbbbbb | dddddddd

It counts devices only: not CPUs, memory, quotas, or what comes later and goes first. Where a length that it depends on
is not known it says nothing.
"""

from __future__ import annotations

import heapq
import math

from egs_core.engine import Engine
from egs_core.engine.rules.ends import expected_end_s

UNKNOWN_S = math.inf


def expected_starts(engine: Engine) -> dict[int, float]:
    """Of each ready phase, in the order in which they are expected to start, seconds from now; those of which nothing
    can be said are left out."""
    state = engine.state
    free = sum(node.gpus for node in state.nodes if node.alive)
    ends: list[tuple[float, int]] = []
    for phase, lease in state.leases.items():
        devices = len(lease.devices)
        left_s = UNKNOWN_S if phase in state.unknown else max(0.0, expected_end_s(state, phase) - state.now)
        heapq.heappush(ends, (left_s, devices))
        free -= devices
    found: dict[int, float] = {}
    at_s = 0.0
    for phase in engine.ready_order():
        wanted = math.ceil(state.shape_of(phase).gpu_milli / 1000)
        while free < wanted and ends:
            end_s, devices = heapq.heappop(ends)
            at_s, free = max(at_s, end_s), free + devices
        if free < wanted or at_s == UNKNOWN_S:
            break
        found[phase] = at_s
        heapq.heappush(ends, (UNKNOWN_S if phase in state.unknown else at_s + state.estimate_s[phase], wanted))
        free -= wanted
    return found
