"""How a running task is stopped: at once or with time to save a checkpoint, for good or to go on later.

    Stop | operator's preempt ─► save? ─► saved, or grace over ─► cancel ─► its process is gone ─► ended | requeued

The site waits for the end of the process before it gives away what the task held. A task that is to start again is
cancelled for good as far as Ray knows (so Ray tries nothing again beside us), and is submitted anew when the site
grants it, with a reference to what it has saved; shells that waited with its old reference are let go.

A task of a script is not EGS's to submit. Where its code has said `egs.checkpoint`, and Ray may start it again, its
process is told to end: Ray takes that for a death, and what it starts waits for its turn as after any other.
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
from egs_ray.session.tasks import Job, Way, retries_of

SAVE_S = 10.0
"""What a script's task may take for its checkpoint where its hints do not say how long."""


class Stops:
    """A session's stops."""

    def __init__(self, shared: Shared, endings: Endings) -> None:
        self._shared, self._endings = shared, endings
        self._saving: dict[Peer, str] = {}  # who has been asked for a checkpoint, and under which key it is kept

    def stop(self, job: Job, stop: Stop) -> None:
        """The site wants this job's phase to end, and waits for that."""
        if job.run.grows and stop.requeue:
            if may_start_again(job):
                self._start_anew(job, stop.reason)
            return  # else it ends when it ends: the script has its reference, and nothing could go on in its place
        if stop.at_limit and not stop.requeue:
            job.over_limit = stop.reason
        grace_s = _grace_s(job) if job.operator_grace_s is None else job.operator_grace_s
        self._stop(job, stop.reason, stop.requeue, grace_s if job.grant is not None else 0.0)
        if stop.requeue and stop.is_over and job.grant is None:
            job.next_phase = 0
            self._endings.requeued(job)  # it was between phases: to the site it waits for its first one again

    def preempt(self, job: Job, reason: str) -> None:
        """An operator wants the task to stop now and to start again later. Of a script only one that
        `may_start_again`."""
        if job.run.grows:
            self._start_anew(job, reason)
        elif not (job.requeues or job.aborted):
            self._stop(job, reason, True, _grace_s(job))

    def said(self, job: Job | None, peer: Peer, message: Message) -> None:
        """A worker tells that its task can save a checkpoint (`saves`), or that it has (`saved`)."""
        if job is None:
            return
        if message["m"] == "saves":
            job.saver, job.leaves = peer, bool(message.get("leaves"))
        elif (key := self._saving.get(peer)) is not None:
            self._saved(job, key, message["error"])
            self._end(job, job.submission, peer)

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

    def _start_anew(self, job: Job, reason: str) -> None:
        """A script's task that `may_start_again`: its process saves and ends."""
        job.stopped = reason
        if job.saver is not None:
            self._ask_to_save(job, job.saver, _grace_s(job) or SAVE_S)

    def _ask_to_save(self, job: Job, saver: Peer, grace_s: float) -> None:
        submission = job.submission
        key = self._saving[saver] = f"checkpoint-{submission}-{job.life}"  # of this try: a promise is kept once
        board = base64.b64encode(self._shared.promises.board()).decode()
        leaves = {"leaves_in": grace_s} if _is_to_leave(job) else {}
        tell(saver, {"m": "save", "key": key, "board": board, **leaves})
        timer = threading.Timer(grace_s, lambda: self._shared.site.do(lambda: self._end(job, submission, saver)))
        timer.daemon = True
        timer.start()

    def _saved(self, job: Job, key: str, error: str) -> None:
        if error:
            name = job.run.converted.graph.names[job.index]
            self._shared.warn_once(f"no checkpoint of {name}, its last one counts: {error}")
            return
        job.checkpoint = self._shared.promises.new(key)
        if not self._shared.broken:
            self._shared.site.report(m.Checkpointed(job.number, job.attempt))

    def _end(self, job: Job, submission: int, saver: Peer) -> None:
        """The checkpoint is there, or its time is over; unless the task has ended meanwhile."""
        was_asked = self._saving.pop(saver, None) is not None
        is_same = job.saver is saver or not _is_to_leave(job)  # else it has died by itself, and this is the next try
        if was_asked and job.submission == submission and not job.succeeded and is_same:
            self._cancel(job)

    def _cancel(self, job: Job) -> None:
        if not _is_to_leave(job):
            actors.end(job.ref, job.stopped)
        elif job.saver is not None:
            tell(job.saver, {"m": "leave"})


def may_start_again(job: Job) -> bool:
    """Whether a task of a script can be stopped to start again: its process waits for a turn when Ray has started it
    again, ends where it is told to, and goes on from what it has kept."""
    if job.way is not Way.SHELL or job.apart or job.saver is None or not job.leaves or job.stopped or job.is_over:
        return False
    retries = retries_of(job.run.converted.nodes[job.index].options)
    return retries < 0 or job.lost_tries < retries


def _is_to_leave(job: Job) -> bool:
    return job.run.grows and not job.aborted


def _grace_s(job: Job) -> float:
    """What the task's own hint says."""
    payload = job.run.converted.nodes[job.index]
    hints = hints_of(payload.function) if payload is not None else None
    return hints.grace_s if hints is not None else 0.0
