"""What operators can see of the cluster's gate and do to it: the actor's part, on the thread of its driver.

    described   each GPU task from its submission to its end, whoever has submitted it
    carry_out   abort, pause, resume, of a workload (a Ray job) or of tasks of it

A pause is the engine's, so it is in the journal. An abort is carried out by the clients: Ray lets only its owner cancel
a task for good. The gate of an aborted workload stays shut, and what comes of it from then on is cancelled too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from egs_core.engine import messages as m
from egs_core.engine.state.lifecycle import READY
from egs_ray.gate import messages as g
from egs_ray.gate.books import Books, Job


class Client(Protocol):
    """Who has submitted a task. cancelled: ids of tasks that it hears of in its next answer."""

    @property
    def is_driver(self) -> bool: ...
    @property
    def cancelled(self) -> deque[str]: ...


class Steering:
    """See the module. note: called when something was done that a restart must know."""

    def __init__(self, books: Books, clients: Mapping[str, Client], note: Callable[[], None]) -> None:
        self._books, self._clients, self._note = books, clients, note
        self._aborted: set[str] = set()  # workloads

    def carry_out(self, asked: g.Asked) -> None:
        """An operator's wish; told twice, it is done once."""
        of_it = [job for job in self._books.jobs.values() if job.key and job.workload == asked.workload]
        jobs = [job for job in of_it if job.task_id in asked.task_ids] if asked.task_ids else of_it
        if asked.verb == "abort":
            self._cancel(jobs)
            if asked.task_ids:
                return
            self._aborted.add(asked.workload)
        event = m.ResumeRequested if asked.verb == "resume" else m.PauseRequested
        targets = [("task", str(job.number)) for job in jobs] if asked.task_ids else [("workload", asked.workload)]
        for scope, target in targets:
            self._books.driver.handle(event(scope, target, asked.actor, asked.reason))
        self._note()

    def admitted(self, workload: str, jobs: list[Job]) -> None:
        """These are new."""
        if workload in self._aborted:
            self._cancel(jobs)

    def attached(self, workload: str, is_aborted: bool) -> None:
        """A client is there, perhaps after a restart: then it knows what this gate does not."""
        if is_aborted and workload not in self._aborted:
            self.carry_out(g.Asked("abort", workload))

    def described(self) -> list[g.GateTask]:
        """In the order of their submission."""
        return [self._described(job) for job in self._books.jobs.values() if job.key]

    def _cancel(self, jobs: list[Job]) -> None:
        for job in jobs:
            if job.key and (client := self._clients.get(job.client)) is not None:
                client.cancelled.append(job.task_id)

    def _described(self, job: Job) -> g.GateTask:
        state, client = self._books.driver.engine.state, self._clients.get(job.client)
        phase = state.cursor[job.number]
        waits = g.PAUSED if state.pause_of(job.number) else g.READY if state.status[phase] == READY else g.EARLY
        return g.GateTask(
            workload=job.workload,
            task_id=job.task_id,
            name=job.needs.name if job.needs is not None else "",
            gpus=job.needs.gpus if job.needs is not None else 0.0,
            state=g.PASSED if job.is_open else waits,
            since=round(self._books.wall_s + (job.opened_s or state.ready_at[phase]), 3),
            is_nested=client is not None and not client.is_driver,
        )
