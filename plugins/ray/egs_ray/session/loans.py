"""Turns that GPU tasks lend: while the code of one waits in Ray, nested tasks that work for it go on its turn.

    fit (1 GPU) ── ray.get(child) ─► "waits" ─► a nested task of up to 1 GPU goes, though no quota is left for it
                └─ goes on ────────► "goes"  ─► no further one; those that went, run

Else a quota of one GPU would keep parent and child apart for ever, where natively both run. Threads and `await` tell of
no wait, and what an actor's method submits works for nobody who is known: a nested task that has waited for PATIENCE_S
counts as waited for, by its parent if that has a turn, else by whoever waits.

A task that goes so and waits itself lends on what it was lent: all that goes on one turn shares its GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from egs_ray.session.grown import Grown
from egs_ray.session.tasks import Job

PATIENCE_S = 20.0


class Loans:
    """The loans of a program. Used on the holder's thread.

    let_go_at: when a task was let go, None: it waits. let_go: opens a ticket. now: the site's clock.
    """

    def __init__(
        self,
        books: Grown,
        let_go_at: Callable[[Job], float | None],
        let_go: Callable[[str], None],
        now: Callable[[], float],
    ) -> None:
        self._books, self._let_go_at, self._let_go, self._now = books, let_go_at, let_go, now
        self._lenders: dict[str, Job] = {}  # by the task's id: its code waits
        self._waiting: dict[int, tuple[Job, str, float]] = {}  # index -> a nested task, its parent, since when
        self._borrowed: dict[int, tuple[Job, Job]] = {}  # index -> a task that went so, and the one whose turn it is

    def arrived(self, job: Job, parent: str) -> None:
        """A nested task, which perhaps waits for its turn."""
        self._waiting[job.index] = job, parent, self._now()

    def waits(self, task: str) -> None:
        """The code of a task waits in Ray."""
        if (job := self._job(task)) is not None:
            self._lenders[task] = job
            self.look()

    def goes(self, task: str) -> None:
        """It goes on."""
        self._lenders.pop(task, None)

    def look(self) -> None:
        """Let go what can go now on turns that are lent."""
        for index in [index for index, (job, _, _) in self._waiting.items() if self._has_gone(job)]:
            del self._waiting[index]
        if not self._waiting:
            return
        self._borrowed = {index: both for index, both in self._borrowed.items() if not both[0].is_over}
        lenders = self._lending()
        for job, parent in self._ready(lenders):
            if job.index not in self._waiting:
                continue
            owners = [self._owner(lender) for task, lender in lenders.items() if parent in (task, "")]
            owner = next((one for one in owners if self._has_room(one, job, lenders)), None)
            if owner is not None:
                for one in self._with_its_gang(job):  # a part of a gang alone would keep what it has for ever
                    self._borrowed[one.index] = one, owner
                    del self._waiting[one.index]
                    self._let_go(one.ticket)

    def _with_its_gang(self, job: Job) -> list[Job]:
        if not job.gang:
            return [job]
        return [one for one, _, _ in self._waiting.values() if one.gang == job.gang]

    def _owner(self, lender: Job) -> Job:
        """Whose turn it is that a task would lend."""
        return self._borrowed[lender.index][1] if lender.index in self._borrowed else lender

    def _has_room(self, owner: Job, job: Job, lenders: dict[str, Job]) -> bool:
        """Whether a task can go on this turn: besides what computes on it, and in any case where nothing does."""
        waiting = {lender.index for lender in lenders.values()}
        used = sum(one.gpus for one, whose in self._borrowed.values() if whose is owner and one.index not in waiting)
        return not used or (owner.index in waiting and used + job.gpus <= owner.gpus)

    def _has_gone(self, job: Job) -> bool:
        return job.is_over or self._let_go_at(job) is not None

    def _lending(self) -> dict[str, Job]:
        late = self._now() - PATIENCE_S
        overdue = {parent for _, parent, since_s in self._waiting.values() if since_s < late}
        found = {task: job for task in overdue if (job := self._job(task)) is not None}
        return {task: job for task, job in {**self._lenders, **found}.items() if not job.is_over}

    def _job(self, task: str) -> Job | None:
        """The task, if it has a turn."""
        index = self._books.numbers.get(task)
        job = None if index is None else self._books.jobs[index]
        return job if job is not None and job.gpus and self._has_turn(job) else None

    def _has_turn(self, job: Job) -> bool:
        """Whether it holds GPUs, or is about to; of a task with phases, in one on a GPU."""
        in_gpu_phase = job.lease is not None and job.grant is not None and job.grant.is_gpu
        return in_gpu_phase or self._let_go_at(job) is not None

    def _ready(self, lenders: dict[str, Job]) -> Iterator[tuple[Job, str]]:
        """Those that wait for a turn alone and that a lender may wait for, the most urgent first; with its id, or ""
        where it may be any."""
        graph, late = self._books.converted.graph, self._now() - PATIENCE_S
        found = [
            (job, parent if parent in lenders else "")
            for job, parent, since_s in self._waiting.values()
            if (parent in lenders or since_s < late) and not job.waits_for_others
        ]
        yield from sorted(found, key=lambda one: (-graph.options_of(one[0].index).priority, one[0].index))
