"""When a device will be free on each node: what holds them now and what is committed to a node, served in turn.

node 0   device 0 ████████░░░░░        █ a running GPU phase, to its expected end
         device 1 ██░░░░░░░            ░ GPU phases of started tasks, and of ready ones whose process is on this node
                  now      ▲
                           └ from here a device is free for the next one

What is held up is left out: it would fit now and has not been granted, so it waits for something else (a quota, a
reservation, a pause, the others of its gang), nobody knows how long. Whoever waited for it might wait for ever.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from egs_core.engine.rules.fit import devices_of, lacking
from egs_core.engine.state.lifecycle import READY, WARMING
from egs_core.engine.state.nodes import WHOLE_DEVICE
from egs_core.engine.state.state import State
from egs_core.graph.columns import GPU
from egs_core.time_estimates import TimeEstimate

GpuPart = tuple[float, float, int]
"""Seconds from a task's start to its GPU phase, seconds of that, devices."""
NO_GPU: GpuPart = (0.0, 0.0, 0)
Waiting = list[tuple[float, int, float, int]]
"""GPU phases to come: ready at, node, seconds, devices."""


def gpu_part(state: State, task: int, begin: int) -> GpuPart:
    """The first GPU phase of a task from phase `begin` on."""
    before = 0.0
    for p in range(begin, state.first_phase[task + 1]):
        if state.kind[p] == GPU:
            return before, state.estimate_s[p], devices_of(state.shape_of(p))
        before += state.estimate_s[p]
    return NO_GPU


def is_held_up(state: State, task: int) -> bool:
    """Whether a task that has a process, warm, is not at work although there is room for its phase. Asked when all that
    may be granted has been."""
    phase, node = state.cursor[task], state.home.get(task)
    if phase in state.leases or node is None or state.warmth[task] == WARMING:
        return False
    return not lacking(state.nodes[node], state.shape_of(phase))


class DeviceForecast:
    """See the module. ends: when started tasks are expected to end, without those that are held up."""

    def __init__(self, state: State, now: float, ends: Mapping[int, TimeEstimate]) -> None:
        self._state = state
        self._now = now
        self._free_at: list[list[TimeEstimate]] = [
            [(now, 0.0)] * (n.gpus if n.alive else 0) for n in state.nodes
        ]  # heaps
        waiting: Waiting = []
        for task, end in ends.items():
            self._take_started(task, end, waiting)
        for task in state.parked:
            if state.status[state.cursor[task]] == READY and not is_held_up(state, task):
                self._note(task, state.home[task], state.cursor[task], now, waiting)
        for heap in self._free_at:
            heapq.heapify(heap)
        for ready_at, node, seconds, devices in sorted(waiting):
            self.commit(node, devices, ready_at, seconds)

    def free_at(self, node: int, devices: int, ready_at: float) -> float:
        """When so many devices of the node are free for something that is ready at `ready_at` (medians)."""
        heap = self._free_at[node]
        if not devices or len(heap) < devices:
            return ready_at
        first = heap[0] if devices == 1 else heapq.nsmallest(devices, heap)[-1]
        return max(first[0], ready_at)

    def next_free(self, nodes: list[int], devices: int) -> TimeEstimate:
        """The first moment at which one of the nodes has so many devices free."""
        heaps = [heap for n in nodes if len(heap := self._free_at[n]) >= devices]
        if not heaps:
            return self._now, 0.0
        return min([heap[0] if devices == 1 else heapq.nsmallest(devices, heap)[-1] for heap in heaps])

    def commit(self, node: int, devices: int, ready_at: float, seconds: float) -> None:
        """Something will run there."""
        heap = self._free_at[node]
        until = self.free_at(node, devices, ready_at) + seconds
        for _ in range(min(devices, len(heap))):
            heapq.heapreplace(heap, (until, heap[0][1]))

    def load_s(self, node: int) -> float:
        """Seconds of work that a device of the node has before it, on average."""
        heap = self._free_at[node]
        return sum([at for at, _ in heap]) / len(heap) - self._now if heap else 0.0

    def _take_started(self, task: int, end: TimeEstimate, waiting: Waiting) -> None:
        """What a started task holds, and what it will ask for on its node."""
        state, current = self._state, self._state.cursor[task]
        lease = state.leases.get(current)
        if lease is None:
            self._note(task, state.home.get(task, -1), current, self._now, waiting)
            return
        until = max(self._now, end[0] - sum(state.estimate_s[current + 1 : state.first_phase[task + 1]]))
        free_at = self._free_at[lease.node]
        for device in lease.devices:
            if device < len(free_at) and lease.gpu_milli == WHOLE_DEVICE:
                free_at[device] = max(free_at[device], (until, end[1]))
        self._note(task, lease.node, current + 1, until, waiting)

    def _note(self, task: int, node: int, begin: int, at: float, waiting: Waiting) -> None:
        before, seconds, devices = gpu_part(self._state, task, begin)
        if devices and node >= 0:
            waiting.append((at + before, node, seconds, devices))
