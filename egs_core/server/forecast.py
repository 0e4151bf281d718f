"""When what waits should start: the order as it is now, filled into the devices as they become free. Pure.

    now   | running until …      | first in the order | second …
    GPU 0 | aaaaaaaaaaaaaaaaaaaa | ccccccccccccccccccccccc
    GPU 1 | bbbbbbbbbb | dddddddd

It counts devices only, and parts of them: not CPUs, memory, or what comes later and goes first. Where a length that it
depends on is not known it says nothing; nor of what its queue's quota will keep out when a device is free, and of those
of its queue behind it, which others then pass. What is told to stop, for another or by an operator, does not run as
long as it was expected to; of what should have stopped by now nobody knows when it will. What it expects to start at
once, though the engine let it wait, waits for what is not counted: `views` tells no moment then.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import groupby

import msgspec

from egs_core.engine import Engine
from egs_core.engine.rules import quota
from egs_core.engine.rules.ends import expected_end_s
from egs_core.engine.specs import NO_LIMIT, NO_QUEUE

UNKNOWN_S = math.inf
WHOLE_DEVICE = 1000  # thousandths
StopsAt = Callable[[int], float | None]  # of a task that is to stop: when it should have, UNKNOWN_S: by now; else None
Held = tuple[float, int, tuple[int, ...], int]  # until when, of each device so many thousandths, the phase


def _none_stops(_task: int) -> None:
    """Of pools whose work their drivers stop."""


def expected_starts(engine: Engine, stopped: Collection[str] = (), stops_at: StopsAt = _none_stops) -> dict[int, float]:
    """Of each ready phase, in the order in which they are expected to start, seconds from now; those of which nothing
    can be said are left out: also what waits for certain devices, and what is behind it. Where there are several hosts
    each has its own queue, for each is a flavor of its own. stopped: queues that get nothing new. Where a host's
    devices are of several flavors nothing is said of any."""
    state = engine.state
    if any(node.device_flavors for node in state.nodes):
        return {}  # which devices they will wait for is not known
    if len(state.nodes) < 2:
        return _starts_on(engine, 0, partial(_order, engine, stopped), stops_at) if state.nodes else {}
    found: dict[int, float] = {}
    for number, node in enumerate(state.nodes):
        if node.alive:
            found |= _starts_on(engine, number, partial(_order_on, engine, node.flavor, stopped), stops_at)
    return _together(engine, found)


def _together(engine: Engine, starts: dict[int, float]) -> dict[int, float]:
    """A gang on several hosts starts when it can on the last of them."""
    state = engine.state
    if not state.gang_of:
        return starts
    last: dict[int, float] = {}
    for phase in engine.ready_order():
        if (gang := state.gang_of.get(state.task_of[phase])) is not None:
            last[gang] = max(last.get(gang, 0.0), starts.get(phase, UNKNOWN_S))
    latest = {phase: last.get(state.gang_of.get(state.task_of[phase], -1), at) for phase, at in starts.items()}
    return {phase: at for phase, at in latest.items() if at != UNKNOWN_S}


def _order(engine: Engine, stopped: Collection[str]) -> Iterable[int]:
    if not stopped:
        return engine.ready_order()
    state = engine.state
    return [
        one for one in engine.ready_order() if _queue(engine, one) not in stopped or not state.shape_of(one).gpu_milli
    ]


def _queue(engine: Engine, phase: int) -> str:
    state = engine.state
    return state.workloads[state.task_workload[state.task_of[phase]]].queue


def _order_on(engine: Engine, flavor: str, stopped: Collection[str]) -> list[int]:
    options = engine.state.options_of
    return [one for one in _order(engine, stopped) if options(engine.state.task_of[one]).flavors == (flavor,)]


def _starts_on(engine: Engine, number: int, order: Callable[[], Iterable[int]], stops_at: StopsAt) -> dict[int, float]:
    """Of what waits for one node."""
    state = engine.state
    free = list(state.nodes[number].devices)
    ends: list[Held] = []
    for phase, lease in state.leases.items():
        if lease.node != number:
            continue
        left_s = _left_s(engine, phase, stops_at)
        heapq.heappush(ends, (left_s, lease.gpu_milli, lease.devices, phase))
    found: dict[int, float] = {}
    if not any(free) and all(left_s == UNKNOWN_S for left_s, *_ in ends):
        return found  # the common case, and an order of thousands costs milliseconds
    at_s, quotas = 0.0, _Quotas(engine)
    for _, unit in groupby(order(), lambda phase: state.gang_of.get(state.task_of[phase], -1 - phase)):
        phases = list(unit)
        if quotas.is_behind(phases):
            continue
        if any(state.options_of(state.task_of[phase]).only_on is not None for phase in phases):
            break
        wanted = [state.shape_of(phase).gpu_milli for phase in phases]
        while (taken := _devices_of_all(free, wanted)) is None and ends:
            end_s, milli, devices, ended = heapq.heappop(ends)
            at_s = max(at_s, end_s)
            quotas.count([ended], -1)
            for device in devices:
                free[device] += milli
        if taken is None or at_s == UNKNOWN_S:
            break
        if not quotas.allow(phases):
            continue
        quotas.count(phases, 1)
        for phase, milli, devices in zip(phases, wanted, taken, strict=True):
            found[phase] = at_s
            _take(free, milli, devices)
            end_s = UNKNOWN_S if phase in state.unknown else at_s + state.estimate_s[phase]
            heapq.heappush(ends, (end_s, min(milli, WHOLE_DEVICE), devices, phase))
    return found


def _left_s(engine: Engine, phase: int, stops_at: StopsAt) -> float:
    """How long what holds a lease will, at the most where it is evicted."""
    state, task = engine.state, engine.state.task_of[phase]
    stop_at = stops_at(task)
    if stop_at == UNKNOWN_S:
        return UNKNOWN_S
    if task in state.stopping:
        return 0.0  # by an operator, who has said how long that may take
    left_s = UNKNOWN_S if phase in state.unknown else max(0.0, expected_end_s(state, phase) - state.now)
    if stop_at is not None:
        return min(left_s, max(0.0, stop_at - state.now))
    return min(left_s, engine.config.grace_s) if task in state.recalled else left_s


class _Quotas:
    """What queues use as it will be, and those of which something is kept out by their quota: what is behind it waits
    for it. Phases on other nodes hold what they do now."""

    def __init__(self, engine: Engine) -> None:
        self._state = engine.state
        self._queues = [msgspec.structs.replace(one, used=one.used[:], most=NO_LIMIT) for one in engine.state.queues]
        self._behind: set[int] = set()

    def is_behind(self, phases: Sequence[int]) -> bool:
        return self._queue_of(phases[0]) in self._behind

    def allow(self, phases: Sequence[int]) -> bool:
        """Whether those that start together may; if not, their queue has to wait."""
        number = self._queue_of(phases[0])
        if quota.blocked_by(self._queues, number, quota.demand(self._state, phases)) is None:
            return True
        self._behind.add(number)
        return False

    def count(self, phases: Sequence[int], sign: int) -> None:
        """These hold something more, or no longer."""
        number = self._queue_of(phases[0])
        if number != NO_QUEUE:
            for kind, amount in enumerate(quota.demand(self._state, phases)):
                self._queues[number].used[kind] += sign * amount

    def _queue_of(self, phase: int) -> int:
        return self._state.queue_of(self._state.task_of[phase])


def _devices_of_all(free: list[int], wanted: Sequence[int]) -> list[tuple[int, ...]] | None:
    """Devices for each of those that start together; None where there are not enough."""
    left, found = free[:], []
    for milli in wanted:
        if (taken := _devices(left, milli)) is None:
            return None
        _take(left, milli, taken)
        found.append(taken)
    return found


def _take(free: list[int], milli: int, devices: tuple[int, ...]) -> None:
    for device in devices:
        free[device] -= min(milli, WHOLE_DEVICE)


def _devices(free: list[int], wanted: int) -> tuple[int, ...] | None:
    """Devices for so many thousandths: the fullest that has room for a part, or whole ones."""
    room = [device for device, milli in enumerate(free) if milli >= min(wanted, WHOLE_DEVICE)]
    if wanted < WHOLE_DEVICE:
        return (min(room, key=lambda device: free[device]),) if wanted and room else None if wanted else ()
    count = wanted // WHOLE_DEVICE
    return tuple(room[:count]) if len(room) >= count else None
