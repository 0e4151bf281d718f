"""What tasks and workloads have used, held against the most that they may use.

A meter knows what was used up to a moment and how fast that grows, so the moment at which a limit is reached is known
in advance, and nothing is counted while nothing happens:

    used                     ________ limit
      |                  ___/|
      |       __________/    |        a task uses only while one of its phases runs: between phases, paused or
      |   ___/               |        preempted its meter stands still
      +-------------------- due --- time

    of a task      time: of its phases in this attempt     GPU time, cost: of its phases, in all attempts
    of a workload  time: since its first phase started,    GPU time, cost: of all phases of its tasks
                   but not while the workload is paused

A task that a limit has requeued starts again with all meters at zero.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

import msgspec

from egs_core.graph.columns import ON_LIMIT, TaskOptions

if TYPE_CHECKING:
    from egs_core.engine.columns import Columns

TIME, GPU_TIME, COST, IDLE = range(4)
FAIL, REQUEUE, END = ON_LIMIT[1:]
MOST_REQUEUES = 3  # of one task by its own limits; the next time it fails
Rates = tuple[float, float, float]  # seconds, GPU seconds and cost a second


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The most that may be used; None: no limit. A workload has no idle_timeout_s, and always fails on its limit.

    on_limit: fail; requeue, to go on from its checkpoint with as much again, a few times; end: it has had what it
    asked for and counts as succeeded (a time-boxed interactive request). "": not stated.
    """

    max_runtime_s: float | None = None
    max_gpu_s: float | None = None
    max_cost: float | None = None
    idle_timeout_s: float | None = None
    on_limit: str = ""

    @property
    def amounts(self) -> tuple[float | None, float | None, float | None]:
        """By the kinds TIME, GPU_TIME and COST."""
        return self.max_runtime_s, self.max_gpu_s, self.max_cost

    @property
    def is_none(self) -> bool:
        return self.idle_timeout_s is None and self.amounts == (None, None, None)


NO_LIMITS = Limits()


class Meter(msgspec.Struct):
    """Used by kind up to `at`, and how fast that grows. running: phases that use; active_at: last sign of life;
    limits: what holds now, of the task and its queue or of the workload."""

    at: float
    used: list[float] = msgspec.field(default_factory=lambda: [0.0, 0.0, 0.0])
    rates: list[float] = msgspec.field(default_factory=lambda: [0.0, 0.0, 0.0])
    running: int = 0
    active_at: float = 0.0
    limits: Limits = NO_LIMITS

    def used_at(self, now: float) -> list[float]:
        passed = max(0.0, now - self.at)
        return [used + rate * passed for used, rate in zip(self.used, self.rates, strict=True)]

    def settle(self, now: float) -> None:
        """Count what was used until now; before the rates change."""
        self.used, self.at = self.used_at(now), max(now, self.at)


class Over(msgspec.Struct, frozen=True):
    """A task that has reached a limit: which, in words, and what becomes of it (FAIL, REQUEUE or END)."""

    text: str
    then: str


def limits_in(options: TaskOptions) -> Limits:
    """What the task's own options state."""
    return Limits(options.max_runtime_s, options.max_gpu_s, options.max_cost, options.idle_timeout_s, options.on_limit)


def strictest(first: Limits, second: Limits) -> Limits:
    """Of two limits of a kind the smaller one holds; what is to happen then says the first that says anything."""
    pairs = zip((*first.amounts, first.idle_timeout_s), (*second.amounts, second.idle_timeout_s), strict=True)
    time_s, gpu_s, cost, idle_s = (min((v for v in pair if v is not None), default=None) for pair in pairs)
    return Limits(time_s, gpu_s, cost, idle_s, first.on_limit or second.on_limit)


def reached_at(meter: Meter) -> tuple[float, int] | None:
    """When, if all goes on as it does, the first limit is reached, and its kind; None: never."""
    limits, found = meter.limits, None
    for kind, limit in enumerate(limits.amounts):
        if limit is None or meter.rates[kind] <= 0:
            continue
        at = meter.at + max(0.0, limit - meter.used[kind]) / meter.rates[kind]
        if isfinite(at) and (found is None or at < found[0]):
            found = at, kind
    if limits.idle_timeout_s is not None and meter.running:
        at = meter.active_at + limits.idle_timeout_s
        found = (at, IDLE) if found is None or at < found[0] else found
    return found


def task_reaches(state: Columns, task: int) -> tuple[float, int] | None:
    """When a running task reaches its first limit; None for one without limits, or that is being stopped."""
    meter = state.meters.get(task)
    if meter is None or not meter.running or task in state.stopping or task in state.recalled:
        return None
    return reached_at(meter)


def workload_reaches(state: Columns, number: int) -> tuple[float, int] | None:
    """When an open workload reaches its first limit; its time also runs while all of its tasks wait."""
    workload, meter = state.workloads[number], state.workload_meters.get(number)
    if meter is None or workload.aborted or not workload.open_tasks:
        return None
    return reached_at(meter)


def limits_of(state: Columns, task: int) -> Limits:
    """The task's own and its queue's."""
    own = limits_in(state.options[task]) if task in state.options else NO_LIMITS
    number = state.queue_of(task)
    spec = state.queues[number].spec if number >= 0 else None
    return own if spec is None or spec.limits is None else strictest(own, spec.limits)


def is_over_limit(state: Columns, task: int) -> bool:
    """Whether the task has reached a limit, and is being stopped or was stopped for good because of it."""
    return task in state.over_limit


def described(limits: Limits, kind: int) -> str:
    """The limit that was reached, in words."""
    if kind == IDLE:
        return f"idle for {_plain(limits.idle_timeout_s)} s"
    what = ("s", "s of GPU time", "in cost")[kind]
    return f"over its limit of {_plain(limits.amounts[kind])} {what}"


def _plain(value: float | None) -> str:
    return f"{value or 0.0:.3f}".rstrip("0").rstrip(".")
