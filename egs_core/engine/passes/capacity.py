"""Nodes that come, change and are lost; queues and flavors that are configured anew."""

from __future__ import annotations

from egs_core.engine import messages as m
from egs_core.engine.order.queue import ReadyQueue
from egs_core.engine.passes.issuer import Issuer
from egs_core.engine.passes.limits import Limiter
from egs_core.engine.passes.readiness import Readiness
from egs_core.engine.passes.restarts import Restarts
from egs_core.engine.passes.warm_pool import Processes
from egs_core.engine.specs import LEARNED, NO_QUEUE, ORDERS


class Capacity:
    """See the module."""

    def __init__(
        self,
        issuer: Issuer,
        queue: ReadyQueue,
        processes: Processes,
        readiness: Readiness,
        restarts: Restarts,
        limits: Limiter,
    ) -> None:
        self._transitions = issuer.transitions
        self._state = issuer.state
        self._queue = queue
        self._processes = processes
        self._readiness = readiness
        self._restarts = restarts
        self._limits = limits

    def node_added(self, event: m.NodeAdded, _now: float) -> None:
        """Or changed."""
        self._transitions.absorb_node(event)
        self._queue.capacity_changed()
        self._readiness.freed()
        self._processes.review()

    def node_lost(self, event: m.NodeLost, now: float) -> None:
        """What ran there starts again."""
        state = self._state
        number = next((i for i, node in enumerate(state.nodes) if node.name == event.node and node.alive), None)
        if number is None:
            return
        for task in self._transitions.lose_node(number):
            self._queue.remove(state.cursor[task])
            self._restarts.lost(task, now)
        self._queue.capacity_changed()
        self._processes.lose_node(number)
        self._processes.review()
        self._readiness.freed()

    def queues_changed(self, event: m.QueuesChanged, _now: float) -> None:
        self._transitions.absorb_queues(event)
        self._reconfigured()

    def elsewhere_changed(self, event: m.UsedElsewhere, _now: float) -> None:
        """Quota is there that was not, or the other way round."""
        self._transitions.absorb_elsewhere(event)
        self._queue.mark_changed()

    def order_chosen(self, event: m.OrderChosen, _now: float) -> None:
        """A queue that has its order learned gets another one, or another reason for the one that it has. Raises
        ValueError for an order that there is not."""
        if event.order not in ORDERS:
            raise ValueError(f"unknown order {event.order!r}; one of {', '.join(ORDERS)}")
        number = self._state.queue_numbers.get(event.queue, NO_QUEUE)
        if number == NO_QUEUE or self._state.queues[number].spec.order != LEARNED:
            return
        before = self._state.queues[number].order
        self._transitions.choose_order(event)
        if event.order != before:
            self._requeue()
            self._readiness.freed()

    def promises_at_risk(self, event: m.PromisesAtRisk, _now: float) -> None:
        """A queue is about to break what it promises, or is not any more."""
        number = self._state.queue_numbers.get(event.queue, NO_QUEUE)
        if number != NO_QUEUE and (event.risk or self._state.queues[number].at_risk):
            self._transitions.absorb_risk(event)
            self._requeue()
            self._readiness.freed()

    def flavors_changed(self, event: m.FlavorsChanged, _now: float) -> None:
        self._transitions.absorb_flavors(event)
        self._reconfigured()

    def _reconfigured(self) -> None:
        """Classes, quotas, limits and prices may be others."""
        self._requeue()
        self._readiness.freed()
        self._limits.rebuild()

    def _requeue(self) -> None:
        for phase in self._queue.take_all():
            self._queue.add(phase)
