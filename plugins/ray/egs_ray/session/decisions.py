"""Carries the site's decisions out: grant, preload, drop, stop."""

from __future__ import annotations

import pickle

from egs_core import site as s
from egs_core.engine import messages as m
from egs_ray.session.endings import Endings
from egs_ray.session.gangs import Group
from egs_ray.session.phases import Phases
from egs_ray.session.restarts import Restarts, waits_at_gate
from egs_ray.session.shared import Shared
from egs_ray.session.stops import Stops
from egs_ray.session.submissions import Submissions
from egs_ray.session.tasks import WITH_TICKET, Job, Way


class Decisions:
    """What a session does with each of its site's decisions."""

    def __init__(
        self, shared: Shared, phases: Phases, submissions: Submissions, endings: Endings, stops: Stops
    ) -> None:
        self._shared, self._phases, self._submissions, self._endings = shared, phases, submissions, endings
        self._restarts = Restarts(shared, phases)
        self._stops = stops

    def perform(self, decision: s.Grant | s.Stop | m.Preload | m.DropPreload, now: float) -> None:
        job = self._shared.jobs[decision.task]
        try:
            self._carry_out(decision, job, now)
        except (TypeError, ValueError, AttributeError, pickle.PicklingError) as error:
            if job.submission and job.ref is None:
                self._endings.not_submitted(job, error)
            else:
                raise

    def _carry_out(self, decision: s.Grant | s.Stop | m.Preload | m.DropPreload, job: Job, now: float) -> None:
        if isinstance(decision, s.Grant):
            self._grant(job, decision)
        elif isinstance(decision, m.Preload):
            self._preload(job, decision, now)
        elif isinstance(decision, m.DropPreload):
            self._drop(job)
        else:
            self._stop(job, decision)

    def refuse(self, group: Group) -> None:
        """Ray has had no room for a gang's group for long."""
        self._restarts.refuse(group)

    def _stop(self, job: Job, stop: s.Stop) -> None:
        if stop.requeue and waits_at_gate(job):
            self._restarts.wait_again(job)
        else:
            self._stops.stop(job, stop)

    def _preload(self, job: Job, decision: m.Preload, now: float) -> None:
        if job.way is not Way.SHELL or job.env in self._shared.native_envs:
            self._shared.site.report(m.PreloadFailed(job.number, decision.id))
            return
        self._shared.site.note(s.PreloadBegun(decision))
        job.parked_since, job.gave_up_warming = now, False
        self._submissions.submit_shell(job, decision.node)
        if job.is_warm:  # Ray has started its process again
            self._shared.site.report(m.PreloadReady(job.number))

    def _grant(self, job: Job, grant: s.Grant) -> None:
        if job.way in (*WITH_TICKET, Way.OUTSIDE):
            self._shared.tickets.granted(job, grant)
            return
        if job.requeues and grant.attempt > job.attempt:  # the try that was stopped to start again is still ending
            self._endings.requeued(job)
        job.grant, job.started, job.lost_leases, job.stopped = grant, False, 0, ""
        job.attempt, job.next_phase, job.home = grant.attempt, grant.index, grant.node
        if grant.gang:
            self._phases.gangs.granted(job, grant)
        self._shared.site.note(s.Granted(grant))
        if job.way is not Way.NATIVE and not job.submission and job.env in self._shared.native_envs:
            job.way = Way.NATIVE
        if job.succeeded or (job.submission and job.way is not Way.SHELL):
            self._endings.known_by_ray(job, grant)
        elif job.way is Way.NATIVE:
            self._submissions.submit_native(job)
        elif job.way is Way.OBSERVED:
            self._submissions.submit_observed(job)
        else:
            if job.parked_since is not None:  # also where its process is still starting: the task runs in it
                self._shared.site.note(s.PreloadOver(job.number, "used"))
            job.parked_since = None
            self._submissions.submit_shell(job, grant.node)
            self._submissions.keep_promise(job)
            job.waits_since = 0.0
            if self._submissions.is_misplaced(job) and not job.is_open:
                self._endings.move(job)
            if self._phases.gets_warm_first(job, grant):
                job.waits_since = self._shared.site.now()
            elif not self._phases.gets_place_first(job):
                self._phases.take_lease(job, grant)
        self._submissions.keep_promises_after(job)

    def _drop(self, job: Job) -> None:
        """The process kept for this task is wanted elsewhere; the task is submitted again when its turn comes."""
        self._shared.site.note(s.PreloadOver(job.number, "unused"))
        if job.ticket:  # the script has its reference, so nothing can take its place: it stays where it is
            job.parked_since = None
        else:
            self._submissions.leave_shell(job)
