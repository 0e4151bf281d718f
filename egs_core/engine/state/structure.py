"""What there is: nodes, queues, flavors, workloads, their tasks, and what is believed of these; told by events."""

from __future__ import annotations

from math import isfinite

import msgspec

from egs_core.engine.messages import (
    DevicesAllowed,
    Elsewhere,
    Estimates,
    FlavorEstimates,
    FlavorsAllowed,
    FlavorsChanged,
    NodeAdded,
    OrderChosen,
    PromisesAtRisk,
    QueuesChanged,
    TasksAdded,
    UsedElsewhere,
    WorkloadSubmitted,
)
from egs_core.engine.state.growth import append_block, detach, pass_up, reads_of, refresh_ranks
from egs_core.engine.state.histories import QueueHistory
from egs_core.engine.state.metering import UsageState
from egs_core.engine.state.nodes import Node
from egs_core.engine.state.records import Workload, make_queues
from egs_core.engine.state.submissions import count_block, join_submission, recount


class StructureState(UsageState):
    """The columns, processes and usage with what events say that there is; `State` adds the life of the phases."""

    # --- capacity ---

    def absorb_node(self, event: NodeAdded) -> None:
        """Add a node, or change a known one."""
        node = next((node for node in self.nodes if node.name == event.node), None)
        if node is None:
            node = Node(event.node)
            self.nodes.append(node)
        node.take_capacity(event)
        if self.flavors or node.profiles:
            self._split_devices()

    def absorb_queues(self, event: QueuesChanged) -> None:
        """Take the configuration over; what leases hold now is what their queues use."""
        self.queues = make_queues(event.queues, self.queues)
        self.queue_numbers = {queue.spec.name: number for number, queue in enumerate(self.queues)}
        for queue in self.queues:
            queue.used = [0, 0, 0]
        self.queues_since = self.next_decision
        for phase in self.leases:
            self._count_use(phase, 1)
        self._meter_queues()
        self.has_deadlines = self.has_deadlines or any(queue.spec.deadline_s is not None for queue in self.queues)

    def choose_order(self, event: OrderChosen) -> None:
        """The order of a queue that has it learned."""
        queue = self.queues[self.queue_numbers[event.queue]]
        if event.order != queue.order or not queue.chosen:
            queue.chosen_at = self.now
        queue.chosen, queue.chosen_why = event.order, event.why

    def absorb_risk(self, event: PromisesAtRisk) -> None:
        """What a queue is about to break of its promises."""
        queue, history = self.queues[self.queue_numbers[event.queue]], self.histories.get(event.queue, QueueHistory())
        queue.at_risk_since = queue.at_risk_since if queue.at_risk and event.risk else self.now
        queue.at_risk, share = event.risk, event.risk.share
        queue.at_risk_most = history.totals.most_of(share), history.gpu_totals.most_of(share)
        self.has_deadlines = self.has_deadlines or bool(event.risk)

    def absorb_elsewhere(self, event: UsedElsewhere) -> None:
        """What other pools use of the queues' quotas."""
        told = {one.queue: one for one in event.queues}
        for queue in self.queues:
            one = told.get(queue.spec.name) or Elsewhere(queue.spec.name)
            if one.used != queue.elsewhere:
                queue.settle(self.now)
            queue.elsewhere, queue.most = one.used, one.most

    def absorb_flavors(self, event: FlavorsChanged) -> None:
        """Take the flavors over; those with a speed or price that is no such thing are left out."""
        self.flavors = {spec.name: spec for spec in event.flavors if spec.is_sound}
        self._split_devices()
        if self.is_metered:
            self._charge_anew()

    def _split_devices(self) -> None:
        """Nodes have their flavors' profiles; slices that are held stay as they are."""
        for node in self.nodes:
            node.profiles = self.flavors[node.flavor].profiles if node.flavor in self.flavors else ()

    def absorb_flavor_estimates(self, event: FlavorEstimates) -> None:
        """Take them over, unless they are no durations."""
        for phase, flavor, p50, p95 in event.values:
            if 0 <= phase < len(self.kind) and isfinite(p50) and isfinite(p95) and p50 >= 0:
                self.flavor_estimates.setdefault(phase, {})[flavor] = (p50, max(p50, p95))

    def allow_flavors(self, event: FlavorsAllowed) -> None:
        """A task that there is may have these, and no others."""
        self.options[event.task] = msgspec.structs.replace(self.options_of(event.task), flavors=event.flavors)

    def allow_devices(self, event: DevicesAllowed) -> None:
        """The same for devices."""
        only_on = (event.node, event.devices) if event.devices else None
        self.options[event.task] = msgspec.structs.replace(self.options_of(event.task), only_on=only_on)

    # --- work ---

    def absorb_workload(self, event: WorkloadSubmitted, now: float) -> None:
        self.workload_numbers[event.workload] = len(self.workloads)
        workload = Workload(event.workload, event.name, event.tenant, event.queue, now, deadline_s=event.deadline_s)
        workload.limits = event.limits
        workload.submission = join_submission(self, event.submission, event.name, event.queue)
        self.is_metered = self.is_metered or event.limits is not None
        self.has_deadlines = self.has_deadlines or event.deadline_s is not None
        self.workloads.append(workload)

    def absorb_tasks(self, event: TasksAdded) -> list[int]:
        """Append a block in topological order; returns the earlier tasks whose rank or children changed."""
        number, first = self.workload_number(event.workload), len(self.task_ids)
        before = self.workloads[number].numbers[:1]
        jobs = list(self.workloads[number].numbers) if before and self.is_job(before[0]) else []
        known = len(self.workloads[number].numbers)
        changed = append_block(self, number, event.graph)
        count_block(self, number, first)
        if event.graph.inputs and any(node.bandwidth_bytes_s for node in self.nodes):
            self.reads.update(reads_of(event.graph, self.workloads[number].numbers, known))
        self._expect_limits(event.graph)
        if any(options.deadline_s is not None for options in event.graph.options.values()):
            self.has_deadlines = True
            changed = [*changed, *pass_up(self, range(first, len(self.task_ids)))]
        return changed if not jobs or self.is_job(before[0]) else [*changed, *jobs]

    def absorb_estimates(self, event: Estimates) -> list[int]:
        """Take new estimates over, unless they are no durations; returns the tasks whose ranks were computed."""
        tasks = set()
        for phase, p50, p95 in event.values:
            if 0 <= phase < len(self.kind) and isfinite(p50) and isfinite(p95) and p50 >= 0:
                self.estimate_s[phase], self.estimate_p95_s[phase] = p50, max(p50, p95)
                self.unknown.discard(phase)
                recount(self, phase)
                tasks.add(self.task_of[phase])
        return refresh_ranks(self, tasks)

    def set_wait(self, submission: int, wait_s: float, wait_lengths: float) -> None:
        """How long a phase of the submission waits at most for others: see `Submission`."""
        self.submissions[submission].wait_s, self.submissions[submission].wait_lengths = wait_s, wait_lengths

    def close_workload(self, number: int) -> None:
        """An operator has aborted the workload: it takes no more tasks."""
        self.workloads[number].aborted = True

    def detach(self, tasks: tuple[int, ...]) -> list[int]:
        """These wait for nothing any more, whatever was before them; returns the tasks whose ranks were computed."""
        return detach(self, tasks)
