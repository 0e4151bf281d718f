"""The session: one site for all runs of a driver process, and what it takes to carry out its decisions on Ray.

    worker ── hello, warm, began, want, free, end ─► events ─► site ──► decisions ─► submit, lease, go, drop ─► worker

Everything below the public methods runs on the site's thread for its holder, so nothing here needs a lock. What fails
inside EGS ends in `failopen.py`: the runs are finished by Ray alone. How the parts build on each other: `shared.py`.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import ray

from egs_core import site as s
from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.errors import InputError
from egs_core.graph.merging import merge_phases
from egs_core.runlog import records as r
from egs_ray import submitting, waiting
from egs_ray.cluster import Cluster
from egs_ray.control.reporting import Reporter
from egs_ray.demand import Hints, cluster_grows, may_ask
from egs_ray.link import Message, Peer, Server
from egs_ray.observe import script_name
from egs_ray.payload import Converted
from egs_ray.promises import Promises
from egs_ray.session.decisions import Decisions
from egs_ray.session.endings import Endings
from egs_ray.session.failopen import FailOpen
from egs_ray.session.flavors import Flavors, checked_objective
from egs_ray.session.learning import make_learning
from egs_ray.session.leases import Leases
from egs_ray.session.nodes import Nodes
from egs_ray.session.operations import Operations
from egs_ray.session.phases import Phases
from egs_ray.session.shared import HEAR_S, Options, Shared
from egs_ray.session.stops import Stops
from egs_ray.session.submissions import Submissions
from egs_ray.session.tasks import Job, RunBooks, Way
from egs_ray.session.ways import Plan, check_gangs, for_site, lack_of, plan_ways, unshared
from egs_ray.session.workers import Workers
from egs_ray.settings import QUEUE, chosen_gate
from egs_ray.site.joining import join

__all__ = ["Options", "Session"]

MOST_PREPARED = 8
PREPARE_S = 30.0
KEEP_S = 0.5
WATCH_S = 2.0
FOREVER_S = 30.0
CLOSE_S, HASTE_S = 5.0, 0.3
HEAR_EVERY_S = 0.005
HEAD = "node:__internal_head__"
MOST_NAME = 200


class Session(s.HolderSession):
    """Runs graphs on the Ray that this process is connected to. `close` ends it; it is a context manager."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self._grows = cluster_grows()
        config = _engine_config(self.options, self._grows and may_ask())
        self._hints = Hints("session") if config.scaling_hints else None
        queues = _queues_of(self.options)
        self._queues = {queue.name for queue in queues}
        self._server = Server(ray.util.get_node_ip_address(), self._on_message, self._on_gone)
        self._leases = Leases(self._server.address, self._on_lease_end)
        self._promises = Promises()
        self._run_numbers = itertools.count()
        self._job = str(ray.get_runtime_context().get_job_id())  # all runs of a driver are ordered as one workload
        self._flavors = Flavors(self.options.flavors)
        self._cluster = Cluster(self.options.flavor_label, self._flavors.memory_of)
        self._watched_at = 0.0
        self._told: dict[str, r.Capacity] = {}  # of each node, as last written
        self._early: list[r.Record] = []  # nodes that came before the first run of this session's own
        learning = make_learning(self.options.runlog, self.options.history, self.options.policy)
        joining = None if queues else joining_of_driver()
        elsewhere = partial(join, joining) if joining is not None and chosen_gate()[0] == "cluster" else None
        super().__init__(config, learning, joining=joining, elsewhere=elsewhere)
        is_served = self.site.is_shared and bool(os.environ.get("EGS_URL", "").strip())
        self._make_parts()
        self.site.do(submitting.submit_directly)
        self.site.start()
        self._closing = threading.Event()
        self._forget_disconnect = waiting.before_disconnect(lambda: self.close(finish=False))
        threading.Thread(target=self._keep, name="egs-keep", daemon=True).start()
        if queues:
            self.site.report(m.QueuesChanged(queues))
        self._nodes.describe()
        self._reporter = Reporter(self._operations, self.options.control and not is_served)  # a server has its own

    def _make_parts(self) -> None:
        self._shared = shared = Shared(
            self.options, self.site, self._server, self.learning, self._leases, self._promises
        )
        self._nodes = nodes = Nodes(
            shared,
            self._cluster,
            self._flavors,
            lost=lambda node: self._endings.node_lost(node),
            lent=lambda event: self._phases.lending.offered(event),
        )
        self._phases = phases = Phases(shared, nodes.offer_one)
        self._submissions = submissions = Submissions(shared, phases, lambda number: self._endings.on_result(number))
        self._endings = Endings(shared, phases, submissions)
        self._stops = stops = Stops(shared, self._endings)
        self._decisions = Decisions(shared, phases, submissions, self._endings, stops)
        self._workers = Workers(shared, phases, submissions, self._endings, stops, nodes.look)
        self._operations = Operations(shared, stops)
        self._failopen = FailOpen(shared, phases, submissions)

    # --- for callers, from any thread ---

    def submit(self, converted: Converted, given: Any, queue: str = "", called_s: float | None = None) -> RunBooks:
        """Start a run of a converted graph; the first call takes as long as run logs that are yet to be learned from,
        each later one returns at once. called_s: when the user asked for it (monotonic), from which its run log
        counts; now, if that is not said. Raises InputError for a queue that there is not."""
        if queue and queue not in self._queues:
            known = ", ".join(sorted(self._queues)) or "none; see Options.queues"
            raise InputError(f"queue {queue!r}", "is not configured", f"there are: {known}")
        if not self.options.split:
            converted = msgspec.structs.replace(converted, graph=merge_phases(converted.graph))
        converted = msgspec.structs.replace(converted, graph=self._flavors.fitted(converted.graph, self._cluster.nodes))
        self.learning.catch_up()
        books = RunBooks(f"{converted.name}#{next(self._run_numbers)}", converted, given)
        books.queue = queue
        books.called_s = books.called_s if called_s is None else called_s
        self._shared.runs[books.workload] = books
        self.site.do(lambda: self._begin(books))
        if not self.site.is_alive:
            self._failopen.finish_natively(books)
        return books

    def abort(self, scope: str, target: str, actor: str, reason: str) -> None:
        """Abort on behalf of an operator; from any thread."""
        self.site.do(lambda: self._operations.abort(scope, target, actor, reason))

    @property
    def is_open(self) -> bool:
        return not self._closing.is_set()

    def close(self, *, finish: bool = True) -> None:
        """End the session. Unfinished runs are left to Ray, or, without `finish`, end with an error."""
        if self._closing.is_set():
            return
        self._closing.set()
        with submitting.directly():
            self._reporter.close()
        self._forget_disconnect()
        if self._hints is not None:
            self._hints.close()
        self._hear_out(HEAR_S if finish else HASTE_S)
        self.site.do(lambda: self._failopen.hand_over(finish))
        if self.site.call(lambda: len(self._leases), FOREVER_S) if finish and self.site.is_alive else 0:
            threading.Thread(target=self._close_later, name="egs-close", daemon=True).start()
        else:
            self._close_now()

    def _hear_out(self, limit_s: float) -> None:
        """What ended tasks have told of their work belongs in the run log, and may come after their results do."""
        while self.site.is_alive and any(
            self.site.now() - at < limit_s for _, at in list(self._shared.unheard.values())
        ):
            time.sleep(HEAR_EVERY_S)

    def unfinished(self) -> dict[str, int]:
        """How many tasks of each graph have not ended, by its name: also of one that has not begun."""
        runs = [books for books in list(self._shared.runs.values()) if not (books.grows or books.over.is_set())]
        return {
            books.converted.name: books.converted.graph.n_tasks - sum(job.is_over for job in books.jobs)
            for books in runs
        }

    def _close_later(self) -> None:
        """Phases that run keep what they hold until they end."""
        submitting.submit_directly()
        while len(self._leases) and ray.is_initialized():
            time.sleep(KEEP_S)
        self._close_now()

    def _close_now(self) -> None:
        # Its thread may be asking a Ray that has ended.
        self.end(CLOSE_S if waiting.has_time_to_ask() else HASTE_S)
        self._server.close()

    def __enter__(self) -> Session:
        """Start its processes and wait for them, for a while, as `ray.init` does for Ray's own."""
        slots = min(self._cluster.units, MOST_PREPARED)
        prepared = [self._promises.ready(), *self._submissions.prepare_processes(slots)]
        ray.wait(prepared, num_returns=len(prepared), timeout=PREPARE_S)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- for the program ---

    def attach(self, program: Any, books: RunBooks) -> None:
        """A script's own submissions are ordered here, too, until this session is closed. From any thread."""
        self._shared.tickets = program
        self.site.do(self._nodes.tell_flavors)
        self._shared.runs[books.workload] = books
        self.site.submit(m.WorkloadSubmitted(books.workload, books.converted.name, submission=self._job))
        self.site.do(self.offer)

    @property
    def is_broken(self) -> bool:
        return self._shared.broken

    @property
    def moves(self) -> bool:
        """Whether there are several flavors of GPUs on which to try a task, and that was asked for. From any thread."""
        flavors = {node.flavor for node in self._cluster.nodes if node.gpus} - {""}
        return self.options.retry_out_of_memory and len(flavors) > 1

    def know(self, job: Job) -> None:
        """The site has this task, by its number."""
        self._shared.jobs[job.number] = job

    def keeps_process(self, job: Job) -> bool:
        """See `Submissions.keeps_process`."""
        return self._submissions.keeps_process(job)

    def hasten_after(self, job: Job) -> None:
        """See `Submissions.hasten_after`."""
        self._submissions.hasten_after(job)

    def ended(self, job: Job) -> None:
        """The reference of a shell that was started has a value, or an error."""
        self._endings.on_result(job.submission)

    def offer(self) -> None:
        """See `Nodes.offer`."""
        self._nodes.offer()

    # --- runs ---

    def _begin(self, books: RunBooks) -> None:
        """Give the graph to the site, with what is known about its durations."""
        if self._shared.broken:
            self._failopen.finish_natively(books)
            return
        name = books.converted.name
        graph = self._flavors.applied(books.converted.graph)
        graph = self.learning.believe(name, graph, flavors=self._flavors.names)
        nodes = self._shared.offers.nodes
        plan = plan_ways(books.converted.nodes, graph, nodes, self._grows)
        if self._is_refused(books, plan):
            return
        for index, way in enumerate(plan.ways):
            books.jobs.append(Job(books, index, -1, way))
            if way is Way.NATIVE:
                books.jobs[-1].lack = lack_of(books.converted.graph, index, nodes)
        used_up = [job.index for job in books.jobs if not self._submissions.keeps_process(job)]
        books.take_block(unshared(for_site(plan.graph, plan.ways, nodes), used_up, books.workload))
        submitted_s = self.site.now() - (time.monotonic() - books.called_s)  # before 0 where it had to start EGS
        self.site.note(r.WorkloadSubmitted(submitted_s, books.workload, name, queue=books.queue))
        self.site.note(*s.added_tasks(submitted_s, books.workload, plan.graph))
        self.site.submit(m.WorkloadSubmitted(books.workload, name, queue=books.queue, submission=self._job))
        grown = self.site.grow(books.workload, 0, books.block)
        for number, job in enumerate(books.jobs, grown.task):
            job.number, job.first_phase = number, grown.phase + books.block.phase_offsets[job.index]
            self._shared.jobs[number] = job
        self.learning.follow(books.workload, name, books.converted.graph, grown.phase)
        spreads = self.learning.spreads(name, books.converted.graph)
        if spreads:  # the graph has medians alone
            self.site.report(m.Estimates(tuple([(grown.phase + phase, *times) for phase, times in spreads.items()])))
        self._flavors.tell_estimates(self.site, self.learning, books.converted, grown.phase)
        self.site.do(lambda: self._prepare_for(books))

    def _prepare_for(self, books: RunBooks) -> None:
        """Processes for shells whose turn comes later, now that the first tasks have been submitted: as many as can
        have GPUs at once."""
        shells = [job for job in books.jobs if job.way is Way.SHELL]
        later = [job for job in shells if not job.submission]
        missing = min(len(later), self._cluster.gpus, MOST_PREPARED) - (len(shells) - len(later))
        own = sum(self._submissions.needs_own_process(job) for job in later[: max(0, missing)])
        self._submissions.prepare_processes(own, max(0, missing) - own)

    def _is_refused(self, books: RunBooks, plan: Plan) -> bool:
        """Whether the run is over with an error: a gang of it could never start, and no nodes are to come."""
        for left_out in plan.left_out:
            self._shared.warn_once(left_out)
        try:
            if not self._grows:
                check_gangs(books.converted.name, plan, self._cluster.nodes)
        except InputError as error:
            books.error = error
            books.over.set()
        return books.over.is_set()

    # --- now and then ---

    def _keep(self) -> None:
        """What has to be looked after now and then while runs are under way."""
        submitting.submit_directly()
        while not self._closing.wait(KEEP_S):
            busy = [books for books in list(self._shared.runs.values()) if not books.over.is_set()]
            if busy:
                self.site.do(self._look_after)
            if self._hints is not None:  # for a script's own tasks its program asks
                self._hints.look(any(not books.grows for books in busy), self._cluster.accelerators)

    def _look_after(self) -> None:
        """Keep processes for holders of the GPUs that are free: Ray ends idle ones after a second, and starting one
        takes about that long, with the GPU waiting. And let nothing wait for ever."""
        if self._shared.broken or self._closing.is_set():
            return
        if any(job.peer is not None for job in self._shared.submitted.values()):  # else that is what cores are for
            self._leases.keep(min(self._cluster.gpus, self._submissions.gpu_tasks_left()))
        now = self.site.now()
        for job in [job for job in self._shared.submitted.values() if job.parked_since is not None and not job.is_warm]:
            if job.parked_since is not None and now - job.parked_since > self.options.preload_timeout_s:
                self._stop_warming(job)
        for job in [job for job in self._shared.submitted.values() if job.waits_since and not job.is_warm]:
            if job.grant is not None and now - job.waits_since > self.options.preload_timeout_s:
                self._stop_warming(job)
        if now - self._watched_at > WATCH_S:
            self._watched_at = now
            self._nodes.look()
            self._submissions.wait_no_longer()
        if self.site.is_shared:  # else the controller asks for it
            self._operations.end_aborted()
            for node in self._phases.lending.nodes:  # other drivers describe it as well, without what is lent here
                self._nodes.offer_one(node)
        for group in self._phases.gangs.overdue(now):
            self._decisions.refuse(group)

    def _stop_warming(self, job: Job) -> None:
        """Its preload takes too long: it may start without."""
        if not job.gave_up_warming:
            job.gave_up_warming = True
            name = job.run.converted.graph.names[job.index]
            self._shared.warn_once(
                f"preload for {name} took more than {self.options.preload_timeout_s:g} s: it starts cold"
            )
        if job.grant is not None and job.lease is None and job.peer is not None:
            self._phases.take_lease(job, job.grant)
        elif job.parked_since is not None:
            job.parked_since = None
            self.site.note(s.PreloadOver(job.number, "failed"))
            self._submissions.loaded(job.submission)
            self.site.report(m.PreloadFailed(job.number))

    # --- what the site, the server and the leases call ---

    def perform(self, decision: s.AnyTold, now: float) -> None:
        if isinstance(decision, m.ScalingHint):
            if self._hints is not None:
                self._hints.take(decision)
        elif isinstance(decision, s.Dropped):
            dropped = [self._shared.jobs[number] for number in decision.tasks]
            for job in dropped:
                job.dropped = True
            if self._shared.tickets is not None:
                self._shared.tickets.dropped([job for job in dropped if job.run.grows])
        elif isinstance(decision, s.Settled):
            books = self._shared.runs[decision.workload]
            if not (books.over.is_set() or books.grows):
                self.note_end(decision.workload, "failed" if decision.failed else "succeeded")
        else:
            self._decisions.perform(decision, now)

    def record(self, record: r.Record) -> None:
        """A line of the run log: of a script's own submissions it goes to the script's."""
        books = self._shared.runs.get(getattr(record, "workload", ""))
        if books is not None and books.grows:
            self._shared.tickets.record(record)
        elif isinstance(record, r.Capacity):
            record = self._nodes.real(record)
            if self._told.get(record.node) == (offer := msgspec.structs.replace(record, t=0.0)):
                return
            self._told[record.node] = offer
            if self.learning.is_written:
                super().record(record)
            else:  # a script that runs no graph has a log of its own, and needs none of this session's
                self._early.append(record)
        else:
            while self._early:
                super().record(self._early.pop(0))
            super().record(record)

    def run_over(self, workload: str) -> None:
        books = self._shared.runs[workload]
        self.learning.run_over(workload, books.converted.name)
        books.over.set()

    def asked(self, request: s.Asked) -> None:
        self._operations.asked(request)

    def site_lost(self, error: BaseException) -> None:
        self._failopen.fail_open(error)

    def _on_message(self, peer: Peer, message: Message) -> None:
        self.site.do(lambda: self._workers.take_message(peer, message))

    def _on_gone(self, peer: Peer) -> None:
        self.site.do(lambda: self._workers.worker_gone(peer))

    def _on_lease_end(self, lease: int) -> None:
        self.site.do(lambda: self._phases.lease_over(lease))


def joining_of_driver() -> s.Joining:
    """How this driver joins a site server: the drivers of one Ray cluster share its devices. Addresses may be the same
    on two hosts, so the cluster's head is in the pool's name."""
    heads = sorted(row["NodeID"] for row in ray.nodes() if HEAD in row["Resources"])
    pool = " ".join([ray.get_runtime_context().gcs_address, *heads])
    return s.Joining("ray", pool[:MOST_NAME], script_name(), os.environ.get(QUEUE, "").strip())


def _queues_of(options: Options) -> tuple[Any, ...]:
    if not options.queues:
        return ()
    from egs_core.queues import load_queues  # brings pydantic, which takes its time to import

    return load_queues(Path(options.queues), has_prices=False)


def _engine_config(options: Options, scaling_hints: bool) -> EngineConfig:
    config = EngineConfig(options.policy, options.preload, options.default_max_wait_s, scaling_hints=scaling_hints)
    more = {"preempt": options.preempt, "min_gain_s": options.min_gain_s}
    return msgspec.structs.replace(config, objective=checked_objective(options.objective), **more)
