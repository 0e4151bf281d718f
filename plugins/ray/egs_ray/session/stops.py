"""How a running task is stopped: at once or with time to save a checkpoint, for good or to go on later.

    Stop | operator's preempt ─► save? ─► saved, or grace over ─► cancel ─► its process is gone ─► ended | requeued

The site waits for the end of the process before it gives away what the task held. A task that is to start again is
cancelled for good as far as Ray knows (so Ray tries nothing again beside us), and is submitted anew when the site
grants it, with a reference to what it has saved; shells that waited with its old reference are let go.
"""

from __future__ import annotations

import base64
import threading

from egs_core.engine import messages as m
from egs_core.hints import hints_of
from egs_core.site import Stop
from egs_ray import actors
from egs_ray.link import Message, Peer, tell
from egs_ray.session.endings import Endings
from egs_ray.session.shared import Shared
from egs_ray.session.tasks import Job


class Stops:
    """A session's stops."""

    def __init__(self, shared: Shared, endings: Endings) -> None:
        self._shared, self._endings = shared, endings
        self._saving: set[int] = set()  # submissions that have been asked for a checkpoint

    def stop(self, job: Job, stop: Stop) -> None:
        """The site wants this job's phase to end, and waits for that."""
        if job.run.grows and stop.requeue:
            return  # the script has its reference, so nothing could go on in its place: it ends when it ends
        if stop.at_limit and not stop.requeue:
            job.over_limit = stop.reason
        grace_s = _grace_s(job) if job.operator_grace_s is None else job.operator_grace_s
        self._stop(job, stop.reason, stop.requeue, grace_s if job.grant is not None else 0.0)
        if stop.requeue and stop.is_over and job.grant is None:
            job.next_phase = 0
            self._endings.requeued(job)  # it was between phases: to the site it waits for its first one again

    def preempt(self, job: Job, reason: str) -> None:
        """An operator wants the task to stop now and to start again later."""
        if not (job.requeues or job.aborted):
            self._stop(job, reason, True, _grace_s(job))

    def said(self, job: Job | None, peer: Peer, message: Message) -> None:
        """A worker tells that its task can save a checkpoint (`saves`), or that it has (`saved`)."""
        if job is None:
            return
        if message["m"] == "saves":
            job.saver = peer
        elif job.submission in self._saving:
            self._saved(job, message["error"])
            self._end(job, job.submission)

    def _stop(self, job: Job, reason: str, requeue: bool, grace_s: float) -> None:
        job.stopped, job.requeues, job.aborted = reason, requeue, not requeue
        if job.run.grows:
            self._shared.tickets.stopping(job, reason)
        if job.ref is None:
            if job.grant is not None:  # granted, but not yet submitted
                self._endings.requeued(job) if requeue else self._endings.lost_attempt(job, "aborted")
        elif grace_s > 0 and job.saver is not None:
            self._ask_to_save(job, job.saver, grace_s)
        else:
            self._cancel(job)

    def _ask_to_save(self, job: Job, saver: Peer, grace_s: float) -> None:
        submission = job.submission
        self._saving.add(submission)
        board = base64.b64encode(self._shared.promises.board()).decode()
        tell(saver, {"m": "save", "key": _key(submission), "board": board})
        timer = threading.Timer(grace_s, lambda: self._shared.site.do(lambda: self._end(job, submission)))
        timer.daemon = True
        timer.start()

    def _saved(self, job: Job, error: str) -> None:
        if error:
            name = job.run.converted.graph.names[job.index]
            self._shared.warn_once(f"no checkpoint of {name}, its last one counts: {error}")
            return
        job.checkpoint = self._shared.promises.new(_key(job.submission))
        if not self._shared.broken:
            self._shared.site.report(m.Checkpointed(job.number, job.attempt))

    def _end(self, job: Job, submission: int) -> None:
        """The checkpoint is there, or its time is over; unless the task has ended meanwhile."""
        if submission in self._saving:
            self._saving.discard(submission)
            if job.submission == submission and not job.succeeded:
                self._cancel(job)

    def _cancel(self, job: Job) -> None:
        actors.end(job.ref, job.stopped)


def _grace_s(job: Job) -> float:
    """What the task's own hint says."""
    payload = job.run.converted.nodes[job.index]
    hints = hints_of(payload.function) if payload is not None else None
    return hints.grace_s if hints is not None else 0.0


def _key(submission: int) -> str:
    return f"checkpoint-{submission}"
