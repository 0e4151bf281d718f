"""How tries, tasks and runs end: well, with an error, without EGS, or to be tried again by Ray."""

from __future__ import annotations

from typing import Any

import ray

from egs_core.engine import messages as m
from egs_core.out_of_memory import GPU, lack_of
from egs_core.site import Ended, Grant
from egs_ray.session.elsewhere import MOST_MOVES, flavor_of, note_lack
from egs_ray.session.phases import Phases
from egs_ray.session.shared import HEAR_S, Shared, first_line
from egs_ray.session.submissions import Submissions
from egs_ray.session.tasks import Job, Way, first_of
from egs_ray.worker.shell import ArgumentsLostError, reached_users_code


class Endings:
    """The ends of a session's jobs."""

    def __init__(self, shared: Shared, phases: Phases, submissions: Submissions) -> None:
        self._shared, self._phases, self._submissions = shared, phases, submissions

    def on_result(self, submission: int) -> None:
        """The task's reference has a value or an error, for good."""
        job = self._shared.submitted.pop(submission, None)
        self._submissions.loaded(submission)
        if job is None or job.succeeded:
            return
        if self._shared.broken:  # its last messages may come after its result, and then find nobody
            self._phases.give_back(job)
            return
        error = _error_of(job.ref)
        if error is not None and not job.requeues and self._shared.options.retry_out_of_memory:
            self._tried_elsewhere(job, lack_of(error))
        if error is not None and job.requeues:
            self.requeued(job)
        elif error is None:
            if job.way is Way.SHELL and not job.pid:
                self._stay_native(job, "its worker cannot reach this process")
            self._await_last_words(job, submission)
            self.succeeded(job)
        elif job.way is not Way.NATIVE and not (job.aborted or job.ticket) and _is_egs_fault(job, error):
            self._without_egs(job, error)
        else:
            if isinstance(error, ray.exceptions.RayTaskError):  # raised by its code: its process lives
                self._await_last_words(job, submission)
            self._failed(job, error)

    def _await_last_words(self, job: Job, submission: int) -> None:
        """Ray was quicker than the line: what the task has told of its work is on its way, unless its process cannot
        reach this one."""
        unheard, now = self._shared.unheard, self._shared.site.now()
        while unheard and now - next(iter(unheard.values()))[1] > HEAR_S:
            del unheard[next(iter(unheard))]
        if not job.ended and (job.way is Way.OBSERVED or (job.way is Way.SHELL and job.peer is not None)):
            unheard[submission] = job, now

    def succeeded(self, job: Job) -> None:
        if job.succeeded:
            return
        job.succeeded = True
        grant = job.grant
        if self._shared.broken or (grant is not None and grant.is_last):
            self._phases.over(job)
        else:  # phases are left that the code did not take: the site must not grant them
            if grant is not None:
                self._phases.noted(job, grant)
            self._shared.site.report(m.TaskFinished(job.number, job.attempt))
        job.ref = job.checkpoint = None  # what needs the value has its own reference
        job.run.release_parents(job.index)
        self._submissions.hasten_after(job)

    def lost_attempt(self, job: Job, outcome: str) -> None:
        """A try of the task is over without its success, and Ray may try again: from its first phase."""
        if job.aborted and outcome == "preempted":  # its process died of that, and was heard of before its error
            outcome = "aborted"
        if outcome == "aborted":  # the run may be over before Ray tells of the task's error
            self._note_stopped(job)
        was_there = bool(job.life)
        self._forget_try(job)
        if self._shared.broken:
            return
        grant, job.grant = job.grant, None
        next_phase, job.next_phase = job.next_phase, 0
        if grant is not None:
            self._record_lost(job, grant, outcome)
            self._shared.site.report(m.PhaseEnded(grant.phase, grant.attempt, outcome))
        elif was_there and 0 < next_phase < job.n_phases:
            self._shared.site.report(m.PhaseEnded(job.first_phase + next_phase, job.attempt, outcome))
        else:
            self._shared.site.report(m.PreloadFailed(job.number))
        if job.run.grows and not job.aborted:
            job.stopped = ""  # it waits for its next try

    def node_lost(self, node: str) -> None:
        """Call before the site hears of it, which then takes back by itself all that it has granted there. Ray starts
        the processes that were there again, elsewhere; those that are elsewhere already stay, and wait."""
        for job in [job for books in self._shared.runs.values() if not books.over.is_set() for job in books.jobs]:
            grant = job.grant
            if job.node == node and job.peer is not None and not job.succeeded:
                self._forget_try(job)
            if grant is not None and grant.node == node:
                self._phases.give_back(job)
                self._record_lost(job, grant, "preempted")
                job.grant = None
            if job.home == node and job.grant is None:
                job.next_phase = 0  # the task starts again

    def _forget_try(self, job: Job) -> None:
        """The process is gone, and with it all that was known of it."""
        job.lost_tries += job.began and not job.requeues
        job.peer, job.is_warm, job.went_at, job.life, job.began, job.ended = None, False, 0.0, "", False, False
        job.is_open, job.node = False, ""
        self._submissions.loaded(job.submission)
        self._phases.give_back(job)

    def _record_lost(self, job: Job, grant: Grant, outcome: str) -> None:
        self._phases.started(job, grant)
        self._phases.record_start(job)
        self._shared.site.note(Ended(grant.phase, grant.attempt, outcome, job.stopped))

    def known_by_ray(self, job: Job, grant: Grant) -> None:
        """The site grants a task again that it has lost with a node, but Ray has not: it has ended, or goes on."""
        self._phases.started(job, grant)
        if job.succeeded:
            self._phases.record_start(job)
            job.grant = None
            self._shared.site.note(Ended(grant.phase, grant.attempt))
            self._shared.site.report(m.TaskFinished(job.number, grant.attempt))

    def requeued(self, job: Job) -> None:
        """The try that was stopped to start again is over: the task is as if it had not been submitted yet. Whatever
        Ray still tells of that submission finds nobody."""
        self._shared.submitted.pop(job.submission, None)
        self._shared.left.add(job.submission)
        self._submissions.forget(job)
        self._drop_children(job)
        job.run.results.pop(job.index, None)
        self.lost_attempt(job, "preempted")

    def _tried_elsewhere(self, job: Job, lack: str) -> None:
        """Where the user asked for it: a task that ended for lack of a GPU's memory starts again on another flavor that
        it may have, each once. The site is told which these are."""
        had = flavor_of(self._shared, job.grant.node) if job.grant is not None else ""
        is_able = lack.startswith(GPU) and job.way is Way.SHELL and not job.gang
        if not (is_able and had) or had in job.lacked or job.run.grows or job.aborted:
            return
        wishes = job.run.converted.graph.options_of(job.index).flavors
        if left := note_lack(self._shared, job, lack, had, wishes):
            self._shared.site.report(m.FlavorsAllowed(job.number, tuple(left)))
            job.requeues = True

    def not_submitted(self, job: Job, error: BaseException) -> None:
        """Ray refuses the task as it is, which it would have told whoever called `.remote()`: the run's own error."""
        self._shared.submitted.pop(job.submission, None)
        self._submissions.loaded(job.submission)
        job.submission, job.failed, job.run.error = 0, True, job.run.error or error
        self._phases.give_back(job)
        grant, job.grant = job.grant, None
        if grant is not None:
            self._shared.site.note(Ended(grant.phase, grant.attempt, "failed"))
            self._shared.site.report(m.PhaseEnded(grant.phase, grant.attempt, "failed"))
        else:
            self._shared.site.control(m.AbortRequested("task", str(job.number), "ray", str(error)[:200]))

    def _failed(self, job: Job, error: BaseException) -> None:
        job.failed = True
        self._note_stopped(job)
        if job.run.error is None and job.run.failure is None and not job.run.grows:
            job.run.failure = job.ref
        self._phases.give_back(job)
        grant, job.grant = job.grant, None
        aborted = job.aborted or isinstance(error, ray.exceptions.TaskCancelledError)
        if grant is not None:
            outcome = "aborted" if aborted else "failed"
            self._phases.started(job, grant)
            self._phases.record_start(job)
            why = job.stopped or ("" if aborted else lack_of(error))
            self._shared.site.note(Ended(grant.phase, grant.attempt, outcome, why))
            self._shared.site.report(self._end_of(job, grant, outcome))
        elif job.run.grows:
            self._shared.site.report(m.BranchSkipped(job.number))
        else:
            self._shared.site.control(m.AbortRequested("task", str(job.number), "ray", str(error)[:200]))

    def _end_of(self, job: Job, grant: Grant, outcome: str) -> m.Event:
        """What the site is told of a failure: Ray runs what a script has submitted whether or not what it waits for has
        failed, so there it is an end like any other."""
        if not job.run.grows or outcome == "aborted":
            return m.PhaseEnded(grant.phase, grant.attempt, outcome)
        return m.PhaseEnded(grant.phase, grant.attempt) if grant.is_last else m.TaskFinished(job.number, grant.attempt)

    def _note_stopped(self, job: Job) -> None:
        """What was stopped for good is the run's own error, unless another task has failed before it."""
        why = job.over_limit or job.stopped
        if why and job.run.failure is None and job.run.error is None and not job.run.grows:
            task = job.run.converted.graph.ids[job.index]
            job.run.error = ray.exceptions.TaskCancelledError(error_message=f"{task} {why}")

    def _without_egs(self, job: Job, error: BaseException) -> None:
        """The wrapped task never got as far as the user's code: run it as the user wrote it."""
        if not job.pid and isinstance(error, ray.exceptions.RayTaskError):
            self._stay_native(job, first_line(error))
        else:
            self._shared.warn_once(f"{job.run.converted.graph.names[job.index]} runs without EGS: {first_line(error)}")
        self._phases.give_back(job)
        self._drop_children(job)
        job.way, job.submission, job.ref, job.promised = Way.NATIVE, 0, None, False
        job.peer, job.is_warm, job.life = None, False, ""  # the result may be there before its connection's end
        if job.grant is not None:
            self._submissions.submit_native(job)
        else:
            job.run.results.pop(job.index, None)
            self._shared.site.report(m.PreloadFailed(job.number))

    def submit_again(self, job: Job, node: str) -> None:
        """In another process, there; what waits for its value waits for the new one's."""
        self._submissions.submit_again(job, node)
        self._drop_children(job)

    def move(self, job: Job) -> bool:
        """Start the task's process where it was granted its resources; False: Ray has put it elsewhere too often."""
        job.moves += 1
        if job.grant is None or job.moves > MOST_MOVES:
            return False
        self.submit_again(job, job.grant.node)
        return True

    def _stay_native(self, job: Job, reason: str) -> None:
        """Workers of this runtime environment cannot work with EGS: tasks to come do not try. Those that have tried
        already fail alike, and are not worth another line."""
        if job.env in self._shared.native_envs:
            return
        self._shared.native_envs.add(job.env)
        self._shared.warn_once(
            f"{job.run.converted.graph.names[job.index]} and tasks like it run without EGS: {reason}"
        )

    def _drop_children(self, job: Job) -> None:
        """Shells that wait with a reference to a result that will not come."""
        for other in job.children:
            if other.submission and not other.promised and other.parked_since is not None:
                self._submissions.leave_shell(other)
                self._shared.site.report(m.PreloadFailed(other.number))


def _error_of(ref: Any) -> BaseException | None:
    """The error of a finished task, if it has one."""
    try:
        ray.get(first_of(ref))
    except Exception as error:
        return error
    return None


def _is_egs_fault(job: Job, error: BaseException) -> bool:
    """Whether the task failed before the user's code was reached, and not by the user's doing."""
    if job.ran or isinstance(error, ray.exceptions.TaskCancelledError):
        return False
    if isinstance(error, ray.exceptions.RayTaskError):  # it may have come before the worker's first message
        is_before = not job.pid and not reached_users_code(error)
        return is_before or isinstance(error.cause, ArgumentsLostError)
    return True
