"""Scaling hints: how many GPUs and CPUs of which flavor should be there, and when. Advice: nothing here waits for it.

    devices         held |########|             the hint names what is held and what is wanted on top …
    ready now            |########|######|      … by phases that are ready, feasible here or not …
    ready in H s         |########|######|###|  … and by those whose last predecessor ends within the horizon H

but no more than it takes to be done with all of that within H: no ten devices for ten tasks of a minute. At least the
largest phase or gang must fit. A flavor's hint changes when it would differ by a tenth and at least by one device (or
CPU); upwards at once, downwards once the last one is a horizon old, so what is given back has been idle for so long.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

import msgspec

from egs_core.engine import messages as m
from egs_core.engine.passes.issuer import Issuer
from egs_core.engine.rules.ends import expected_end_s
from egs_core.engine.rules.fit import fits_task
from egs_core.engine.rules.flavors import cost_of, held_flavor, seconds_on
from egs_core.engine.specs import REFERENCE
from egs_core.engine.state.lifecycle import PENDING, READY
from egs_core.engine.state.state import State

EVERY_S = 10.0  # between two looks
MATERIAL = 0.1  # of the last hint


class Target(msgspec.Struct):
    """Of one flavor: devices and CPUs (thousandths) held and wanted, how long for, and the most wanted at once."""

    milli: list[int] = msgspec.field(default_factory=lambda: [0, 0])
    milli_s: list[float] = msgspec.field(default_factory=lambda: [0.0, 0.0])
    least: list[int] = msgspec.field(default_factory=lambda: [0, 0])
    at: float | None = None

    def add(self, amounts: tuple[int, int], seconds: float, at: float | None = None) -> None:
        """at: from when on it is wanted; None: it is held already."""
        for kind, amount in enumerate(amounts):
            self.milli[kind] += amount
            self.milli_s[kind] += amount * seconds
            self.least[kind] = self.least[kind] + amount if at is None else max(self.least[kind], amount)
        if at is not None:
            self.at = at if self.at is None else min(self.at, at)

    def wanted(self, kind: int, horizon_s: float) -> int:
        """Whole devices or CPUs that should be there."""
        enough = self.milli_s[kind] / horizon_s
        return ceil(min(self.milli[kind], max(enough, self.least[kind])) / 1000 - 1e-9)


def compute_targets(state: State, ready: Iterable[int], horizon_s: float, is_cheap: bool) -> dict[str, Target]:
    """By flavor. ready: phases that wait to be granted. is_cheap: work goes where it costs least, else where it is
    fastest."""
    targets: dict[str, Target] = {flavor: Target() for node in state.nodes if node.alive for flavor in node.flavors}
    for phase, lease in state.leases.items():
        held = lease.gpu_milli * len(lease.devices), lease.cpu_milli
        left_s = expected_end_s(state, phase) - state.now
        targets.setdefault(held_flavor(state, phase), Target()).add(held, left_s)
    coming, gangs = _coming(state, horizon_s), dict[tuple[str, int], list[int]]()
    for phase, at in [*((p, state.now) for p in sorted(ready)), *coming]:
        flavor = _flavor_for(state, phase, is_cheap)
        shape = state.shape_of(phase)
        seconds = seconds_on(state, phase, flavor)[0]
        targets.setdefault(flavor, Target()).add((shape.gpu_milli, shape.cpu_milli), seconds, at)
        gang = state.gang_of.get(state.task_of[phase]) if state.gang_of else None
        if gang is not None:
            together = gangs.setdefault((flavor, gang), [0, 0])
            together[:] = together[0] + shape.gpu_milli, together[1] + shape.cpu_milli
    for (flavor, _), amounts in gangs.items():  # what starts together must fit together
        targets[flavor].least = [max(pair) for pair in zip(targets[flavor].least, amounts, strict=True)]
    return targets


def _coming(state: State, horizon_s: float) -> list[tuple[int, float]]:
    """Phases that are predicted to be ready within the horizon, with the time: what follows those that run now."""
    ends = {state.task_of[p]: expected_end_s(state, p) for p in state.leases}
    found = []
    for task in sorted(ends):
        for child in state.children[task]:
            parents = [parent for parent in state.parents[child] if not state.is_done(parent)]
            if state.status[state.cursor[child]] == PENDING and parents[0] == task:
                at = max(ends.get(parent, float("inf")) for parent in parents)
                if at <= state.now + horizon_s:
                    found.append((state.cursor[child], at))
    return found


def _flavor_for(state: State, phase: int, is_cheap: bool) -> str:
    """The flavor on which the phase would best run: of those that nodes offer it, else the first that it may have."""
    task = state.task_of[phase]
    if task in state.home:
        return state.nodes[state.home[task]].flavor
    shape = state.shape_of(phase)
    offered = [node for node in state.nodes if fits_task(state, task, node)]
    if not shape.gpu_milli and any(not node.gpus for node in offered):
        offered = [node for node in offered if not node.gpus]
    allowed = state.options_of(task).flavors or tuple(state.flavors)
    flavors = sorted({flavor for node in offered for flavor in node.flavors}) or allowed[:1]

    def worth(flavor: str) -> tuple[float, float]:
        seconds = seconds_on(state, phase, flavor)[0]
        cost = cost_of(state.flavors.get(flavor, REFERENCE), shape, seconds)
        return (cost, seconds) if is_cheap else (seconds, cost)

    return min(flavors, key=worth, default="")


class Scaling:
    """Looks at the demand after events, every `EVERY_S` at most, and gives out hints that are news."""

    def __init__(self, issuer: Issuer, horizon_s: float, is_cheap: bool) -> None:
        self._issuer = issuer
        self._horizon_s = horizon_s
        self._is_cheap = is_cheap

    def next_due(self) -> float | None:
        """When to look again at the latest."""
        return self._issuer.state.scale_at

    def after(self, now: float) -> None:
        """An event has been handled: look, or see to it that somebody will."""
        state, transitions = self._issuer.state, self._issuer.transitions
        due = state.scaled_at + EVERY_S
        is_early = state.scaled_at >= 0.0 and now < due
        if is_early and (state.scale_at is None or now < state.scale_at):
            if state.scale_at is None or state.scale_at > due:
                transitions.scaled(state.scaled_at, due)
            return
        again = self._look(now)
        if (now, again) != (state.scaled_at, state.scale_at):
            transitions.scaled(now, again)

    def _look(self, now: float) -> float | None:
        """Give out what is news; the time at which an older hint may be lowered."""
        state, later = self._issuer.state, []
        waiting = [p for p, status in enumerate(state.status) if status == READY]
        for flavor, target in compute_targets(state, waiting, self._horizon_s, self._is_cheap).items():
            wanted = target.wanted(0, self._horizon_s), target.wanted(1, self._horizon_s)
            last = state.scaling.get(flavor)
            if last is None:
                last = (*_offered(state, flavor), now)
                self._issuer.transitions.hinted(flavor, *last)
            due = last[2] + self._horizon_s
            up = any(_is_more(new, old) for new, old in zip(wanted, last[:2], strict=True))
            down = any(_is_more(old, new) for new, old in zip(wanted, last[:2], strict=True))
            if up or (down and now >= due):
                self._hint(flavor, wanted, target, now)
            elif down:
                later.append(due)
        return min(later, default=None)

    def _hint(self, flavor: str, wanted: tuple[int, int], target: Target, now: float) -> None:
        state = self._issuer.state
        is_short = any(new > there for new, there in zip(wanted, _offered(state, flavor), strict=True))
        at = target.at if is_short and target.at is not None else now
        self._issuer.decide(m.ScalingHint(state.next_decision, flavor, wanted[0], wanted[1], at))
        self._issuer.transitions.hinted(flavor, *wanted, now)


def _offered(state: State, flavor: str) -> tuple[int, int]:
    nodes = [node for node in state.nodes if node.alive and flavor in node.flavors]
    gpus = [node.device_flavors.count(flavor) if node.device_flavors else node.gpus for node in nodes]
    return sum(gpus), sum(node.cpu_milli for node in nodes) // 1000


def _is_more(larger: int, smaller: int) -> bool:
    return larger - smaller >= max(1.0, MATERIAL * larger)
