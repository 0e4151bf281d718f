"""Turns that GPU tasks lend: while the code of one waits in Ray, nested tasks that work for it go on its turn.

    fit (1 GPU) ── ray.get(child) ─► "waits" ─► a nested task of up to 1 GPU goes, though no quota is left for it
                └─ goes on ────────► "goes"  ─► no further one; those that went, run

Else a quota of one GPU would keep parent and child apart for ever, where natively both run. Threads and `await` tell of
no wait, and what an actor's method submits works for nobody who is known: a nested task that has waited for PATIENCE_S
counts as waited for, by its parent if that has a turn, else by whoever waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

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
        self._borrowers: list[Job] = []

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
        self._borrowers = [job for job in self._borrowers if not job.is_over]
        lenders = self._lending()
        lent, used = _gpus(lenders.values()), _gpus(self._borrowers)
        for job in self._ready(lenders):
            if not used or used + job.gpus <= lent:
                used += job.gpus
                self._borrowers.append(job)
                del self._waiting[job.index]
                self._let_go(job.ticket)

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

    def _ready(self, lenders: dict[str, Job]) -> list[Job]:
        """Those that wait for a turn alone and that a lender may wait for, the most urgent first."""
        graph, late = self._books.converted.graph, self._now() - PATIENCE_S
        ready = [
            job
            for job, parent, since_s in self._waiting.values()
            if (parent in lenders or (lenders and since_s < late)) and not job.waits_for_others
        ]
        return sorted(ready, key=lambda job: (-graph.options_of(job.index).priority, job.index))


def _gpus(jobs: Iterable[Job]) -> float:
    return sum(job.gpus for job in jobs)
