"""The best assignment of a small graph, by branch and bound over the operators in topological order.

An operator's end depends on earlier ones only, so the loss of a beginning is known, and what must follow bounds it from
below: the longest path behind each operator, the rest of the work on all devices together, the memory in use.
"""

from __future__ import annotations

from egs_core.model.instance import Instance
from egs_core.model.levels import Level
from egs_core.model.loss import Objective, evaluate
from egs_core.model.states import rest_s

MOST_OPERATORS = 24
STEPS = 150_000
"""Operators placed at most."""
SLACK = 1e-12
"""Share of the loss that counts as none."""


def improved(level: Level, instance: Instance, objective: Objective, found: list[int]) -> tuple[list[int], bool]:
    """The best assignment, at least as good as the one that was found, and whether the search ended within STEPS."""
    search = _Bounded(level, instance, objective, found, STEPS)
    search.place(0)
    return search.best, search.steps >= 0


class _Bounded:
    def __init__(self, level: Level, instance: Instance, objective: Objective, found: list[int], steps: int) -> None:
        self._level, self._objective, self.steps = level, objective, steps
        self._devices = instance.devices.devices
        self._is_stream = objective == "stream"
        self._idle_s = instance.lambda_s / instance.devices.total_memory
        self._bytes = sum(level.sizes)
        self.best, self._best_loss = found, evaluate(instance, level.finer(found), objective).loss
        self._rest_s = rest_s(level, max(device.speed for device in self._devices))
        self._later_s = [sum(level.seconds[i:]) for i in range(len(level) + 1)]
        self._speeds = [device.speed for device in self._devices]
        self._left = [device.memory for device in self._devices]
        self._busy = [0.0] * len(self._devices)  # in `request`: when it is free again
        self._link = [0.0] * len(self._devices) ** 2
        self._count = [0] * len(self._devices)
        self._end_s = [0.0] * len(level)
        self._at = [0] * len(level)

    def place(self, i: int, least_s: float = 0.0) -> None:
        """All assignments that go on from the first `i` operators. least_s: what T is at least."""
        if i == len(self._level):
            loss = least_s + self._idle()
            if loss < self._best_loss * (1.0 - SLACK):
                self.best, self._best_loss = list(self._at), loss
            return
        for least, d in sorted(self._ways(i, least_s)):
            self.steps -= 1
            if self.steps < 0:
                return
            before = self._put(i, d)
            done = sum([seconds * speed for seconds, speed in zip(self._busy, self._speeds, strict=True)])
            spread = (self._later_s[i + 1] + done) / sum(self._speeds)
            if max(least, spread) + self._idle() < self._best_loss * (1.0 - SLACK):
                self.place(i + 1, least)
            self._take(i, d, *before)

    def _idle(self) -> float:
        """The least loss by idle memory: no device that is in use will be given up."""
        held = sum(device.memory for device, count in zip(self._devices, self._count, strict=True) if count)
        return self._idle_s * max(0, held - self._bytes)

    def _ways(self, i: int, least_s: float) -> list[tuple[float, int]]:
        """Where the operator may go, with what T then is at least. Of equal devices without operators, one."""
        found, empty = [], set()
        for d, device in enumerate(self._devices):
            if self._left[d] < self._level.sizes[i]:
                continue
            if not self._count[d]:
                if (device.memory, device.speed) in empty:
                    continue
                empty.add((device.memory, device.speed))
            least = self._stream_least(i, d) if self._is_stream else self._end(i, d) + self._rest_s[i]
            found.append((max(least, least_s), d))
        return found

    def _end(self, i: int, d: int) -> float:
        begun = self._busy[d]
        for j, transfer_s in self._level.inputs[i]:
            begun = max(begun, self._end_s[j] + (transfer_s if self._at[j] != d else 0.0))
        return begun + self._level.seconds[i] / self._devices[d].speed

    def _stream_least(self, i: int, d: int) -> float:
        width, more = len(self._devices), dict[int, float]()
        for j, transfer_s in self._level.inputs[i]:
            if self._at[j] != d:
                link = self._at[j] * width + d
                more[link] = more.get(link, self._link[link]) + transfer_s
        return max([self._busy[d] + self._level.seconds[i] / self._devices[d].speed, *more.values()])

    def _put(self, i: int, d: int) -> tuple[float, dict[int, float]]:
        """Place an operator; what to give to `_take` to have all as it was, to the last bit."""
        before, links = self._busy[d], dict[int, float]()
        if self._is_stream:
            self._busy[d] += self._level.seconds[i] / self._devices[d].speed
            links = self._carried(i, d)
        else:
            self._busy[d] = self._end_s[i] = self._end(i, d)
        self._at[i] = d
        self._left[d] -= self._level.sizes[i]
        self._count[d] += 1
        return before, links

    def _carried(self, i: int, d: int) -> dict[int, float]:
        """Add an operator's inputs to the links; what these had before."""
        before = dict[int, float]()
        for j, transfer_s in self._level.inputs[i]:
            if self._at[j] != d:
                link = self._at[j] * len(self._devices) + d
                before.setdefault(link, self._link[link])
                self._link[link] += transfer_s
        return before

    def _take(self, i: int, d: int, busy: float, links: dict[int, float]) -> None:
        self._busy[d] = busy
        for link, seconds in links.items():
            self._link[link] = seconds
        self._left[d] += self._level.sizes[i]
        self._count[d] -= 1
