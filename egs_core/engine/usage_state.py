"""Meters in the state: the transitions that start and stop them, and what a reached limit leaves behind.

Only work that somebody has limited is metered: without limits `is_metered` is False, and nothing here is called.
"""

from __future__ import annotations

import msgspec

from egs_core.engine.flavors import price_of
from egs_core.engine.lifecycle import RUNNING
from egs_core.engine.process_state import ProcessState
from egs_core.engine.usage import COST, END, GPU_TIME, NO_LIMITS, REQUEUE, TIME, Meter, Over, Rates, limits_of
from egs_core.graph.columns import Graph


class UsageState(ProcessState):
    """The columns and processes with what tasks and workloads use; `State` adds the life of the phases."""

    # --- transitions ---

    def active(self, task: int, now: float) -> None:
        """Whoever holds what the task runs on has done something."""
        self.meters[task].active_at = now

    def over(self, task: int, text: str, then: str) -> None:
        """The task has reached a limit; its Stop is on its way."""
        self.over_limit[task] = Over(text, then)
        if then == REQUEUE:
            self.limit_requeues[task] = self.limit_requeues.get(task, 0) + 1

    def over_workload(self, number: int, text: str) -> None:
        """The workload has reached a limit: it takes no more tasks."""
        self.workloads[number].aborted = True
        self.workloads[number].over_limit = text

    # --- what other transitions call ---

    def _expect_limits(self, graph: Graph) -> None:
        """Tasks have come: is there anything to meter?"""
        if not self.is_metered:
            self.is_metered = any(options.is_limited for options in graph.options.values())

    def _meter_queues(self) -> None:
        """Queues have changed: what runs in one that has limits now is metered from the start of its phase."""
        if any(queue.spec.limits is not None for queue in self.queues):
            self.is_metered = True
        if self.is_metered:
            for task, meter in self.meters.items():
                meter.limits = limits_of(self, task)
            for phase in sorted(self.leases):
                if self.status[phase] == RUNNING:
                    self._charge(phase, self.started_at[phase])

    def _charge_anew(self) -> None:
        """Prices have changed: what was used before was used at the old ones."""
        for phase in sorted(self.charges):
            self._uncharge(phase)
            self._charge(phase, self.now)

    def _begin_use(self, phase: int, now: float) -> None:
        """The phase starts to run."""
        self._charge(phase, now)
        meter = self.meters.get(self.task_of[phase])
        if meter is not None:
            meter.active_at = now

    def _charge(self, phase: int, since: float) -> None:
        """Let the meters of its task and workload run, where there are limits; one that runs already is left alone."""
        task, lease = self.task_of[phase], self.leases[phase]
        rates = (1.0, lease.gpu_milli * len(lease.devices) / 1000, price_of(self, phase))
        meter = self.meters.get(task)
        if meter is None and not (limits := limits_of(self, task)).is_none:
            meter = self.meters[task] = Meter(since, active_at=since, limits=limits)
        if meter is not None and not meter.running:
            meter.settle(since)
            meter.rates, meter.running = list(rates), 1
            self.charges[phase] = rates
        if self.workloads[self.task_workload[task]].limits is not None and phase not in self.workload_charges:
            self._charge_workload(phase, rates)

    def _charge_workload(self, phase: int, rates: Rates) -> None:
        number = self.task_workload[self.task_of[phase]]
        meter = self.workload_meters.get(number)
        if meter is None:
            limits = self.workloads[number].limits or NO_LIMITS
            meter = self.workload_meters[number] = Meter(
                self.now, limits=msgspec.structs.replace(limits, idle_timeout_s=None)
            )
            meter.rates[TIME] = 0.0 if f"workload:{self.workloads[number].id}" in self.pauses else 1.0
        meter.settle(self.now)
        meter.running += 1
        for kind in (GPU_TIME, COST):
            meter.rates[kind] += rates[kind]
        self.charges[phase] = rates
        self.workload_charges.add(phase)

    def _uncharge(self, phase: int) -> None:
        """The phase runs no more, or at another price from now on."""
        rates = self.charges.pop(phase, None)
        if rates is None:
            return
        task = self.task_of[phase]
        meter = self.meters.get(task)
        if meter is not None:
            meter.settle(self.now)
            meter.rates, meter.running = [0.0, 0.0, 0.0], 0
        if phase in self.workload_charges:
            self.workload_charges.discard(phase)
            meter = self.workload_meters[self.task_workload[task]]
            meter.settle(self.now)
            meter.running -= 1
            for kind in (GPU_TIME, COST):  # exactly zero when nothing runs, whatever rounding has left
                meter.rates[kind] = meter.rates[kind] - rates[kind] if meter.running else 0.0

    def _run_clock(self, pause: str, rate: float) -> None:
        """A whole workload is paused or goes on: its time stands still meanwhile."""
        scope, _, workload = pause.partition(":")
        meter = self.workload_meters.get(self.workload_numbers[workload]) if scope == "workload" else None
        if meter is not None:
            meter.settle(self.now)
            meter.rates[TIME] = rate

    def _begin_again(self, task: int) -> None:
        """A new attempt: its time counts from zero, and after a requeue by a limit all does."""
        over = self.over_limit.pop(task, None)
        if task in self.meters:
            used = self.meters[task].used
            self.meters[task].used = [0.0, 0.0, 0.0] if over is not None else [0.0, *used[1:]]

    def _forget_use(self, task: int, *, is_done: bool) -> None:
        """The task has ended: only why, if a limit was the reason, is kept."""
        self.meters.pop(task, None)
        self.limit_requeues.pop(task, None)
        if is_done and task in self.over_limit and self.over_limit[task].then != END:
            del self.over_limit[task]
