"""Small records of the state: workloads, gangs, reservations, pauses, usage of queues, and meters of limits."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from egs_core.engine.specs import (
    LEARNED,
    NO_LIMIT,
    NOTHING,
    ORDERS,
    SAFE,
    UNLIMITED,
    Amounts,
    AtRisk,
    Limits,
    QueueSpec,
)
from egs_core.graph.columns import Shape

Rates = tuple[float, float, float]  # seconds, GPU seconds and cost a second
Reads = tuple[tuple[int, int], ...]  # parent, bytes


class Workload(msgspec.Struct):
    """One submission: who, when, and its tasks. aborted: tasks that join it later are aborted at once."""

    id: str
    name: str = ""
    tenant: str = ""
    queue: str = ""
    submitted_at: float = 0.0
    open_tasks: int = 0
    failed: bool = False
    aborted: bool = False
    lost_s: float = 0.0  # work of phases that had to start again, beyond their last checkpoint
    numbers: list[int] = []  # task index within the workload -> engine's task number
    deadline_s: float | None = None  # after submission
    limits: Limits | None = None
    over_limit: str = ""  # the one that it has reached, in words
    submission: int = -1  # index in `submissions`


class Gang(msgspec.Struct):
    """Tasks of one workload that start each of their phases together; `members` grows with the workload."""

    name: str
    members: list[int] = []


class Reservation(msgspec.Struct, frozen=True):
    """What is kept for a phase, or for the gang that it leads: (phase, node) for each, from `at` on, in seconds.
    since: the first decision after it was made, so what was granted later has been let past it."""

    at: float
    places: tuple[tuple[int, int], ...]
    since: int = 1 << 62


class Pause(msgspec.Struct, frozen=True):
    """An operator's wish that nothing more of a workload, stage or task starts."""

    actor: str
    reason: str
    at: float


class Over(msgspec.Struct, frozen=True):
    """A task that has reached a limit: which, in words, and what becomes of it (FAIL, REQUEUE or END)."""

    text: str
    then: str


class QueueState(msgspec.Struct):
    """A queue's usage. used: of this engine's leases; elsewhere, most: see `Elsewhere`. smoothed: all usage averaged
    over the past with the half-life, as it was at `smoothed_at`. chosen, chosen_at, chosen_why: its order, since when
    and why, where that is learned; "" until somebody has chosen. at_risk, at_risk_since: what it is about to break of
    its promises; at_risk_most: work of CPUs and of devices, as `Submission` counts it: what is more may break them."""

    spec: QueueSpec
    cohort: tuple[int, ...] = ()  # numbers of the queues it shares quota with, itself included
    used: list[int] = msgspec.field(default_factory=lambda: [0, 0, 0])
    smoothed: list[float] = msgspec.field(default_factory=lambda: [0.0, 0.0, 0.0])
    smoothed_at: float = 0.0
    elsewhere: Amounts = NOTHING
    most: Amounts = NO_LIMIT
    chosen: str = ""
    chosen_at: float = 0.0
    chosen_why: str = ""
    at_risk: AtRisk = SAFE
    at_risk_since: float = 0.0
    at_risk_most: tuple[int, int] = (UNLIMITED, UNLIMITED)

    @property
    def order(self) -> str:
        """Between its workloads, as it is now: one of ORDERS."""
        return self.spec.order if self.spec.order != LEARNED else self.chosen or ORDERS[0]

    def total(self, kind: int) -> int:
        """All that is used of this kind, here and elsewhere."""
        return self.used[kind] + self.elsewhere[kind]

    def settle(self, now: float) -> None:
        """Usage so far goes into the average; before it changes."""
        self.smoothed = smoothed_at(self, now)
        self.smoothed_at = max(now, self.smoothed_at)

    def use(self, amounts: Amounts, sign: int, now: float) -> None:
        """Take what a lease holds, or give it back."""
        self.settle(now)
        for kind, amount in enumerate(amounts):
            self.used[kind] += sign * amount


def amounts_of(shape: Shape) -> Amounts:
    """What a phase of this shape counts against a quota; a share of a device counts as that share."""
    return shape.cpu_milli, shape.gpu_milli, shape.memory_bytes


def smoothed_at(queue: QueueState, now: float) -> list[float]:
    """Usage averaged with weights that halve every `half_life_s`, as of now."""
    passed = max(0.0, now - queue.smoothed_at)
    keep = 2.0 ** (-passed / queue.spec.half_life_s) if queue.spec.half_life_s > 0 else 0.0
    return [keep * past + (1 - keep) * queue.total(kind) for kind, past in enumerate(queue.smoothed)]


def make_queues(specs: Sequence[QueueSpec], known: Sequence[QueueState] = ()) -> list[QueueState]:
    """The queues in this order, cohorts resolved; those already known by name keep their usage, and those that are
    no longer listed limit nothing any more."""
    used = {queue.spec.name: queue for queue in known}
    out = [QueueState(spec) for spec in specs]
    names = {spec.name for spec in specs}
    for queue in known:
        if queue.spec.name not in names:
            out.append(QueueState(QueueSpec(queue.spec.name)))
    for queue in out:
        if queue.spec.name in used:
            before = used[queue.spec.name]
            queue.used, queue.smoothed, queue.smoothed_at = list(before.used), list(before.smoothed), before.smoothed_at
            queue.elsewhere, queue.most = before.elsewhere, before.most
            queue.at_risk, queue.at_risk_since = before.at_risk, before.at_risk_since
            queue.at_risk_most = before.at_risk_most
            if queue.spec.order == LEARNED:
                queue.chosen, queue.chosen_at, queue.chosen_why = before.chosen, before.chosen_at, before.chosen_why
    for number, queue in enumerate(out):
        cohort = queue.spec.cohort
        queue.cohort = tuple([i for i, q in enumerate(out) if cohort and q.spec.cohort == cohort]) or (number,)
    return out
