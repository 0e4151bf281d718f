"""Run log records from the engine's events and decisions, the same for the simulator and for real drivers."""

from __future__ import annotations

from collections.abc import Callable

from egs_core.driver.waits import CAPACITY, Explain, WaitRecords
from egs_core.engine import messages as m
from egs_core.engine.rules.flavors import held_flavor, seconds_on
from egs_core.engine.specs import END, FAIL
from egs_core.engine.state.state import State
from egs_core.runlog import records as r
from egs_core.runlog.added import added_tasks

Emit = Callable[[int, r.Record], None]
"""Takes a record and the number of the workload that it is of, OF_NONE for what is of no workload."""
OF_NONE = -1
AT_LIMIT = {FAIL: "failed", END: "succeeded"}


class RunRecords:
    """Turns what passes between a driver and its engine into records; call it right after `Engine.handle`. The driver's
    clock is the run's clock. explain: the engine's; with it `after` writes what waits, and why, while it waits. called:
    what records call a workload, by its number; None: as the engine does."""

    def __init__(
        self, state: State, emit: Emit, explain: Explain | None = None, called: Callable[[int], str] | None = None
    ) -> None:
        self._state = state
        self._emit = emit
        self._called = called or (lambda number: state.workloads[number].id)
        self._waits = None if explain is None else WaitRecords(state, explain, emit, self.names)

    def after(self, event: m.Event, now: float) -> None:
        """What the event made ready and was not granted with it, and which reasons to wait have changed."""
        if self._waits is not None:
            self._waits.after(event, now)

    def node(self, event: m.NodeAdded, now: float) -> None:
        self._emit(OF_NONE, capacity_of(event, now))

    def workload(self, event: m.WorkloadSubmitted, now: float) -> None:
        number = self._state.workload_number(event.workload)
        self._emit(number, r.WorkloadSubmitted(now, event.workload, event.name, event.tenant, event.queue))

    def tasks(self, event: m.TasksAdded, now: float) -> None:
        number = self._state.workload_number(event.workload)
        known = self._state.workloads[number].numbers
        for record in added_tasks(now, event.workload, event.graph, lambda i: self._state.task_ids[known[i]]):
            self._emit(number, record)

    def grant(self, grant: m.Grant, now: float) -> None:
        """Ready (with its true time) and that it was held, where that is not written yet, and the decision."""
        state, phase = self._state, grant.phase
        number = self._number(phase)
        workload, task, index = self.names(phase)
        if self._waits is None or not self._waits.granted(phase, grant.attempt):
            ready_at = state.ready_at[phase]
            self._emit(number, r.Ready(ready_at, workload, task, index, grant.attempt))
            if now > ready_at:
                self._emit(number, r.Held(ready_at, workload, task, index, CAPACITY))
        p50: float | None = state.estimate_s[phase]
        p95: float | None = state.estimate_p95_s[phase]
        if phase in state.unknown:
            p50 = p95 = None
        elif (state.flavors or state.flavor_estimates) and phase in state.leases:
            p50, p95 = seconds_on(state, phase, held_flavor(state, phase))
        self._emit(number, r.Granted(now, workload, task, index, grant.attempt, grant.id, grant.reason, p50, p95))

    def started(self, grant: m.Grant, now: float, warm: bool | None, framework_id: str = "", pid: int = 0) -> None:
        workload, task, index = self.names(grant.phase)
        lease = self._state.leases[grant.phase]
        gpus = lease.gpu_milli * len(lease.devices) / 1000
        flavor = held_flavor(self._state, grant.phase) if gpus else ""
        self._emit(
            self._number(grant.phase),
            r.Started(
                now,
                workload,
                task,
                index,
                grant.attempt,
                grant.node,
                grant.devices,
                lease.cpu_milli / 1000,
                gpus,
                lease.memory_bytes,
                warm,
                framework_id,
                pid,
                flavor if flavor in self._state.flavors else "",
            ),
        )

    def cold_start(self, grant: m.Grant, start: float, end: float) -> None:
        workload, task, index = self.names(grant.phase)
        self._emit(self._number(grant.phase), r.ColdStart(start, end, workload, task, index, grant.attempt))

    def ended(self, phase: int, attempt: int, outcome: str, now: float, reason: str = "") -> None:
        """The attempt is over; what a limit has stopped ends as the engine counts it, not as who stopped it says."""
        if self._waits is not None:
            self._waits.ended(phase)
        over = self._state.over_limit.get(self._state.task_of[phase])
        if over is not None and outcome == "aborted":
            outcome, reason = AT_LIMIT.get(over.then, outcome), reason or over.text
        workload, task, index = self.names(phase)
        self._emit(self._number(phase), r.Ended(now, workload, task, index, attempt, outcome, reason))

    def preload_started(self, decision: m.Preload, now: float) -> None:
        options = self._state.options_of(decision.task)
        workload, task = self.task_names(decision.task)
        cpus = 0.0 if decision.reuse else options.warm_cpu_milli / 1000
        number, memory_bytes = self._state.task_workload[decision.task], options.warm_memory_bytes
        self._emit(number, r.PreloadStarted(now, workload, task, decision.node, cpus, memory_bytes))

    def preload_ended(self, task: int, outcome: str, now: float) -> None:
        workload, name = self.task_names(task)
        self._emit(self._state.task_workload[task], r.PreloadEnded(now, workload, name, outcome))

    def workload_ended(self, number: int, now: float) -> None:
        workload = self._state.workloads[number]
        outcome = "failed" if workload.failed else "succeeded"
        self._emit(number, r.WorkloadEnded(now, self._called(number), outcome))

    def names(self, phase: int) -> tuple[str, str, int]:
        """(workload, task id, phase number within the task)."""
        state = self._state
        task = state.task_of[phase]
        return self._called(state.task_workload[task]), state.task_ids[task], phase - state.first_phase[task]

    def task_names(self, task: int) -> tuple[str, str]:
        return self._called(self._state.task_workload[task]), self._state.task_ids[task]

    def _number(self, phase: int) -> int:
        return self._state.task_workload[self._state.task_of[phase]]


def capacity_of(event: m.NodeAdded | m.NodeLost, now: float) -> r.Capacity:
    """What the node offers from now on; nothing once it is lost."""
    if isinstance(event, m.NodeLost):
        return r.Capacity(now, event.node)
    return r.Capacity(now, event.node, event.cpus, event.gpus, event.memory_bytes or 0)
