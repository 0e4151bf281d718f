"""Tasks that start again, from their first phase, because the site says so: their gang does, or Ray had no room."""

from __future__ import annotations

from egs_core.engine import messages as m
from egs_core.site import Ended
from egs_ray.session.gangs import Group
from egs_ray.session.phases import Phases
from egs_ray.session.shared import Shared
from egs_ray.session.tasks import Job, Way


def waits_at_gate(job: Job) -> bool:
    """Whether nothing of the user's code has run in this try."""
    return not job.submission or (job.way is Way.SHELL and not (job.began or job.went_at))


class Restarts:
    """Used on the holder's thread only."""

    def __init__(self, shared: Shared, phases: Phases) -> None:
        self._shared, self._phases = shared, phases

    def wait_again(self, job: Job) -> None:
        """Take back what a task was granted whose process waits at its gate, and stays there, warm."""
        grant, job.grant = job.grant, None
        was_running = job.started
        self._phases.give_back(job)
        if grant is None or self._shared.broken:
            return
        if was_running:
            self._phases.record_start(job)
            self._shared.site.note(Ended(grant.phase, grant.attempt, "preempted"))
        job.next_phase = 0
        self._shared.site.report(m.PhaseEnded(grant.phase, grant.attempt, "preempted"))

    def refuse(self, group: Group) -> None:
        """Ray has no room for a gang's group: others get their turn, and it is tried again, less and less often."""
        job, grant = next(iter(group.members.values()))
        why = f"gang {group.name} waits: Ray has no room for its {len(group.members)} tasks at once"
        self._shared.warn_once(f"{why}: tasks that are not EGS's hold it")
        if grant.index:
            return  # what the members have done so far is worth more than the wait
        job.grant = None
        self._phases.give_back(job)
        self._shared.site.report(m.DecisionRejected(grant.id, why))
