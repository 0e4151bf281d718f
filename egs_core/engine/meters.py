"""What a meter of limits is, and when it reaches one. Pure arithmetic: the engine's state keeps meters by it, and an
adapter whose framework keeps the limits itself asks the same.
"""

from __future__ import annotations

from math import isfinite

import msgspec

from egs_core.engine.specs import NO_LIMITS, Limits

TIME, GPU_TIME, COST, IDLE = range(4)
MOST_REQUEUES = 3  # of one task by its own limits; the next time it fails


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


def described(limits: Limits, kind: int) -> str:
    """The limit that was reached, in words."""
    if kind == IDLE:
        return f"idle for {_plain(limits.idle_timeout_s)} s"
    what = ("s", "s of GPU time", "in cost")[kind]
    return f"over its limit of {_plain(limits.amounts[kind])} {what}"


def _plain(value: float | None) -> str:
    return f"{value or 0.0:.3f}".rstrip("0").rstrip(".")
