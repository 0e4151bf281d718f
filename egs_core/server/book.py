"""What a site knows of its runs, and each step of a run's life: into the engine, granted, told to stop, over.

The engine's decisions are taken here and nowhere else; what a step changes is noted for the next commit. What clients
may ask for is in `admission`, `controls` and `logic`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import msgspec

from egs_core.calendar import Window
from egs_core.client import messages as c
from egs_core.driver.barrier import CommitBarrier
from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.specs import END
from egs_core.engine.state.lifecycle import ENDED
from egs_core.graph.columns import CPU, GPU, Graph
from egs_core.server import turns
from egs_core.server.aside import Asides
from egs_core.server.capacity import joined_node, own_node
from egs_core.server.flavors import Flavors, key_of
from egs_core.server.gangs import Gangs, gang_options
from egs_core.server.hosts import OWN, Hosts, JoinedHost
from egs_core.server.principals import Principal
from egs_core.server.reserve import Reserve
from egs_core.server.rights import Rights
from egs_core.server.runs import NOT_ADMITTED, HeldLease, Offer, Run, SiteFacts
from egs_core.server.views import Views
from egs_core.site.spanning import Member, Spanning

REFUSED, NOT_CLAIMED = "refused", "not claimed"
TOLD_LATE = "its end was told after it had counted as lost"
CONFIG = EngineConfig(preload=False, record=True, preempt=True, grace_s=10.0, min_gain_s=0.0, packing="best_fit")
"""best_fit: parts of GPUs fill one that is in use before they break a free one. preempt: of runs that said so only, and
at once: how long a run takes is seldom known here, so that it would end soon anyway is not either."""


class LogLine(msgspec.Struct, frozen=True):
    """For the log of changes: who did what to which run. at: of the site's clock."""

    at: float
    who: Principal
    verb: str
    run: str
    team: str = ""
    text: str = ""


class Book:
    """See the module. engine: new or recovered; runs: all that are known. Moments are seconds of the site's clock.

    by_task: those that the engine knows. boxed: those that will have to stop because their time is up. heard: when
    something was heard of an open one's supervisor; gone: run -> lease with which that was seen to be gone, once.
    dirty, forgotten, lines: what the next commit has to write, beside what `hosts` has. commands: of each open GPU
    request those in it that are open; kept: those that the engine is not to know now, and for which reservation;
    active: when a request was seen to be in use, not kept: after a start of the
    server it has its full time. tried: for which free devices other hosts were tried for a request that waits."""

    def __init__(
        self, facts: SiteFacts, engine: Engine, runs: Iterable[Run] = (), hosts: Iterable[JoinedHost] = ()
    ) -> None:
        self.facts = facts
        self.barrier = CommitBarrier(engine)
        self.engine = engine
        self.now = engine.state.now
        self.offer = Offer("", (), 0.0, 0)
        self.queues: tuple[str, ...] = ()
        self.team_of_queue: Mapping[str, str] = {}
        self.runs = {run.id: run for run in runs}
        self.by_key = {(run.user, run.key): run for run in self.runs.values()}
        self.by_task = {run.task: run for run in self.runs.values() if run.task != NOT_ADMITTED}
        self.hosts = Hosts(hosts)
        self.gangs = Gangs(run for run in self.runs.values() if run.is_open)
        self.kept: dict[str, Window] = {}
        self._granted: list[Run] = []  # of which nobody has looked yet whether they may have it
        self._is_taking = False
        self.views = Views(facts, engine, self.runs, self.by_task, self.hosts, self.gangs, self.kept)
        self.views.clock = lambda: self.now
        self.rights = Rights(self.runs, self.views.name_of)
        self.flavors = Flavors(engine, self.views, self.hosts)
        self.asides = Asides(engine, self.views, self.open_runs())
        self.reserve = Reserve(engine, self.views, self.by_task, facts.epoch)
        self.last = max((int(run_id) for run_id in self.runs), default=0)
        self._closed: deque[Run] = deque()  # ended, and those that wait for them have not been told
        self.dependents: dict[str, list[Run]] = {}
        for run in self.open_runs():
            self.note_after(run)
        self.heard = dict.fromkeys((run.id for run in self.open_runs()), self.now)  # a full time to live each
        self.gone: dict[str, int] = {}  # run -> lease with which its supervisor was seen to be gone, once
        self.dirty: dict[str, Run] = {}
        ended = [run for run in self.runs.values() if not run.is_open]
        self.ended = deque(sorted(ended, key=lambda run: (run.ended_at or 0.0, int(run.id))))
        self.forgotten: list[str] = []
        self.boxed: dict[str, Run] = {}  # those that will have to stop because their time is up
        for run in self.open_runs():
            self.note_box(run)
        self.lines: list[LogLine] = []
        self.open_of = Counter(run.user for run in self.open_runs())
        self.commands: dict[str, dict[str, Run]] = {}
        self.active: dict[str, float] = {}
        self.tried: dict[str, tuple[tuple[int, ...], ...]] = {}
        for run in self.open_runs():
            self.note_request(run)
        self._spanning: tuple[Spanning, Member] | None = None

    def join(self, spanning: Spanning, woken: Callable[[], None]) -> None:
        """Its queues' quotas hold over other pools, too. woken: called when one of those has let a run start."""
        self._spanning = spanning, spanning.join(self.engine, self._take, self._holders, woken)
        self.views.used_elsewhere = partial(spanning.holders, self._spanning[1])

    def leave(self) -> None:
        """Another one takes its place."""
        if self._spanning is not None:
            self._spanning[0].leave(self._spanning[1])
            self._spanning = None

    def fails(self) -> None:
        """What it decides is not durable: what it holds is counted, and it gets no more."""
        if self._spanning is not None:
            self._spanning[1].is_closed = True

    def look_around(self) -> None:
        """Count what others use by now. Raises what has failed in a turn of others."""
        if self._spanning is not None:
            spanning, member = self._spanning
            member.check()
            spanning.refresh(member, self.now)

    def _holders(self, queue: str) -> list[tuple[Run, str]]:
        holding = [run for run in self.open_runs() if run.lease is not None and run.queue == queue]
        return [(run, f"{run.id} ({run.name}, {run.user})") for run in holding]

    def open_runs(self) -> list[Run]:
        return self.views.open_runs()

    def note_box(self, run: Run) -> None:
        if run.is_claimed and run.for_s is not None and not run.stop:
            self.boxed[run.id] = run

    def note_after(self, run: Run) -> None:
        for run_id, _ in run.after:
            self.dependents.setdefault(run_id, []).append(run)

    def note_request(self, run: Run) -> None:
        if run.is_request or run.inside:
            found = self.commands.setdefault(run.inside or run.id, {})
            found |= {run.id: run} if run.inside else {}

    def admit_if_due(self, run: Run) -> None:
        """Give it to the engine, unless it waits for others, or to be resumed; what is in a request never."""
        starters = [] if run.inside else self.gangs.starters(run)
        if starters and all(one.task == NOT_ADMITTED and self.views.is_due(one) for one in starters):
            self.admit(starters)

    def admit(self, runs: Sequence[Run]) -> None:
        """From now on the engine orders it, or a gang."""
        graph, first = Graph(), runs[0]
        for run in runs:
            own = {"priority": run.priority, "flavors": self.flavors.places(run), "may_restart": run.requeue}
            own |= {"only_on": self.asides.place(run, self.now)}
            options = msgspec.structs.replace(gang_options(run), **own)
            if known := self.flavors.estimates(run):
                graph.phase_flavor_s[graph.n_phases] = {name: p50 for name, (p50, _) in known.items()}
            phases = ((GPU if run.gpus else CPU, run.shape, run.expected_s or run.for_s),)
            run.task = len(self.engine.state.task_ids) + graph.n_tasks
            graph.add_task(f"{run.id} ({run.name})", phases=phases, name=run.name, options=options)
            self.by_task[run.task] = run
            turns.admitted(self.touch(run), self.now)
        due = [run.submitted_at + run.deadline_s - self.now for run in runs if run.deadline_s is not None]
        deadline_s = max(0.0, min(due)) if due else None
        self.handle(m.WorkloadSubmitted(first.workload, first.name, first.user, first.queue, deadline_s))
        self.handle(m.TasksAdded(first.workload, graph))
        self.tell_estimates(runs)
        if first.lease is None and (never := self.engine.why_never(first.task)) is not None:
            self.abort(first, never.text, REFUSED)

    def tell_estimates(self, runs: Iterable[Run]) -> None:
        if (estimates := self.flavors.told(runs)) is not None:
            self.handle(estimates)

    @property
    def has_several(self) -> bool:
        """Whether a host has ever joined."""
        return self.flavors.is_apart

    def readmit(self, run: Run) -> None:
        """Give it, and its gang, to the engine anew: in the queue as it is now, behind those of its priority. None of
        them holds anything."""
        self._withdraw(run)
        self.admit_if_due(run)

    def rehost(self, runs: Sequence[Run], hosts: tuple[str, ...]) -> None:
        """A gang, which waits, is from now on for these hosts, one each; it is given to the engine anew."""
        self._withdraw(runs[0])
        for run, host in zip(runs, hosts, strict=True):
            assert run.gang is not None
            run.host, run.gang = host, msgspec.structs.replace(run.gang, hosts=hosts)
        self.admit_if_due(runs[0])

    def _withdraw(self, run: Run) -> None:
        """The engine knows it, and its gang, no more."""
        self.handle(m.AbortRequested("workload", run.workload, run.user, "changed"))
        for one in self.gangs.members(run):
            del self.by_task[one.task]
            one.task, one.changes = NOT_ADMITTED, one.changes + 1
            self.dirty[one.id] = one

    def handle(self, event: m.Event) -> None:
        if self._spanning is None:
            self._take(event)
        else:
            self._spanning[0].handle(self._spanning[1], event)

    def _take(self, event: m.Event) -> None:
        is_outer, self._is_taking = not self._is_taking, True
        try:
            self._apply(event)
            while is_outer and self._granted:  # only here: what one event grants is looked at when all of it is known
                run = self._granted.pop(0)
                if run.lease is not None and not run.is_claimed:
                    self._check_granted(run)
        finally:
            self._is_taking = not is_outer

    def _apply(self, event: m.Event) -> None:
        misplaced: list[Run] = []
        for decision in self.barrier.handle(event, self.now):
            if isinstance(decision, m.Grant):
                run = self.touch(self.by_task[decision.task])
                run.lease = HeldLease(decision.id, decision.phase, decision.attempt, decision.devices, self.now)
                run.waited_s = turns.waited_s(run, self.now, self.engine.state.ready_at[decision.phase])
                self._granted.append(run)
                if decision.node != self.views.name_of(run.host):
                    misplaced.append(run)
            elif isinstance(decision, m.Stop):
                self._stop(self.by_task[decision.task], decision)
        for run in misplaced:  # only now: with one of a gang the others, granted by the same event, are taken back
            if run.lease is not None:
                self.take_back(run, run.lease, "it is of another host")
                self.readmit(run)

    def _check_granted(self, run: Run) -> None:
        """What it has may be kept for others: then it waits, with its gang, until it may have it."""
        window = self.reserve.keeps_out(self.gangs.members(run))
        if window is None or run.lease is None:
            return
        self.take_back(run, run.lease, "kept for others")
        self._withdraw(run)
        for one in self.gangs.members(run):
            self.kept[one.id] = window
            self.touch(one)

    def _stop(self, run: Run, decision: m.Stop) -> None:
        if not run.is_open or run.lease is None:
            return
        if decision.requeue and run.gang and not run.is_claimed:  # with it, so that it is not kept by one of a gang
            self.take_back(run, run.lease, decision.reason)
            return
        if decision.requeue and (run.stop or not run.requeue):
            return  # it ends anyway; or it was begun by a server that knew no eviction, and goes on
        self.touch(run).stop = decision.reason
        run.is_evicted = decision.requeue
        if run.is_evicted:
            self.boxed.pop(run.id, None)
        run.grace_s = run.grace_s or decision.grace_s

    def begin(self, run: Run, lease: HeldLease) -> None:
        """From now on its lease is used."""
        run.lease, run.started_at = msgspec.structs.replace(lease, claimed_at=self.now), self.now
        run.flavor = self.flavors.held(run, lease.devices)
        self.touch(run)
        self.note_box(run)
        if not run.inside:
            self.handle(m.PhaseStarted(lease.phase, lease.attempt))

    def abort(self, run: Run, why: str, outcome: str) -> None:
        """What waits ends now; what was granted and not started too; what runs is told to stop."""
        run.why = why
        if run.task != NOT_ADMITTED:
            what = f"was {why}" if why.startswith("aborted ") else f"has to end: {why}"
            self._end_task(run, m.AbortRequested("workload", run.workload, run.user, why), what)
        if run.is_claimed:
            self.touch(run).stop = why
            run.is_evicted = False
            self.boxed.pop(run.id, None)
            self._end_gang(run, "aborted")
            return
        if run.lease is not None and run.task != NOT_ADMITTED:
            self.handle(m.PhaseEnded(run.lease.phase, run.lease.attempt, "aborted"))
        self.close(run, outcome, None)

    def finish(self, run: Run, outcome: str, exit_code: int | None) -> None:
        """The end of a lease that was claimed."""
        lease, state, was_evicted = run.lease, self.engine.state, run.is_evicted
        assert lease is not None
        run.lost_token = lease.token if outcome == "lost" else 0
        if run.is_time_up and outcome != "lost":
            run.why, outcome = run.stop, "succeeded"
        if run.task in state.recalled and outcome != "succeeded":  # it has ended before it was stopped for another
            self.handle(m.AbortRequested("workload", run.workload, run.user, "it has ended by itself"))
        if not run.inside:
            became = m.PhaseEnded(lease.phase, lease.attempt, "succeeded" if outcome == "succeeded" else "failed")
            self._end_task(run, became, "was lost" if outcome == "lost" else f"ended with exit code {exit_code}")
        over = state.over_limit.get(run.task)
        if over is not None and outcome != "lost":
            run.why, outcome = over.text, "succeeded" if over.then == END else "failed"
        elif run.stop and not run.is_time_up and not was_evicted and outcome != "lost":
            run.why, outcome = run.why or run.stop, "aborted"
        # by its end another of its gang may have got what is kept for others: then the engine knows none of them now
        assert run.inside or run.task == NOT_ADMITTED or state.status[state.cursor[run.task]] in ENDED
        self.close(run, outcome, exit_code)
        if self.flavors.learned.see(run) and state.flavors:
            self.tell_estimates([one for one in self.by_task.values() if one.is_open and key_of(one) == key_of(run)])

    def found_out(self, run: Run, outcome: str, exit_code: int | None) -> None:
        """How one that was lost has ended. What has come of its loss stays: those that waited for its success, or were
        of its gang, have ended, and what it held is others'."""
        run.outcome, run.exit_code = "succeeded" if run.is_time_up else outcome, exit_code
        run.why, run.lost_token = TOLD_LATE, 0
        self.touch(run)

    def requeue(self, run: Run, *, is_aside: bool = False) -> None:
        """It was evicted, and no process of it is left, or (is_aside) all of them are put aside: it waits again, for a
        new lease, or for its request's."""
        lease = run.lease
        assert lease is not None
        self.asides.left(run, self.now, is_aside=is_aside)
        self.asides.tell([run], self.now, self.handle)
        run.keep_attempt(self.now)
        run.lease, run.started_at, run.named = None, None, ()
        run.stop, run.grace_s, run.is_evicted, run.is_lost, run.is_warned = "", 0.0, False, False, False
        turns.again(self.touch(run), self.now)
        run.evictions += 1
        self.gone.pop(run.id, None)
        self.views.forget(run)
        if not run.inside:
            self.handle(m.PhaseEnded(lease.phase, lease.attempt, "preempted"))

    def _end_task(self, run: Run, event: m.Event, what: str) -> None:
        """The engine hears of it; those of its gang whom it then tells to stop are told what became of this one."""
        before = [(one, one.stop) for one in self.gangs.members(run) if one is not run]
        self.handle(event)
        for other, stop in before:
            if other.stop not in ("", stop) and not other.is_evicted:
                self.touch(other).stop = f"its gang has ended: run {run.id} ({run.name}) {what}"

    def _end_gang(self, run: Run, outcome: str) -> None:
        """One of a gang does not succeed: the others never start, and the engine has told those that run to end."""
        if run.gang is None or not run.gang.is_whole or outcome == "succeeded":
            return
        for other in self.gangs.members(run):
            if not other.is_open or other.is_claimed:
                continue
            if other.lease is not None:
                self.handle(m.PhaseEnded(other.lease.phase, other.lease.attempt, "aborted"))
            other.why = run.why if outcome == REFUSED else f"run {run.id} ({run.name}) of its gang has ended: {outcome}"
            self.close(other, outcome if outcome == REFUSED else "aborted", None)

    def close(self, run: Run, outcome: str, exit_code: int | None) -> None:
        run.outcome, run.exit_code, run.ended_at = outcome, exit_code, self.now
        run.lease, run.named, run.is_lost, run.stop, run.is_evicted = None, (), False, "", False
        if self.views.open.pop(run.id, None):
            self.open_of[run.user] -= 1
        self.heard.pop(run.id, None)
        self.gone.pop(run.id, None)
        self.boxed.pop(run.id, None)
        self.kept.pop(run.id, None)
        self.asides.over(run)
        self.views.forget(run)
        if run.inside:
            self.commands[run.inside].pop(run.id, None)
            self.active[run.inside] = self.now
        self.touch(run)
        self.ended.append(run)
        self._closed.append(run)
        if len(self._closed) == 1:  # else it is under way, further out
            while self._closed:
                self._tell_dependents(self._closed[0])
                self._closed.popleft()
        self.gangs.drop(run)
        self._end_gang(run, outcome)

    def _tell_dependents(self, ended: Run) -> None:
        """What waits for it may start, or never will."""
        for run in self.dependents.pop(ended.id, ()):
            if not run.is_open:
                continue
            when = dict(run.after)[ended.id]
            if not ended.satisfies(when):
                run.why = f"run {ended.id} ({ended.name}), for which it waited, has ended: {ended.outcome}"
                self.close(run, "skipped" if when == "failed" else "aborted", None)
                continue
            self.touch(run).after = tuple([one for one in run.after if one[0] != ended.id])
            self.admit_if_due(run)

    def may_take_back(self, run: Run) -> bool:
        """Whether its grant may be given to others when it is not claimed: not while others of its gang run."""
        return not any(one.is_claimed for one in self.gangs.members(run))

    def take_back(self, run: Run, lease: HeldLease, why: str = NOT_CLAIMED) -> None:
        """A grant that its client has not claimed in time: the run waits again."""
        self.touch(run).lease, run.waited_s = None, None
        if why == NOT_CLAIMED:
            turns.again(run, self.now)
        if not run.inside:
            self.handle(m.DecisionRejected(lease.token, why))

    def add_node(self, drained: tuple[int, ...]) -> None:
        if (changed := self.flavors.changed()) is not None:
            self.handle(changed)
        self.handle(own_node(self.engine, self.views, self.flavors, self.offer, drained))
        self.asides.tell(self.asides.waiting(), self.now, self.handle)

    def add_host(self, host: JoinedHost, drained: tuple[int, ...]) -> None:
        """One that has joined, or has changed."""
        if (changed := self.flavors.changed()) is not None:
            self.handle(changed)
        self.handle(joined_node(self.hosts, self.flavors, host, drained))
        self.asides.tell(self.asides.waiting(), self.now, self.handle)

    @property
    def drained(self) -> tuple[int, ...]:
        return self.drained_of(OWN)

    def drained_of(self, host: str) -> tuple[int, ...]:
        node = self.views.node_of(host)
        return node.drained if node else ()

    def touch(self, run: Run) -> Run:
        """Its client is told, and it is written."""
        run.version += 1
        self.dirty[run.id] = run
        return run

    def log(self, who: Principal, verb: str, run: Run, text: str = "") -> None:
        self.lines.append(LogLine(self.now, who, verb, run.id, run.team, text))

    def view(self, who: Principal, run: Run, with_reason: bool = True) -> c.RunView:
        return self.views.view(run, with_reason, sees=who.sees)
