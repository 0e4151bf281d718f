"""What a script submits by `.remote()`, as one run of a session that grows: the site orders it with all other runs.

    .remote() ─► arrival ─► site.grow ─► decisions ─► ticket opens ─► Ray queues the task and runs it
                               ▲                                         │
                               └───────── its reference has a value ◄────┘

Ray has each task from its submission on, and the script its reference; the site decides when its ticket opens. Nothing
is submitted again here: retries, cancelling, errors and the values are Ray's own. A task with phases, something to
preload or a limit is a shell whose ticket tells it so (`worker.hooked`); it is started for a preload as for its turn.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import Any

import msgspec
import ray

from egs_core.engine import messages as m
from egs_core.graph.columns import Graph
from egs_core.notices import warn
from egs_core.runlog import records as r
from egs_core.site import Grant, Granted
from egs_ray import actors, waiting
from egs_ray.actors import ActorRef
from egs_ray.demand import DEMAND, cluster_grows, may_ask
from egs_ray.session.described import Described
from egs_ray.session.grown import Grown
from egs_ray.session.line import Line
from egs_ray.session.lives import Lives
from egs_ray.session.loans import Loans
from egs_ray.session.outlook import Outlook
from egs_ray.session.pace import REST_S, Pace
from egs_ray.session.pulse import Pulse
from egs_ray.session.room import Room
from egs_ray.session.session import Session
from egs_ray.session.tasks import LASTING, WITH_TICKET, Job, Way
from egs_ray.session.tickets import Tickets
from egs_ray.submission import Arrival, Needs, Ordered
from egs_ray.told import ToldRef

LEAST_S = 0.3  # each task told of costs Ray two messages
LEAST_TOOK_S = 0.001  # of a task, by measurement
PASSED_OVER_S = 10.0  # that an actor may wait while what is submitted after it, and has no priority, overtakes it


class Program:
    """See the module. `take`, `add`, `waits_for` and `give_back` are for the submitting threads, from any thread and
    without blocking; everything below runs on the holder's thread but where it says so."""

    def __init__(self, session: Session, workload: str, name: str, outlook: Outlook) -> None:
        if not waiting.is_plain_driver():
            raise RuntimeError("this kind of connection to Ray (client, local mode) has no tickets")
        grows = cluster_grows()
        if grows and not may_ask():
            raise RuntimeError("tasks with tickets would be no demand to the autoscaler (EGS_SCALING=off)")
        self._session, self._outlook = session, outlook
        self.site = session.site
        is_shared = self.site.is_shared
        self.room = Room(ray.nodes(), grows=grows, is_exact=is_shared)
        self.tickets = Tickets(self.room, outlook.seconds, self.site.do, self.site.now, lets_pass=not is_shared)
        self.books = Grown(workload, name, session.keeps_process, waits_inside=is_shared)
        self._wall_s = time.time() - self.site.now()
        self.line = Line()
        self._ready: dict[str, float] = {}  # task -> when it became ready, as the run log has it
        self._refs: dict[int, Any] = {}
        self._awaited: set[str] = set()  # ids of tasks that the site knows, from their submission on
        self._arrivals: deque[tuple[Arrival, dict[str, Any], Described | None]] = deque()
        self._ends: deque[int] = deque()
        self._waiting_actors: dict[int, float] = {}  # index -> since when
        self.loans = Loans(self.books, self.line.since, self.hand_on, self.site.now)
        self._lives = Lives(self._lives_at, self._ended, self.fail)
        self._over: list[m.Sight] = []  # tasks whose ends the site is told of at the end of the turn
        self._is_full = self._is_ahead = False  # all GPUs have tasks; Ray has enough to do for some time
        self._pace = Pace(self.site.do, self._turn)
        self._pulse = Pulse(
            session,
            self.books,
            self.tickets,
            self.room,
            self.line,
            look=self.loans.look,
            is_awaited=lambda: bool(self._awaited),
            went=self._went,
            fail=self.fail,
        )
        session.attach(self, self.books)
        self._pulse.start()

    # --- for submitting threads ---

    def admits(self, needs: Needs) -> bool:
        """Whether a task with these needs gets a ticket: some node must be able to run it, else it would wait for ever
        with a GPU counted as its, and Ray could not tell the autoscaler or the user."""
        return not self.tickets.are_open and self.room.fits(needs.cpus, needs.gpus, needs.memory_bytes)

    def admits_group(self, needs: list[Needs], strategy: str) -> bool:
        """Whether a placement group with these bundles gets tickets: it fits, by its strategy, if nothing else runs."""
        return not self.tickets.are_open and self.room.fits_group(needs, strategy)

    def ticket(self, needs: Needs, is_bare: bool) -> tuple[str, Any] | None:
        """See `Tickets.take`."""
        return self.tickets.take(needs, is_bare)

    def shell_ticket(self, needs: Needs) -> tuple[str, Any] | None:
        """See `Tickets.take`."""
        return self.tickets.take(needs, is_bare=False, is_shell=True)

    def actor_ticket(self, needs: Needs, is_bare: bool, may_wait: bool) -> tuple[str, Any] | None:
        """See `Tickets.take_for_actor`."""
        return self.tickets.take_for_actor(needs, is_bare, may_wait)

    @property
    def moves(self) -> bool:
        """Whether a task is tried on another flavor of GPUs when the memory of one is not enough."""
        return self._session.moves

    def hand_on(self, key: str) -> None:
        """Others may wait with a GPU for what has this ticket: it waits no longer."""
        self.site.do(lambda: self._went(self.tickets.open(key)))

    def give_back(self, key: str) -> None:
        """The ticket was not used, or nobody will hear of the end of what did."""
        self.site.do(lambda: self._went(self.tickets.give_back(key)))

    def hold_back(self, holds: bool) -> None:
        """See `Tickets.hold_back`."""
        self.tickets.hold_back(holds or self.site.is_shared)

    def waits_for(self, task_ids: list[str]) -> bool:
        """Whether one of these is a task whose end is waited for."""
        return not self._awaited.isdisjoint(task_ids)

    def add(self, arrival: Arrival, refs: dict[str, Any], described: Described | None = None) -> None:
        """refs: the result and what Ray waits for, by id; kept until they have values, else nobody would hear of it."""
        self.add_all([(arrival, refs, described)])

    def add_all(self, told: list[tuple[Arrival, dict[str, Any], Described | None]]) -> None:
        """The same of several, which the site hears of together."""
        self._awaited.update(arrival.task_id for arrival, _, _ in told)
        self._arrivals.extend(told)
        self._pace.wake(may_rest=self._is_full or self._is_ahead)

    def unfinished(self) -> set[str]:
        """Ids of the script's tasks, and of actors' creations, that are in the order and have not ended; asks Ray. What
        has arrived while the line was full is not taken in before something ends."""
        arrived = [refs[arrival.task_id] for arrival, refs, _ in list(self._arrivals) if arrival.task_id in refs]
        refs = [*list(self._refs.values()), *arrived]
        told = [ref for ref in refs if isinstance(ref, ActorRef | ToldRef) and ref.is_open]
        return waiting.unfinished(refs) | {str(ref.task_id().hex()) for ref in told}

    def learned(self) -> None:
        """More is known of durations now."""
        self.site.do(self._believe_again)

    def close(self) -> None:
        """Ray is about to disconnect; what still waits ends with it."""
        self._pulse.close()
        self._lives.close()
        self._pace.close()
        DEMAND.withdraw("gate")

    # --- arrivals ---

    def _turn(self) -> None:
        """All that has come by now; what was submitted is known before what follows from its end."""
        self._pace.begun()
        ends = len(self._ends)
        if self._arrivals and not self._session.is_broken:
            self._admit()
        for _ in range(ends):
            self._end(self._ends.popleft())
        if self._over:
            over, self._over = self._over, []
            self.site.report(m.TasksSeen(tuple(over)))
        self.loans.look()
        self._is_full = self.line.gpus >= self.room.tickets
        self._is_ahead = self.room.ahead_s(self.line.gpus) > 2 * REST_S

    def _admit(self) -> None:
        """Take in what was submitted. What waits for nothing that is known, and has no ticket, is nobody's concern."""
        block, first, refs = Graph(), len(self.books.jobs), dict[str, Any]()
        new: list[tuple[Job, str]] = []  # those whose ends are heard of, and the names of their references
        now = self.site.now()
        late = now - PASSED_OVER_S
        passed_over = [index for index, since_s in self._waiting_actors.items() if since_s < late]
        after = [self.books.markers[index].index for index in passed_over]
        has_passed = False
        while self._arrivals:
            waits = self.tickets.waits(self._arrivals[0][0].key)
            if has_passed and waits:  # the site hears of what has passed first, else it would give that room away
                self._pace.wake(may_rest=False)
                break
            arrival, named, described = self._arrivals.popleft()
            has_passed = has_passed or (bool(arrival.key) and not waits)
            refs.update(named)
            if arrival.task_id in self.books.numbers:
                continue
            is_urgent = described is not None and described.options.priority > 0
            goes_first = is_urgent or not arrival.key or arrival.is_nested
            taken = self.books.take_in(arrival, described, block, () if goes_first else after)
            new += taken
            if not taken:
                self._awaited.discard(arrival.task_id)
            elif arrival.is_nested and arrival.key:
                self.loans.arrived(taken[-1][0], arrival.parent)
        if not new:
            return
        grown = self.site.grow(self.books.workload, first, block)
        for job in self.books.jobs[first:]:
            local = job.index - first
            job.number, job.first_phase = grown.task + local, grown.phase + block.phase_offsets[local]
            self._session.know(job)
        lives = {job.first_phase - grown.phase for job in self.books.jobs[first:] if job.way in LASTING}
        if values := [value for value in self._outlook.believe(block) if value[0] not in lives]:
            self.site.report(m.Estimates(tuple([(grown.phase + phase, p50, p95) for phase, p50, p95 in values])))
        for job, name in new:
            job.ref = self._refs[job.index] = refs[name]
            if job.way is Way.GROUP:
                self._note_group(job, now)
            self._await_end(job.index, refs[name])
            if job.ticket and (opened := self.tickets.wait(job.ticket, job.index)) is not None:
                self._let_go(job, *opened)
            elif job.way is Way.ACTOR:
                self._waiting_actors[job.index] = now

    def _await_end(self, index: int, ref: Any) -> None:
        if isinstance(ref, ActorRef):
            self._lives.watch(index, ref)
        elif isinstance(ref, ToldRef):
            ref.on_over(partial(self._ended, index))
        else:
            waiting.on_ready(ref, partial(self._ended, index))

    def _ended(self, index: int) -> None:
        """From any thread."""
        self._ends.append(index)
        self._pace.wake(may_rest=self._is_ahead)

    def _lives_at(self, index: int, node: str, pid: int) -> None:
        """From any thread: the `__init__` of an actor has returned."""
        self.site.do(partial(self._began, self.books.jobs[index], node, pid))

    def _began(self, job: Job, node: str, pid: int) -> None:
        job.began, job.node, job.pid = True, node, pid
        if job.grant is not None:
            self.site.report(m.PhaseStarted(job.grant.phase, job.grant.attempt))

    # --- decisions ---

    def granted(self, job: Job, grant: Grant) -> None:
        """The turn of a task with a ticket has come, or that of one that needs none."""
        job.grant, job.attempt = grant, grant.attempt
        if job.is_over:  # it has ended meanwhile
            self.site.report(m.PhaseEnded(grant.phase, grant.attempt))
        elif job.way in WITH_TICKET:
            if job not in self.line:  # else it went with another, and that was told
                self.site.note(Granted(grant))
            self._went(self.tickets.open(job.ticket, grant.id, grant.reason), but=job)
            self._count(job, self.site.now())
            if job.way is not Way.ACTOR or job.began:
                self.site.report(m.PhaseStarted(grant.phase, grant.attempt))

    def start(self, job: Job, told: Any) -> None:
        """Let Ray start a shell. told: what its process shall know, see `worker.hooked`."""
        self.tickets.open(job.ticket, 0, "", told)

    def dropped(self, jobs: Iterable[Job]) -> None:
        """The site has ended these while they waited: past a limit of their workload."""
        for job in jobs:
            if job.ref is not None:
                actors.end(job.ref, job.stopped or "past a limit of its workload")

    # --- for operators ---

    def passed(self) -> list[Job]:
        """Tasks without phases that were let go a while ago; shorter ones end before anybody could stop them."""
        jobs = [self.books.jobs[index] for index in self.line.before(self.site.now() - LEAST_S)]
        return [job for job in jobs if job.way in WITH_TICKET and not job.is_over]

    def waiting(self, most: int) -> list[Job]:
        """The first of those that have not been let go."""
        waits = (job for job in self.books.unfinished if job.way in WITH_TICKET and job not in self.line)
        return list(islice(waits, most))

    def stopping(self, job: Job, reason: str) -> None:
        """It is about to be ended; the first reason stays, as it is listed until its end. Of a limit the script reads
        here, because the error is Ray's own."""
        self._outlook.reasons.setdefault(job.framework_id, reason)
        job.aborted, job.stopped = job.way is not Way.TICKET, reason
        if job.over_limit:
            warn(f"{job.label} is ended: {reason}")

    def cancel(self, jobs: Iterable[Job], reason: str) -> None:
        """End what waits and what runs."""
        for job in jobs:
            if job.ref is not None and not job.is_over:
                self.stopping(job, job.stopped or reason)
                actors.end(job.ref, job.stopped)

    def code_waits(self, task: str) -> None:
        """The code of a task, by Ray's id, waits in Ray, for what it has told of before."""
        self._turn()
        self.loans.waits(task)

    def _went(self, indices: Iterable[int], but: Job | None = None) -> None:
        """Tasks went to Ray without a turn of their own: with others, or since nothing waited."""
        for index in indices:
            if (job := self.books.jobs[index]) is not but:
                self._let_go(job, self.site.now(), 0, "with_another")

    def _let_go(self, job: Job, at_s: float, decision: int, reason: str) -> None:
        """It has been let go, at that time; the site hears of its end as of any other's."""
        if job not in self.line and not job.is_over:
            self._count(job, at_s)
            seconds = (
                self.books.converted.graph.phase_duration_s[self.books.converted.graph.phase_offsets[job.index]] or 0.0
            )
            times = self._wall_s + at_s, self._wall_s + at_s
            self._outlook.told(Ordered(job.framework_id, *times, decision, reason, seconds, seconds))

    def _count(self, job: Job, at_s: float) -> None:
        if job not in self.line:
            self.line.add(job, at_s)
            if job.way is Way.GROUP:
                self._outlook.record(r.Started(self._wall_s + at_s, self.books.workload, job.framework_id))
            self._is_full = self.line.gpus >= self.room.tickets
            self._no_longer_waits(job)

    def _no_longer_waits(self, job: Job) -> None:
        """An actor has gone to Ray, or has ended before: what came after it may go."""
        self._waiting_actors.pop(job.index, None)
        if (marker := self.books.markers.pop(job.index, None)) is not None:
            self._finish(marker)
            actors.no_longer_watched(job.ref)

    # --- ends ---

    def _end(self, index: int) -> None:
        """A task's reference has a value, or an error: to Ray both are values, and what waits for it may run."""
        job = self.books.jobs[index]
        self._refs.pop(index, None)
        task_id = self.books.converted.graph.ids[index]
        self._awaited.discard(task_id)
        why = self._outlook.reasons.pop(task_id, "") if job.way is Way.GROUP else ""
        if job.way is Way.GROUP and (why or job in self.line):
            ended = "aborted" if why else "succeeded"
            at_s = self._wall_s + self.site.now()
            self._outlook.record(r.Ended(at_s, self.books.workload, task_id, outcome=ended, reason=why))
        self._unline(job)
        self._no_longer_waits(job)
        waiting_too = self.tickets.forget(job.ticket) if job.ticket else []
        # The task itself last: what follows it must be ready when its turn is free, or a lower one slips in.
        if (also := self.books.also.pop(index, None)) is not None:
            self._finish(also)
        if job.way is Way.SHELL and job.submission:
            self._session.ended(job)
            self.books.release_parents(index)
        else:
            self._finish(job, with_others=job.way not in LASTING)
        self._went(waiting_too, but=job)
        if job.is_over:
            job.ref = None  # else its value would stay, and a process of a task that owns a part of it
        self.books.forget(task_id)
        self._ready.pop(task_id, None)

    def _finish(self, job: Job, with_others: bool = False) -> None:
        """with_others: the site may be told at the end of this turn, if nothing is ready by this end."""
        grant, job.grant, job.succeeded = job.grant, None, True
        self.books.release_parents(job.index)
        if self._session.is_broken:
            return
        self._session.hasten_after(job)
        if with_others and not (self.books.children[job.index] or job.stopped or job.aborted):
            self._over.append(m.Sight(job.number, "over"))
        elif grant is None:
            self.site.report(m.BranchSkipped(job.number))  # means nothing for what has ended
        else:
            self.site.report(m.PhaseEnded(grant.phase, grant.attempt, "aborted" if job.aborted else "succeeded"))

    def _unline(self, job: Job) -> None:
        if (let_go := self.line.remove(job)) is not None:
            at_s, line_gpus = let_go
            if job.way is Way.TICKET:
                took_s = max(LEAST_TOOK_S, self.site.now() - at_s - self.tickets.way_of(job.ticket))
                if self.room.learn(self.tickets.needs_of(job.ticket, job.gpus), took_s, line_gpus):
                    self._session.offer()

    # --- beliefs ---

    def _believe_again(self) -> None:
        open_ = [job for job in self.books.unfinished if job.way not in LASTING]
        graph, block = self.books.converted.graph, Graph()
        for job in open_:
            phases = [
                (graph.phase_kind[p], graph.shapes[graph.phase_shape[p]], None) for p in graph.phases_of(job.index)
            ]
            block.add_task(graph.ids[job.index], (), tuple(phases), graph.names[job.index])
        numbers = [job.first_phase + p for job in open_ for p in range(len(graph.phases_of(job.index)))]
        if values := [(numbers[phase], p50, p95) for phase, p50, p95 in self._outlook.believe(block)]:
            self.site.report(m.Estimates(tuple(values)))

    # --- the run log, and failures ---

    def _note_group(self, job: Job, at_s: float) -> None:
        """A task that holds nothing of its own: what is placed in it does, and is in the run log with that."""
        name, nothing = self.books.converted.graph.names[job.index], (r.phase_needs(0.0, 0.0, 0),)
        added = r.TaskAdded(self._wall_s + at_s, self.books.workload, job.framework_id, name, phases=nothing)
        self._outlook.record(added)

    def record(self, record: r.Record) -> None:
        """A line of the run log about one of its tasks. Those of tasks without phases come from what Ray tells, but for
        how long they wait for their turn, and for what."""
        task = getattr(record, "task", "")
        index = self.books.numbers.get(task)
        way = None if index is None else self.books.jobs[index].way
        if isinstance(record, r.Ready) and way is not Way.SHELL:
            self._ready[task] = record.t
        waits = way in WITH_TICKET and isinstance(record, (r.Ready, r.Held))
        if isinstance(record, r.Work) or way in (Way.SHELL, Way.GROUP) or waits:
            wall = {name: self._wall_s + getattr(record, name) for name in ("t", "end_t") if hasattr(record, name)}
            self._outlook.record(msgspec.structs.replace(record, **wall))
        elif isinstance(record, r.Granted):
            ready_s = min(record.t, self._ready.pop(task, record.t))
            times = self._wall_s + ready_s, self._wall_s + record.t
            p50_s, p95_s = record.estimate_p50_s or 0.0, record.estimate_p95_s or 0.0
            self._outlook.told(Ordered(task, *times, record.decision, record.reason, p50_s, p95_s))

    def fail(self, error: BaseException) -> None:
        """From any thread. Nothing is decided any more: every ticket opens, and what comes passes."""
        if not self._pulse.is_closing and self.tickets.open_all():
            self._outlook.on_failure(error)
        if not self.site.is_alive:  # nobody is left to hear of ends: let go of the references
            self._refs.clear()
            self._arrivals.clear()
