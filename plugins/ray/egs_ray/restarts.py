"""Tasks that start again, from their first phase, because the engine says so: their gang does, or Ray had no room."""

from __future__ import annotations

import ray

from egs_core.engine import messages as m
from egs_ray.endings import Endings
from egs_ray.gangs import Group
from egs_ray.phases import Phases
from egs_ray.shared import Shared
from egs_ray.submissions import Submissions
from egs_ray.tasks import Job, Way, first_of


class Restarts:
    """Used on the driver's thread only."""

    def __init__(self, shared: Shared, phases: Phases, submissions: Submissions, endings: Endings) -> None:
        self._shared, self._phases, self._submissions, self._endings = shared, phases, submissions, endings

    def recall(self, job: Job) -> None:
        """End what runs of the task. A process that waits at its gate stays there, warm; one that has reached the
        user's code is ended, and what it held is free when it is gone."""
        grant, job.grant = job.grant, None
        was_running = job.started
        if job.submission and not (job.way is Way.SHELL and not (job.began or job.went_at)):
            ref = first_of(job.ref)
            self._endings.detach(job)
            ray.cancel(ref, force=True)
            self._shared.when_ready(ref, lambda: self._is_over(job, grant, was_running))
        else:
            self._is_over(job, grant, was_running)

    def _is_over(self, job: Job, grant: m.Grant | None, was_running: bool) -> None:
        if job.grant is None:
            self._phases.give_back(job)
        if grant is None or self._shared.broken:
            return
        if was_running:
            self._phases.record_start(job)
            self._shared.records.ended(grant.phase, grant.attempt, "preempted", self._shared.driver.now())
        self._shared.handle(m.PhaseEnded(grant.phase, grant.attempt, "preempted"))
        self._endings.check_over(job.run)

    def refuse(self, group: Group) -> None:
        """Ray has no room for a gang's group: others get their turn, and it is tried again, less and less often."""
        job, grant = next(iter(group.members.values()))
        why = f"gang {group.name} waits: Ray has no room for its {len(group.members)} tasks at once"
        self._shared.warn_once(f"{why}: tasks that are not EGS's hold it")
        if not self._shared.engine.state.is_first_phase(grant.phase):
            return  # what the members have done so far is worth more than the wait
        job.grant = None
        self._phases.give_back(job)
        self._shared.handle(m.DecisionRejected(grant.id, why))
