"""What requests, time and processes mean to a site: all of the server but clock, files, network and processes.

    submit ─► waiting ─ grant ─► granted ─ claim ─► running ─ end ─► ended
                 ▲                  │                 │
                 └── not claimed ───┘                 └─ supervisor gone: its processes are looked for; while there
                                                         is one the lease stays, and its devices are given to nobody

The writer calls it from one thread: `at(now)`, then requests; then it commits `take()`; only then it tells the answers.
A lease that is not claimed was used by nobody and may be taken back. One that is claimed ends by `end`, or when its
supervisor and all its processes were twice seen to be gone: never because time has passed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from egs_core.client import messages as c
from egs_core.client.processes import lease_mark
from egs_core.driver.barrier import CommitBarrier
from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.explain import describe_lack
from egs_core.engine.rules.fit import fits_ever
from egs_core.engine.specs import END, QueueSpec
from egs_core.engine.state.lifecycle import ENDED
from egs_core.errors import listed
from egs_core.graph.columns import CPU, GPU, Graph, TaskOptions
from egs_core.server.runs import NOT_ADMITTED, HeldLease, Known, Offer, Principal, Refusal, Run, SiteFacts
from egs_core.server.views import Views

SILENT_S = 15.0  # after so long it counts as silent
CLAIM_S = 15.0  # in so long a grant has to be claimed
MOST_OPEN = 10_000
REFUSED = "refused"
CONFIG = EngineConfig(preload=False, record=True, grace_s=10.0)


class Batch(msgspec.Struct):
    """What one commit makes durable. entries: of the engine's journal; runs: as they are now."""

    entries: list[bytes]
    runs: list[Run]


class Watch(msgspec.Struct, frozen=True):
    """Processes to look for. token: of the run's lease, 0 for none; named, mark: of the processes that use it."""

    run: str
    token: int
    supervisor: Known
    is_claimed: bool
    named: tuple[Known, ...]
    mark: str


class Seen(msgspec.Struct, frozen=True):
    """What was found for a `Watch`. living: numbers of the lease's processes beside its supervisor."""

    run: str
    token: int
    has_supervisor: bool
    living: tuple[int, ...] = ()


class SiteLogic:
    """See the module. engine: new or recovered; runs: all that are known. Moments are seconds of the site's clock."""

    def __init__(self, facts: SiteFacts, engine: Engine, runs: Iterable[Run] = ()) -> None:
        self.facts = facts
        self._barrier = CommitBarrier(engine)
        self._engine = engine
        self._now = engine.state.now
        self._queues: tuple[str, ...] = ()
        self.runs = {run.id: run for run in runs}
        self._by_key = {(run.user, run.key): run for run in self.runs.values()}
        self._by_task = {run.task: run for run in self.runs.values() if run.task != NOT_ADMITTED}
        self.views = Views(facts, engine, self.runs, self._by_task)
        self._last = max((int(run_id) for run_id in self.runs), default=0)
        self._closed: deque[Run] = deque()  # ended, and those that wait for them have not been told
        self._dependents: dict[str, list[Run]] = {}
        for run in self.open_runs():
            self._note_after(run)
        self._heard = dict.fromkeys((run.id for run in self.open_runs()), self._now)  # a full time to live each
        self._gone: dict[str, int] = {}  # run -> lease with which its supervisor was seen to be gone, once
        self._dirty: dict[str, Run] = {}

    # --- the writer's side ---

    @property
    def now(self) -> float:
        return self._now

    def open_runs(self) -> list[Run]:
        return self.views.open_runs()

    def at(self, now: float) -> None:
        """It is now so late; what is due is done. Time never goes back."""
        self._now = max(self._now, now)
        due = self._engine.next_wakeup()
        if due is not None and due <= self._now:
            self._handle(m.Tick())

    def next_wakeup(self) -> float | None:
        """When `at` has to be called if nothing happens before; None: never."""
        return self._engine.next_wakeup()

    def take(self) -> Batch:
        """What has changed since the last call."""
        batch = Batch(self._barrier.take(), list(self._dirty.values()))
        self._dirty = {}
        return batch

    def snapshot(self) -> bytes:
        """The engine's state: with the runs, all that is to be kept."""
        return self._engine.snapshot()

    def validate(self) -> None:
        """Raise AssertionError when runs and engine do not agree, or an invariant of the engine does not hold."""
        self._engine.validate_state()
        state = self._engine.state
        leases = {lease.decision: phase for phase, lease in state.leases.items()}
        held = {run.lease.token: run.lease.phase for run in self.open_runs() if run.lease}
        assert leases == held, f"the engine's leases {leases}, those of runs {held}"
        for run in self._by_task.values():
            assert run.is_open != (state.status[state.cursor[run.task]] in ENDED), f"run {run.id} is {run.state}"

    def offer(self, offer: Offer, queues: tuple[QueueSpec, ...] = ()) -> None:
        """What the host has, and the queues, at the start of a server: before anything else is asked."""
        self.views.devices = offer.devices
        self._queues = tuple([queue.name for queue in queues])
        name = next((node.name for node in self._engine.state.nodes), offer.host)  # hosts may be renamed
        self._handle(m.NodeAdded(name, offer.cpus, len(offer.devices), offer.memory_bytes))
        if queues or self._engine.state.queues:
            self._handle(m.QueuesChanged(queues))

    # --- what clients ask ---

    def submit(self, who: Principal, ask: c.RunRequest) -> c.RunView:
        """A new run; a known key is answered with its run. Raises Refusal for what can never start here."""
        known = self._by_key.get((who.name, ask.key))
        if known is not None:
            return self.views.view(known, with_reason=True)
        if len(self.open_runs()) >= MOST_OPEN:
            raise Refusal(429, f"{MOST_OPEN} runs are open: end some, or wait")
        if self._queues and ask.queue not in self._queues:
            raise Refusal(422, f"queue: there is no queue {ask.queue!r}; there are {listed(self._queues)}")
        run = Run.of(ask, self._last + 1, who.name, self._now)
        if not any(fits_ever(node, run.shape) for node in self._engine.state.nodes if node.alive):
            raise Refusal(422, describe_lack(self._engine.state.nodes, run.shape))
        run.after = self._open_after(ask)
        self._last += 1
        self.runs[run.id] = self._by_key[run.user, run.key] = run
        self._heard[run.id] = self._now
        self._dirty[run.id] = run
        if run.after:
            self._note_after(run)
        else:
            self._admit(run)
        if run.outcome == REFUSED:
            raise Refusal(422, run.why)
        return self.views.view(run, with_reason=True)

    def _open_after(self, ask: c.RunRequest) -> tuple[tuple[str, str], ...]:
        """What it still has to wait for. Raises Refusal for what can never be."""
        left = []
        for one in ask.after:
            found = self.runs.get(one.run)
            if found is None:
                raise Refusal(422, f"after: there is no run {one.run!r}: `egs ps` lists those that are open")
            if found.is_open:
                left.append((one.run, one.when))
            elif not found.satisfies(one.when):
                raise Refusal(422, f"after: run {one.run} has ended: {found.outcome}")
        return tuple(left)

    def _note_after(self, run: Run) -> None:
        for run_id, _ in run.after:
            self._dependents.setdefault(run_id, []).append(run)

    def _admit(self, run: Run) -> None:
        """From now on the engine orders it."""
        graph = Graph()
        options = TaskOptions(priority=run.priority, max_runtime_s=run.for_s, on_limit=END if run.for_s else "")
        phases = ((GPU if run.gpus else CPU, run.shape, run.expected_s or run.for_s),)
        graph.add_task(f"{run.id} ({run.name})", phases=phases, name=run.name, options=options)
        run.task = len(self._engine.state.task_ids)
        self._by_task[run.task] = run
        self._touch(run)
        deadline_s = None if run.deadline_s is None else max(0.0, run.submitted_at + run.deadline_s - self._now)
        self._handle(m.WorkloadSubmitted(run.id, run.name, run.user, run.queue, deadline_s))
        self._handle(m.TasksAdded(run.id, graph))
        reason = self._engine.explain(run.task)
        if run.lease is None and reason.kind == "infeasible":
            self._abort(run, reason.text, REFUSED)

    def beat(self, who: Principal, run_id: str, ask: c.Beat) -> c.RunView:
        """A sign of life of a run's supervisor."""
        run = self._own(who, run_id)
        if run.is_open:
            self._heard[run.id] = self._now
            self._gone.pop(run.id, None)
            if run.is_lost:
                self._touch(run).is_lost = False
            named = tuple([Known(one.pid, one.started) for one in ask.processes])
            if run.is_claimed and run.lease is not None and run.lease.token == ask.token and named != run.named:
                run.named = named
                self._dirty[run.id] = run  # its client knows: no new version
        return self.views.view(run, with_reason=ask.seen < 0)

    def claim(self, who: Principal, run_id: str, ask: c.Claim) -> c.RunView:
        """The command is about to start with this lease. Raises Refusal (409) where it holds it no longer: then nothing
        may be started."""
        run = self._own(who, run_id)
        lease = run.lease
        if not run.is_open or lease is None or lease.token != ask.token or (run.stop and lease.claimed_at is None):
            raise Refusal(409, f"run {run.id} does not hold lease {ask.token} any more")
        self._heard[run.id] = self._now
        if lease.claimed_at is None:
            run.lease = msgspec.structs.replace(lease, claimed_at=self._now)
            run.started_at = self._now
            self._touch(run)
            self._handle(m.PhaseStarted(lease.phase, lease.attempt))
        return self.views.view(run)

    def end(self, who: Principal, run_id: str, ask: c.End) -> c.RunView:
        """No process of the lease is left: the caller has made sure. Raises Refusal (409) for another lease."""
        run = self._own(who, run_id)
        if not run.is_open:
            return self.views.view(run)
        lease = run.lease
        if lease is None or lease.token != ask.token or lease.claimed_at is None:
            raise Refusal(409, f"run {run.id} does not run with lease {ask.token}")
        self._finish(run, ask.outcome, ask.exit_code)
        return self.views.view(run)

    def control(self, who: Principal, run_id: str, verb: str, ask: c.Control) -> c.RunView:
        """abort, pause or resume. Raises Refusal (409) for a run that has ended."""
        run = self._own(who, run_id)
        if not run.is_open:
            raise Refusal(409, f"run {run.id} has ended: {run.outcome}")
        if verb == "abort":
            run.grace_s = ask.grace_s
            self._abort(run, f"aborted by {who.name}" + (f": {ask.reason}" if ask.reason else ""), "aborted")
            return self.views.view(run, with_reason=True)
        if run.task == NOT_ADMITTED:
            raise Refusal(409, f"run {run.id} waits for others: it can only be aborted")
        kind = m.PauseRequested if verb == "pause" else m.ResumeRequested
        self._touch(run).is_paused = verb == "pause"
        self._handle(kind("workload", run.id, who.name, ask.reason))
        return self.views.view(run, with_reason=True)

    # --- questions ---

    def view(self, run_id: str) -> c.RunView:
        return self.views.view(self._known(run_id), with_reason=True)

    def check(self, who: Principal, ask: c.RunRequest) -> c.RunView:
        """What `submit` would answer now. Nothing is asked for: the request meets a copy of the site."""
        copies = [msgspec.structs.replace(run) for run in self.runs.values()]
        copy = SiteLogic(self.facts, Engine.restore(self.snapshot(), CONFIG), copies)
        copy.views.devices, copy._queues = self.views.devices, self._queues
        return copy.submit(who, ask)

    # --- processes ---

    def watched(self) -> list[Watch]:
        """Whose processes to look for now."""
        return [
            Watch(
                run.id,
                token := run.lease.token if run.lease else 0,
                run.supervisor,
                run.is_claimed,
                run.named,
                lease_mark(run.id, token, self.facts.id),
            )
            for run in self.open_runs()
        ]

    def watch(self, run_id: str) -> Watch | None:
        """The same for one run; None where it holds no lease."""
        return next((one for one in self.watched() if one.run == run_id and one.token), None)

    def seen(self, found: Sequence[Seen]) -> None:
        """What was found; outdated answers, for another lease, change nothing."""
        for one in found:
            run = self.runs.get(one.run)
            if run is not None and run.is_open and one.token == (run.lease.token if run.lease else 0):
                self._look(run, one)

    def _look(self, run: Run, one: Seen) -> None:
        is_silent = self._now - self._heard[run.id] > SILENT_S
        if one.has_supervisor:
            self._gone.pop(run.id, None)
            if run.is_claimed:
                self._mark_lost(run, is_silent, one.living)
            elif run.lease is not None and is_silent and self._now - run.lease.granted_at > CLAIM_S:
                self._take_back(run, run.lease)
            return
        if run.is_claimed and one.living:
            self._mark_lost(run, True, one.living)
        elif self._gone.get(run.id) != one.token:
            self._gone[run.id] = one.token  # a process that was just being started would be there the next time
        elif run.is_claimed:
            run.why = "its supervisor and all its processes are gone, and nobody told how it ended"
            self._finish(run, "lost", None)
        else:
            self._abort(run, "its supervisor is gone", "lost")

    def _mark_lost(self, run: Run, is_lost: bool, living: tuple[int, ...]) -> None:
        self.views.living[run.id] = living
        if run.is_lost != is_lost:
            self._touch(run).is_lost = is_lost

    def _take_back(self, run: Run, lease: HeldLease) -> None:
        """A grant that its client has not claimed in time: the run waits again."""
        self._touch(run).lease = None
        self._handle(m.DecisionRejected(lease.token, "not claimed"))

    # --- the engine ---

    def _handle(self, event: m.Event) -> None:
        for decision in self._barrier.handle(event, self._now):
            if isinstance(decision, m.Grant):
                run = self._touch(self._by_task[decision.task])
                run.lease = HeldLease(decision.id, decision.phase, decision.attempt, decision.devices, self._now)
            elif isinstance(decision, m.Stop):
                self._stop(self._by_task[decision.task], decision)

    def _stop(self, run: Run, decision: m.Stop) -> None:
        if not run.is_open or run.lease is None:
            return
        self._touch(run).stop = decision.reason
        run.grace_s = run.grace_s or decision.grace_s

    def _abort(self, run: Run, why: str, outcome: str) -> None:
        """What waits ends now; what was granted and not started too; what runs is told to stop."""
        run.why = why
        if run.task == NOT_ADMITTED:
            self._close(run, outcome, None)
            return
        self._handle(m.AbortRequested("workload", run.id, run.user, why))
        if run.is_claimed:
            self._touch(run).stop = why
            return
        if run.lease is not None:
            self._handle(m.PhaseEnded(run.lease.phase, run.lease.attempt, "aborted"))
        self._close(run, outcome, None)

    def _finish(self, run: Run, outcome: str, exit_code: int | None) -> None:
        """The end of a lease that was claimed."""
        lease, state = run.lease, self._engine.state
        assert lease is not None
        self._handle(m.PhaseEnded(lease.phase, lease.attempt, "succeeded" if outcome == "succeeded" else "failed"))
        over = state.over_limit.get(run.task)
        if over is not None and outcome != "lost":
            run.why, outcome = over.text, "succeeded" if over.then == END else "failed"
        elif run.stop and outcome != "lost":
            outcome = "aborted"
        assert state.status[state.cursor[run.task]] in ENDED
        self._close(run, outcome, exit_code)

    def _close(self, run: Run, outcome: str, exit_code: int | None) -> None:
        run.outcome, run.exit_code, run.ended_at = outcome, exit_code, self._now
        run.lease, run.named, run.is_lost, run.stop = None, (), False, ""
        self._heard.pop(run.id, None)
        self._gone.pop(run.id, None)
        self.views.living.pop(run.id, None)
        self._touch(run)
        self._closed.append(run)
        if len(self._closed) == 1:  # else it is under way, further out
            while self._closed:
                self._tell_dependents(self._closed[0])
                self._closed.popleft()

    def _tell_dependents(self, ended: Run) -> None:
        """What waits for it may start, or never will."""
        for run in self._dependents.pop(ended.id, ()):
            if not run.is_open:
                continue
            when = dict(run.after)[ended.id]
            if not ended.satisfies(when):
                run.why = f"run {ended.id} ({ended.name}), for which it waited, has ended: {ended.outcome}"
                self._close(run, "skipped" if when == "failed" else "aborted", None)
                continue
            self._touch(run).after = tuple([one for one in run.after if one[0] != ended.id])
            if not run.after:
                self._admit(run)

    # --- what several need ---

    def _touch(self, run: Run) -> Run:
        """Its client is told, and it is written."""
        run.version += 1
        self._dirty[run.id] = run
        return run

    def _known(self, run_id: str) -> Run:
        run = self.runs.get(run_id)
        if run is None:
            raise Refusal(404, f"there is no run {run_id!r}: `egs ps` lists those that are open")
        return run

    def _own(self, who: Principal, run_id: str) -> Run:
        run = self._known(run_id)
        if run.user != who.name and not who.is_operator:
            raise Refusal(403, f"run {run_id} is of {run.user}: only that user and operators may change it")
        return run
