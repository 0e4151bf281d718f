"""Meters: what tasks and workloads have used, held against the most that they may use.

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

Only work that somebody has limited is metered: without limits `is_metered` is False, and no meter is kept.
"""

from __future__ import annotations

import msgspec

from egs_core.engine.meters import COST, GPU_TIME, TIME, Meter, reached_at
from egs_core.engine.specs import END, HOUR_S, NO_LIMITS, NO_QUEUE, REQUEUE, Limits, limits_in, strictest
from egs_core.engine.state.columns import Columns
from egs_core.engine.state.lifecycle import RUNNING
from egs_core.engine.state.processes import ProcessState
from egs_core.engine.state.records import Over, Rates, amounts_of
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

    def _count_use(self, phase: int, sign: int) -> None:
        number = self.queue_of(self.task_of[phase])
        if number != NO_QUEUE:
            self.queues[number].use(amounts_of(self.shape_of(phase)), sign, self.now)

    def _expect_limits(self, graph: Graph) -> None:
        """Tasks have come: is there anything to meter?"""
        if not self.is_metered:
            self.is_metered = not all(options.is_none for options in graph.options.values())

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


def price_of(state: Columns, phase: int) -> float:
    """What a phase costs a second, by what it holds now; 0 where no price is known. Raises KeyError without lease."""
    lease = state.leases[phase]
    spec = state.flavors.get(state.nodes[lease.node].flavor_of(lease.devices))
    if spec is None:
        return 0.0
    return (spec.gpu_hour * lease.gpu_milli * len(lease.devices) + spec.cpu_hour * lease.cpu_milli) / 1000 / HOUR_S
