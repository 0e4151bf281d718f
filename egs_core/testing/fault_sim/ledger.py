"""What really happened at the outside, whatever the engine believes: the evidence for the claims."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from egs_core.engine import messages as m
from egs_core.engine.specs import KINDS, UNLIMITED, Amounts, QueueSpec
from egs_core.engine.state.nodes import WHOLE_DEVICE

SUCCEEDED = "succeeded"


class ClaimBroken(AssertionError):
    """A claim does not hold. claim: its name."""

    def __init__(self, claim: str, problem: str) -> None:
        self.claim, self.problem = claim, problem
        super().__init__(f"{claim}: {problem}")


class Job(msgspec.Struct, frozen=True):
    """One phase of one attempt, as a worker is told it. index: of the phase within its task of `count` phases;
    gpu_milli and gpu_memory_bytes: of each device; parents: ids of the tasks that must have ended well before."""

    task_id: str
    task: int
    attempt: int
    phase: int
    index: int
    count: int
    queue: str
    cpu_milli: int
    memory_bytes: int
    gpu_milli: int
    gpu_memory_bytes: int
    devices: tuple[int, ...]
    parents: tuple[str, ...]
    seconds: float
    warmup_s: float

    @property
    def key(self) -> tuple[int, int]:
        """The attempt: what a process belongs to."""
        return self.task, self.attempt

    @property
    def name(self) -> str:
        return f"{self.task_id}/{self.index} attempt {self.attempt}"


class Live(msgspec.Struct, frozen=True):
    """A phase that runs now, on this start of a node."""

    job: Job
    node: str
    boot: int


class Ledger:
    """See the module. The methods raise `ClaimBroken` at the moment at which something may not happen.

    outcomes: (task id, attempt, phase index) -> how it ended at the outside ("" while it runs); done: tasks that ended
    well; finished: (task id, attempt) that took no more phases; skipped,
    abort_asked: ids for which that was asked; aborted: and acknowledged; closed: workloads asked to abort;
    paused: by what was paused, the ids that this holds, from its acknowledgement until its end is asked for;
    boxed: tasks that a limit ends well, once they have stopped.
    """

    def __init__(self, queues: Sequence[QueueSpec] = ()) -> None:
        self._queues = {queue.name: queue for queue in queues}
        self.live: dict[tuple[int, int], Live] = {}
        self.outcomes: dict[tuple[str, int, int], str] = {}
        self.done: set[str] = set()
        self.finished: set[tuple[str, int]] = set()
        self.skipped: set[str] = set()
        self.aborted: set[str] = set()
        self.abort_asked: set[str] = set()
        self.closed: set[str] = set()
        self.paused: dict[str, set[str]] = {}
        self.boxed: set[str] = set()
        self.latest: dict[str, int] = {}
        self.places: dict[tuple[str, int], tuple[str, int]] = {}

    def grant(self, task_id: str) -> None:
        """The driver carries a grant out."""
        if task_id in self.aborted:
            raise ClaimBroken("nothing is lost", f"{task_id} is granted after its abort was acknowledged")
        for key, ids in self.paused.items():
            if task_id in ids:
                raise ClaimBroken("a pause holds", f"{task_id} is granted while {key} is paused")

    def reconfigure(self, queues: Sequence[QueueSpec]) -> None:
        """From now on either configuration may be the one under which something was granted; a queue that is not there
        any more limits nothing. Nor does one that has come back, since what runs in it may have been granted without
        it; but others may borrow from it again."""
        for new in queues:
            old = self._queues.get(new.name)
            if old is None:
                self._queues[new.name] = msgspec.structs.replace(new, nominal=(UNLIMITED,) * 3)
            else:
                self._queues[new.name] = msgspec.structs.replace(
                    old,
                    nominal=_larger(old.nominal, new.nominal),
                    borrowing_limit=_larger(old.borrowing_limit, new.borrowing_limit),
                )
        for gone in set(self._queues) - {queue.name for queue in queues}:
            del self._queues[gone]

    def start(self, job: Job, machine: m.NodeAdded, boot: int) -> None:
        """A machine, as it is with all its capacity, starts a phase."""
        node = machine.node
        self._check_once(job)
        self._check_capacity(job, machine, boot)
        self._check_quota(job)
        self._check_order(job, node, boot)
        self.outcomes[job.task_id, job.attempt, job.index] = ""
        self.live[job.key] = Live(job, node, boot)
        self.latest[job.task_id] = job.attempt
        self.places[job.task_id, job.attempt] = (node, boot)

    def end(self, job: Job, outcome: str) -> None:
        """A phase is over, and what it held is free."""
        del self.live[job.key]
        self.outcomes[job.task_id, job.attempt, job.index] = outcome
        if outcome == SUCCEEDED and job.index + 1 == job.count:
            self.done.add(job.task_id)

    def finish(self, job: Job) -> None:
        """The task has ended well with phases left."""
        self.finished.add((job.task_id, job.attempt))
        self.done.add(job.task_id)

    def lose(self, node: str) -> None:
        """A machine dies with all that runs there."""
        for key, live in list(self.live.items()):
            if live.node == node:
                self.end(self.live[key].job, "died")

    def ran_whole(self, task_id: str, attempt: int, count: int) -> bool:
        """Whether this attempt ended well in all its phases, or said that it took no more."""
        if (task_id, attempt) in self.finished:
            return True
        return all(self.outcomes.get((task_id, attempt, index)) == SUCCEEDED for index in range(count))

    def _check_once(self, job: Job) -> None:
        claim = "nothing runs twice without a requeue"
        if (job.task_id, job.attempt, job.index) in self.outcomes:
            raise ClaimBroken(claim, f"{job.name} has run before")
        if job.attempt < self.latest.get(job.task_id, 0):
            raise ClaimBroken(claim, f"{job.name} starts after attempt {self.latest[job.task_id]}")
        twin = next((live for live in self.live.values() if live.job.task_id == job.task_id), None)
        if twin is not None:
            raise ClaimBroken(claim, f"{job.name} starts while {twin.job.name} runs on {twin.node}")

    def _check_capacity(self, job: Job, machine: m.NodeAdded, boot: int) -> None:
        """What runs on the machine takes no more than it ever had."""
        there = [live.job for live in self.live.values() if (live.node, live.boot) == (machine.node, boot)] + [job]
        held = {"CPU": (sum(j.cpu_milli for j in there), round(machine.cpus * 1000))}
        if machine.memory_bytes is not None:
            held["memory"] = (sum(j.memory_bytes for j in there), machine.memory_bytes)
        for device in job.devices:
            here = [j for j in there if device in j.devices]
            held[f"device {device}"] = (sum(j.gpu_milli for j in here), WHOLE_DEVICE)
            if machine.gpu_memory_bytes is not None:
                used = sum(j.gpu_memory_bytes for j in here)
                held[f"memory of device {device}"] = (used, machine.gpu_memory_bytes)
        for what, (used, full) in held.items():
            if used > full:
                names = ", ".join(j.name for j in there)
                raise ClaimBroken("nothing is granted twice", f"{what} of {machine.node}: {used} of {full} by {names}")

    def _check_quota(self, job: Job) -> None:
        """A queue uses no more than it has and may borrow; a cohort no more than its queues have."""
        spec = self._queues.get(job.queue)
        if spec is None:
            return
        cohort = [q for q in self._queues.values() if spec.cohort and q.cohort == spec.cohort] or [spec]
        own = self._used([spec.name], job)
        together = self._used([q.name for q in cohort], job)
        for kind, name in enumerate(KINDS):
            full = spec.nominal[kind] + (spec.borrowing_limit[kind] if len(cohort) > 1 else 0)
            if own[kind] > full:
                raise ClaimBroken("quotas are kept", f"{job.name}: {spec.name} uses {own[kind]} of {full} {name}")
            full = sum(q.nominal[kind] for q in cohort)
            if together[kind] > full:
                raise ClaimBroken("quotas are kept", f"{job.name}: its cohort uses {together[kind]} of {full} {name}")

    def _used(self, queues: Collection[str], job: Job) -> Amounts:
        jobs = [job, *(live.job for live in self.live.values() if live.job.queue in queues)]
        gpu_milli = sum(j.gpu_milli * len(j.devices) for j in jobs)
        return sum(j.cpu_milli for j in jobs), gpu_milli, sum(j.memory_bytes for j in jobs)

    def _check_order(self, job: Job, node: str, boot: int) -> None:
        over = self.done | self.skipped | (self.boxed - {live.job.task_id for live in self.live.values()})
        open_parents = [p for p in job.parents if p not in over]
        if open_parents and job.index == 0:
            raise ClaimBroken("order is kept", f"{job.name} starts before {', '.join(open_parents)} ended well")
        if job.index and self.outcomes.get((job.task_id, job.attempt, job.index - 1)) != SUCCEEDED:
            raise ClaimBroken("order is kept", f"{job.name} starts before the phase before it ended well")
        if job.index and self.places[job.task_id, job.attempt] != (node, boot):
            raise ClaimBroken("order is kept", f"{job.name} is not on {self.places[job.task_id, job.attempt][0]}")


def _larger(one: Amounts, other: Amounts) -> Amounts:
    cpus, gpus, memory = (max(pair) for pair in zip(one, other, strict=True))
    return cpus, gpus, memory
