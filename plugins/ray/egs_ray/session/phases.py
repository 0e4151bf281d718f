"""What a phase holds in Ray's books, and its start and end as the site is told of them."""

from __future__ import annotations

import base64
from collections.abc import Callable

import msgspec

from egs_core.engine import messages as m
from egs_core.graph.columns import Shape
from egs_core.runlog import records as r
from egs_core.site import Ended, Grant, Started
from egs_ray.link import Message
from egs_ray.session.gangs import Gangs
from egs_ray.session.lending import Lending
from egs_ray.session.shared import Shared
from egs_ray.session.tasks import Job, Way

MOST_LOST = 3  # holders of one phase that may die before it is left to Ray


class Phases:
    """The current phases of a session's jobs."""

    def __init__(self, shared: Shared, offer: Callable[[str], None]) -> None:
        self._shared = shared
        self.gangs = Gangs(shared)
        self.lending = Lending(shared, offer)

    # --- leases ---

    def gets_warm_first(self, job: Job, grant: Grant) -> bool:
        """Whether a task that starts on the GPU is still being loaded: no GPU is taken for that."""
        if self.gangs.is_member(job):  # all of it starts at once, so all of it is warm before
            return self._shared.options.preload and bool(job.warm_key) and not job.ready_to_start
        starts_on_gpu = grant.is_gpu and grant.index == 0
        return starts_on_gpu and self._shared.options.preload and bool(job.warm_key) and not job.ready_to_start

    def gets_place_first(self, job: Job) -> bool:
        """With several nodes only the process itself can tell which of them Ray has put it on; and what it holds
        itself it has when it is there."""
        is_needed = self._shared.offers.are_several or self.gangs.is_member(job) or job.holds_cpus
        return job.peer is None and not job.is_open and is_needed

    def take_lease(self, job: Job, grant: Grant) -> None:
        if self.gangs.is_member(job):
            self.gangs.ask(job, grant)
            return
        self.give_back(job)
        shape = job.shape(grant)
        if not job.holds_cpus:
            job.lease = self._shared.leases.take(job, grant, shape)
        elif shape.gpu_milli:
            job.lease = self._shared.leases.take(job, grant, Shape(0, shape.gpu_milli))
        else:
            job.lease = self._shared.leases.held_by(job, grant)
            self._start(job)

    def let_go(self, job: Job) -> None:
        """Open the phase's gate when the process waits there and Ray has given its resources."""
        lease = job.lease
        if job.peer is None or job.went_at:
            return
        if job.is_open:
            job.went_at = self._shared.site.now()
            self._shared.send(job, {"m": "go", "open": True})
        elif lease is not None and lease.peer is not None and self._may_go(job):
            job.went_at = self._shared.site.now()
            self.record_start(job)
            self._shared.send(job, {"m": "go", "devices": list(lease.devices), **self._restored(job)})

    def _restored(self, job: Job) -> Message:
        """For the process of a script's task that Ray has started again, where to find what the try before has kept:
        what it was told with its ticket is older."""
        if not job.ticket or job.checkpoint is None or job.began:
            return {}
        key = f"restored-{job.submission}-{job.life}"
        self._shared.promises.keep(key, [job.checkpoint])
        return {"restored": key, "board": base64.b64encode(self._shared.promises.board()).decode()}

    def on_its_own(self, job: Job) -> None:
        """EGS has no resources for this shell: it takes its GPUs from Ray by itself."""
        self.give_back(job)
        job.is_open = True
        self.let_go(job)

    def give_back(self, job: Job) -> None:
        """What it holds; once its process is gone, where that has memory on a device, or ends with the task anyway."""
        is_over = job.succeeded or job.failed or job.ended
        self.lending.end(job)
        if job.lease is not None:
            self._shared.leases.release(job.lease, job.pid if job.stays or (job.once and is_over) else 0)
            job.lease = None
        if self.gangs.is_member(job):
            for other in self.gangs.leave(job):
                self._start(other)

    def lease_started(self, job: Job) -> None:
        """Ray gave the phase its resources: it holds them from here. Members of a gang start when all have theirs."""
        for member in self.gangs.begun(job) if self.gangs.is_member(job) else [job]:
            self._start(member)

    def _may_go(self, job: Job) -> bool:
        return not self.gangs.is_member(job) or self.gangs.may_go(job)

    def _start(self, job: Job) -> None:
        lease = job.lease
        if lease is None:
            return
        devices = tuple(int(d) if d.isdecimal() else i for i, d in enumerate(lease.devices))
        grant = msgspec.structs.replace(lease.grant, devices=devices)
        self.started(job, grant)
        self.lease_named(job)
        self.let_go(job)

    def lease_named(self, job: Job) -> None:
        """It is known which devices it has, and it has begun there."""
        if job.lease is not None and job.lease.uuids and job.started:
            self._shared.site.has_devices(job.number, job.lease.uuids)

    def lease_over(self, number: int) -> None:
        """A holder has ended that was not told to: ask Ray for another one, so that its books stay true."""
        job = self._shared.leases.lost(number)
        if job is None or job.lease is None or job.lease.id != number:
            return
        job.lease = None
        job.lost_leases += 1
        if job.grant is None or self._shared.broken:
            return
        if job.lost_leases <= MOST_LOST:
            self.take_lease(job, job.grant)
        else:
            if job.peer is not None:
                self._shared.warn_once(
                    "what holds resources for tasks keeps dying: tasks ask Ray for their GPUs themselves"
                )
            self.on_its_own(job)

    # --- starts and ends ---

    def started(self, job: Job, grant: Grant) -> None:
        if self._shared.broken or job.started:
            return
        job.started = True
        job.to_record = (grant, self._shared.site.now())
        if job.way is not Way.SHELL:
            self.record_start(job)
        self._shared.site.report(m.PhaseStarted(grant.phase, grant.attempt))

    def record_start(self, job: Job) -> None:
        """Write down a phase's start; a shell's when its process has told whether it is warm."""
        if job.to_record is None or self._shared.broken:
            return
        (grant, at), job.to_record = job.to_record, None
        needs_process = grant.index == 0 and bool(job.warm_key)
        warm = (job.is_warm or job.was_warm) if needs_process else None
        self._shared.site.note(Started(grant, at, warm, job.framework_id, job.pid))

    def over(self, job: Job) -> None:
        """The current phase has ended well: give back what it held, then let the site go on."""
        grant = job.grant
        if grant is None:
            return
        self.noted(job, grant)
        if not self._shared.broken:
            self._shared.site.report(m.PhaseEnded(grant.phase, grant.attempt))

    def noted(self, job: Job, grant: Grant) -> None:
        """Give back what a phase held, and write down that it has ended well."""
        self.started(job, grant)  # when nobody has told of it
        now = self._shared.site.now()  # not before that start: records are ordered by time
        self.record_start(job)
        self.used(job, grant, now)
        self.give_back(job)
        job.grant, job.went_at, job.next_phase = None, 0.0, grant.index + 1
        if not self._shared.broken:
            self._shared.site.note(Ended(grant.phase, grant.attempt))

    def used(self, job: Job, grant: Grant, now: float) -> None:
        """A GPU phase of its own is used from the moment its code was let go."""
        kinds = job.run.converted.graph.phases_of(job.index)
        if grant.is_gpu and job.went_at and not job.outside and (len(kinds) > 1 or self._shared.options.split):
            task = job.run.converted.graph.ids[job.index]
            self._shared.site.note(r.Used(job.went_at, now, job.run.workload, task, grant.index, grant.attempt))
