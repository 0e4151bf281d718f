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

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
from egs_core.engine.state.nodes import UNTRACKED
from egs_core.errors import listed
from egs_core.graph.columns import CPU, GPU, Graph, TaskOptions
from egs_core.server.principals import OPERATING, SUBMITTING, Principal, queue_for
from egs_core.server.runs import NOT_ADMITTED, WHOLE_DEVICE, HeldLease, Known, Offer, Refusal, Run, SiteFacts
from egs_core.server.views import Views

SILENT_S = 15.0  # after so long it counts as silent
CLAIM_S = 15.0  # in so long a grant has to be claimed
MOST_OPEN, MOST_OPEN_EACH = 10_000, 2_000  # of a site; of one principal
MOST_ENDED, KEEP_S = 10_000, 30 * 86400.0  # what is kept of runs that have ended
CHANGES_WHILE_RUNNING = ("for_s", "expected_s")
REFUSED = "refused"
CONFIG = EngineConfig(preload=False, record=True, grace_s=10.0, packing="best_fit")
"""best_fit: parts of GPUs fill one that is in use before they break a free one."""


class LogLine(msgspec.Struct, frozen=True):
    """For the log of changes: who did what to which run. at: of the site's clock."""

    at: float
    who: Principal
    verb: str
    run: str
    team: str = ""
    text: str = ""


class Batch(msgspec.Struct):
    """What one commit makes durable. entries: of the engine's journal; runs: as they are now; forgotten: ids of those
    that are kept no longer; log: who changed what."""

    entries: list[bytes]
    runs: list[Run]
    forgotten: list[str] = []
    log: list[LogLine] = []


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
        self._offer = Offer("", (), 0.0, 0)
        self._queues: tuple[str, ...] = ()
        self._team_of_queue: Mapping[str, str] = {}
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
        ended = [run for run in self.runs.values() if not run.is_open]
        self._ended = deque(sorted(ended, key=lambda run: (run.ended_at or 0.0, int(run.id))))
        self._forgotten: list[str] = []
        self._boxed: dict[str, Run] = {}  # those that will have to stop because their time is up
        for run in self.open_runs():
            self._note_box(run)
        self._lines: list[LogLine] = []
        self._open_of = Counter(run.user for run in self.open_runs())

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
        for run in list(self._boxed.values()):
            if (run.time_is_up_at or 0.0) <= self._now:
                del self._boxed[run.id]
                self._touch(run).is_time_up = True
                run.stop = f"over its limit of {run.for_s:g} s"
                run.grace_s = run.grace_s or CONFIG.grace_s
        self._forget()

    def _forget(self) -> None:
        """The runs that ended first, beyond what is kept. The latest number stays, so that none is given again."""
        oldest = self._now - KEEP_S
        while self._ended and (len(self._ended) > MOST_ENDED or (self._ended[0].ended_at or 0.0) < oldest):
            if self._ended[0].id == str(self._last):
                return
            run = self._ended.popleft()
            del self.runs[run.id], self._by_key[run.user, run.key]
            self._by_task.pop(run.task, None)
            self._dirty.pop(run.id, None)
            self._forgotten.append(run.id)

    def next_wakeup(self) -> float | None:
        """When `at` has to be called if nothing happens before; None: never."""
        due = [self._engine.next_wakeup(), *(run.time_is_up_at for run in self._boxed.values())]
        return min((at for at in due if at is not None), default=None)

    def take(self) -> Batch:
        """What has changed since the last call."""
        batch = Batch(self._barrier.take(), list(self._dirty.values()), self._forgotten, self._lines)
        self._dirty, self._forgotten, self._lines = {}, [], []
        return batch

    def snapshot(self) -> bytes:
        """The engine's state: with the runs, all that is to be kept."""
        return self._engine.snapshot()

    def validate(self) -> None:
        """Raise AssertionError when runs and engine do not agree, or an invariant of the engine does not hold."""
        self._engine.validate_state()
        state = self._engine.state
        assert list(self.views.open) == [run.id for run in self.runs.values() if run.is_open]
        leases = {lease.decision: phase for phase, lease in state.leases.items()}
        held = {run.lease.token: run.lease.phase for run in self.open_runs() if run.lease}
        assert leases == held, f"the engine's leases {leases}, those of runs {held}"
        for run in self._by_task.values():
            assert run.is_open != (state.status[state.cursor[run.task]] in ENDED), f"run {run.id} is {run.state}"

    def offer(
        self, offer: Offer, queues: tuple[QueueSpec, ...] = (), team_of_queue: Mapping[str, str] | None = None
    ) -> None:
        """What the host has, the queues and whose they are, at the start of a server: before anything else is asked."""
        self.views.devices = offer.devices
        self._team_of_queue = team_of_queue or {}
        self._queues = tuple([queue.name for queue in queues])
        self._offer = offer
        self.views.occupied = dict.fromkeys(range(len(offer.devices)), ()) if offer.is_watched else {}
        self._add_node(() if offer.is_new else self._drained)
        if queues or self._engine.state.queues:
            self._handle(m.QueuesChanged(queues))

    def _add_node(self, drained: tuple[int, ...]) -> None:
        offer = self._offer
        name = next((node.name for node in self._engine.state.nodes), offer.host)  # hosts may be renamed
        size = offer.cpus, len(offer.devices), offer.memory_bytes, offer.gpu_memory_bytes
        self._handle(m.NodeAdded(name, *size, drained=drained, closed=tuple(sorted(self.views.occupied))))

    @property
    def _drained(self) -> tuple[int, ...]:
        return next((node.drained for node in self._engine.state.nodes), ())

    def occupied(self, found: Mapping[int, tuple[int, ...]]) -> None:
        """Which devices are used by processes that hold no lease of theirs, and by which: they are given to nobody."""
        before, self.views.occupied = self.views.occupied, dict(found)
        if before.keys() != found.keys():
            self._add_node(self._drained)

    def holders(self) -> dict[str, list[Watch]]:
        """Of each device, by its id, the leases that it is held by."""
        found: dict[str, list[Watch]] = {device.id: [] for device in self.views.devices}
        for run in self.open_runs():
            for number in run.lease.devices if run.lease else ():
                found[self.views.devices[number].id].append(self._watch(run))
        return found

    # --- what clients ask ---

    def submit(self, who: Principal, ask: c.RunRequest) -> c.RunView:
        """A new run; a known key is answered with its run. Raises Refusal for what can never start here."""
        who.need(SUBMITTING, "to submit")
        known = self._by_key.get((who.name, ask.key))
        if known is not None:
            return self._view(who, known)
        self._check_open(who)
        run = Run.of(ask, self._last + 1, who.name, self._now)
        run.queue = self._queue_for(who, ask.queue)
        run.team = self._team_of_queue.get(run.queue, "") or who.team
        self._take_part(run)
        self._check_fits(run)
        run.after = self._open_after(who, ask)
        self._last += 1
        self.runs[run.id] = self._by_key[run.user, run.key] = self.views.open[run.id] = run
        self._open_of[run.user] += 1
        self._heard[run.id] = self._now
        self._dirty[run.id] = run
        self._log(who, "submit", run)
        if run.after:
            self._note_after(run)
        self._admit_if_due(run)
        if run.outcome == REFUSED:
            raise Refusal(422, self.views.told_text(run.why, who.sees))
        return self._view(who, run)

    def _check_fits(self, run: Run) -> None:
        """Raises Refusal for what no empty host could run."""
        if not any(fits_ever(node, run.shape) for node in self._engine.state.nodes if node.alive):
            raise Refusal(422, describe_lack(self._engine.state.nodes, run.shape))

    def _take_part(self, run: Run) -> None:
        """Memory without GPUs asks for the part of one that has so much. Raises Refusal where it is not known."""
        if not run.gpu_memory_bytes:
            return
        nodes = self._engine.state.nodes
        most = max((node.gpu_memory_bytes for node in nodes if node.alive and node.gpus), default=UNTRACKED)
        if most == UNTRACKED:
            raise Refusal(422, "gpu_memory_bytes: there is no GPU here whose memory is known")
        if not run.gpus:
            part = -(-run.gpu_memory_bytes * WHOLE_DEVICE // most)
            run.gpus = min(part, WHOLE_DEVICE) / WHOLE_DEVICE  # what is more than one has fits nowhere: that is said

    def _check_open(self, who: Principal) -> None:
        """Raises Refusal (429) where too many runs are open."""
        if len(self.views.open) >= MOST_OPEN:
            raise Refusal(429, f"{MOST_OPEN} runs are open: end some, or wait")
        if who.role != "admin" and self._open_of[who.name] >= MOST_OPEN_EACH:
            raise Refusal(429, f"{MOST_OPEN_EACH} runs of {who.name} are open: end some, or wait")

    def _queue_for(self, who: Principal, asked: str) -> str:
        return queue_for(who, asked, self._queues, self._team_of_queue, "--queue")

    def _open_after(self, who: Principal, ask: c.RunRequest) -> tuple[tuple[str, str], ...]:
        """What it still has to wait for. Raises Refusal for what can never be."""
        left = []
        for one in ask.after:
            found = self.runs.get(one.run)
            if found is None or not who.sees(found):
                raise Refusal(422, f"after: there is no run {one.run!r}: `egs ps` lists those that are open")
            if found.is_open:
                left.append((one.run, one.when))
            elif not found.satisfies(one.when):
                raise Refusal(422, f"after: run {one.run} has ended: {found.outcome}")
        return tuple(left)

    def _note_box(self, run: Run) -> None:
        if run.is_claimed and run.for_s is not None and not run.stop:
            self._boxed[run.id] = run

    def _note_after(self, run: Run) -> None:
        for run_id, _ in run.after:
            self._dependents.setdefault(run_id, []).append(run)

    def _admit_if_due(self, run: Run) -> None:
        """Give it to the engine, unless it waits for others, or to be resumed."""
        is_kept_out = not run.gpus and self.views.is_drained  # what needs GPUs the engine holds back itself
        if run.task == NOT_ADMITTED and not run.after and not run.is_paused and not is_kept_out:
            self._admit(run)

    def _admit(self, run: Run) -> None:
        """From now on the engine orders it."""
        graph = Graph()
        options = TaskOptions(priority=run.priority)
        phases = ((GPU if run.gpus else CPU, run.shape, run.expected_s or run.for_s),)
        graph.add_task(f"{run.id} ({run.name})", phases=phases, name=run.name, options=options)
        run.task = len(self._engine.state.task_ids)
        self._by_task[run.task] = run
        self._touch(run)
        deadline_s = None if run.deadline_s is None else max(0.0, run.submitted_at + run.deadline_s - self._now)
        self._handle(m.WorkloadSubmitted(run.workload, run.name, run.user, run.queue, deadline_s))
        self._handle(m.TasksAdded(run.workload, graph))
        reason = self._engine.explain(run.task)
        if run.lease is None and reason.kind == "infeasible":
            self._abort(run, reason.text, REFUSED)

    def beat(self, who: Principal, run_id: str, ask: c.Beat) -> c.RunView:
        """A sign of life of a run's supervisor."""
        run = self._held(who, run_id)
        if run.is_open:
            self._heard[run.id] = self._now
            self._gone.pop(run.id, None)
            if run.is_lost:
                self._touch(run).is_lost = False
            named = tuple([Known(one.pid, one.started) for one in ask.processes])
            if run.is_claimed and run.lease is not None and run.lease.token == ask.token and named != run.named:
                run.named = named
                self._dirty[run.id] = run  # its client knows: no new version
        return self._view(who, run, with_reason=ask.seen < 0)

    def claim(self, who: Principal, run_id: str, ask: c.Claim) -> c.RunView:
        """The command is about to start with this lease. Raises Refusal (409) where it holds it no longer: then nothing
        may be started."""
        run = self._held(who, run_id)
        lease = run.lease
        if not run.is_open or lease is None or lease.token != ask.token or (run.stop and lease.claimed_at is None):
            raise Refusal(409, f"run {run.id} does not hold lease {ask.token} any more")
        self._heard[run.id] = self._now
        if lease.claimed_at is None:
            run.lease = msgspec.structs.replace(lease, claimed_at=self._now)
            run.started_at = self._now
            self._touch(run)
            self._note_box(run)
            self._log(who, "start", run)
            self._handle(m.PhaseStarted(lease.phase, lease.attempt))
        return self._view(who, run, with_reason=False)

    def end(self, who: Principal, run_id: str, ask: c.End) -> c.RunView:
        """No process of the lease is left: the caller has made sure. Raises Refusal (409) for another lease."""
        run = self._held(who, run_id)
        if not run.is_open:
            return self._view(who, run, with_reason=False)
        lease = run.lease
        if lease is None or lease.token != ask.token or lease.claimed_at is None:
            raise Refusal(409, f"run {run.id} does not run with lease {ask.token}")
        self._log(who, "end", run, f"{ask.outcome}, exit code {ask.exit_code}")
        self._finish(run, ask.outcome, ask.exit_code)
        return self._view(who, run, with_reason=False)

    def control(self, who: Principal, run_id: str, verb: str, ask: c.Control) -> c.RunView:
        """abort, release, pause or resume. Raises Refusal (409) for a run that has ended."""
        run = self._changeable(who, run_id)
        if not run.is_open:
            raise Refusal(409, f"run {run.id} has ended: {run.outcome}")
        if verb == "abort":
            run.grace_s = ask.grace_s
            self._log(who, verb, run, ask.reason)
            self._abort(run, f"aborted by {who.name}" + (f": {ask.reason}" if ask.reason else ""), "aborted")
            return self._view(who, run)
        if verb == "release":
            return self._release(who, run, ask)
        self._log(who, verb, run, ask.reason)
        kind = m.PauseRequested if verb == "pause" else m.ResumeRequested
        self._touch(run).is_paused = verb == "pause"
        if run.task == NOT_ADMITTED:
            self._admit_if_due(run)
        else:
            self._handle(kind("workload", run.workload, who.name, ask.reason))
        return self._view(who, run)

    def _release(self, who: Principal, run: Run, ask: c.Control) -> c.RunView:
        """It ends as when its time box is over: it has had what it asked for, and what waits for it may start."""
        if not run.is_claimed or run.stop:
            state = "is about to end" if run.stop else "has not started: `egs abort` takes it back"
            raise Refusal(409, f"run {run.id} {state}")
        self._log(who, "release", run, ask.reason)
        self._touch(run).is_time_up = True
        run.stop = f"released by {who.name}" + (f": {ask.reason}" if ask.reason else "")
        run.grace_s = ask.grace_s
        self._boxed.pop(run.id, None)
        return self._view(who, run)

    def update(self, who: Principal, run_id: str, ask: c.Change) -> c.RunView:
        """Other wishes of a run: it is given to the engine anew, behind those of its priority that wait. Raises Refusal
        for what it is too late for, and for what can never start; then all stays as it was."""
        run = self._changeable(who, run_id)
        wishes = {name: value for name, value in ask if value is not None}
        if not run.is_open:
            raise Refusal(409, f"run {run.id} has ended: {run.outcome}")
        if not wishes:
            raise Refusal(422, "nothing is to be changed: name what, as priority")
        if run.lease is not None and (not run.is_claimed or run.stop):
            raise Refusal(409, f"run {run.id} is about to {'end' if run.stop else 'start'}: try again")
        late = [name for name in wishes if name not in CHANGES_WHILE_RUNNING]
        if run.is_claimed and late:
            raise Refusal(409, f"run {run.id} has started: its {late[0]} cannot change, --for and --expect can")
        if "queue" in wishes:
            wishes["queue"] = self._queue_for(who, wishes["queue"])
            wishes["team"] = self._team_of_queue.get(wishes["queue"], "") or run.team
        self._copy()._change(run_id, wishes)
        self._log(who, "update", run, ", ".join(f"{name}={value}" for name, value in wishes.items()))
        self._change(run_id, wishes)
        return self._view(who, run)

    def _change(self, run_id: str, wishes: dict[str, Any]) -> None:
        run = self._touch(self.runs[run_id])
        if "deadline_s" in wishes:
            wishes = {**wishes, "deadline_s": self._now + wishes["deadline_s"] - run.submitted_at}
        if "gpu_memory_bytes" in wishes and "gpus" not in wishes and run.gpus < 1:
            run.gpus = 0  # the part that it was
        elif "gpus" in wishes and "gpu_memory_bytes" not in wishes and run.gpus % 1:
            run.gpu_memory_bytes = 0
        for name, value in wishes.items():
            setattr(run, name, value)
        length_s = run.expected_s or run.for_s
        if run.lease is not None:
            self._note_box(run)
            if length_s is not None:
                self._handle(m.Estimates(((run.lease.phase, length_s, length_s),)))
            return
        self._take_part(run)
        self._check_fits(run)
        if run.task != NOT_ADMITTED:
            self._handle(m.AbortRequested("workload", run.workload, run.user, "changed"))
            del self._by_task[run.task]
            run.task, run.changes = NOT_ADMITTED, run.changes + 1
            self._admit_if_due(run)
        if run.outcome == REFUSED:
            raise Refusal(422, run.why)

    def drain(self, who: Principal, ask: c.Drain) -> c.Runs:
        """Nothing new gets the device, or any of the host's; what runs goes on. Or no longer so. Raises Refusal."""
        who.need(OPERATING, "to drain")
        if who.teams is not None:
            raise Refusal(403, "to drain needs a token that is bound to no team: the devices are everybody's")
        ids = [device.id for device in self.views.devices]
        hosts = [self._offer.host, *(node.name for node in self._engine.state.nodes)]
        if ask.target not in (*ids, *hosts):
            raise Refusal(404, f"there is no host and no device {ask.target!r}; there are {listed([hosts[0], *ids])}")
        meant = set(range(len(ids))) if ask.target not in ids else {ids.index(ask.target)}
        drained = meant.union(self._drained) if ask.drained else set(self._drained) - meant
        self._lines.append(LogLine(self._now, who, "drain" if ask.drained else "undrain", "", "", ask.target))
        self._add_node(tuple(sorted(drained)))
        for run in self.open_runs():
            self._admit_if_due(run)
        return self.views.listed(who.sees)

    # --- questions ---

    def listed(self, who: Principal, *, with_ended: bool = False) -> c.Runs:
        """The runs that it sees, and the devices of the site."""
        who.need_to_see()
        return self.views.listed(who.sees, with_ended=with_ended)

    def queue(self, who: Principal) -> c.Runs:
        """Those that wait, first first."""
        who.need_to_see()
        return self.views.queue(who.sees)

    def view(self, who: Principal, run_id: str) -> c.RunView:
        who.need_to_see()
        return self._view(who, self._visible(who, run_id))

    def _view(self, who: Principal, run: Run, with_reason: bool = True) -> c.RunView:
        return self.views.view(run, with_reason, sees=who.sees)

    def check(self, who: Principal, ask: c.RunRequest) -> c.RunView:
        """What `submit` would answer now. Nothing is asked for: the request meets a copy of the site."""
        return self._copy().submit(who, ask)

    def _copy(self) -> SiteLogic:
        copies = [msgspec.structs.replace(run) for run in self.runs.values()]
        copy = SiteLogic(self.facts, Engine.restore(self.snapshot(), CONFIG), copies)
        copy.views.devices, copy.views.occupied = self.views.devices, dict(self.views.occupied)
        copy._queues = self._queues
        copy._team_of_queue = self._team_of_queue
        return copy

    # --- processes ---

    def watched(self) -> list[Watch]:
        """Whose processes to look for now."""
        return [self._watch(run) for run in self.open_runs()]

    def _watch(self, run: Run) -> Watch:
        token = run.lease.token if run.lease else 0
        mark = lease_mark(run.id, token, self.facts.id)
        return Watch(run.id, token, run.supervisor, run.is_claimed, run.named, mark)

    def watch(self, who: Principal, run_id: str) -> Watch | None:
        """The same for one run of one's own; None where it holds no lease."""
        run = self._held(who, run_id)
        return None if not run.is_open or run.lease is None else self._watch(run)

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
        self._handle(m.AbortRequested("workload", run.workload, run.user, why))
        if run.is_claimed:
            self._touch(run).stop = why
            self._boxed.pop(run.id, None)
            return
        if run.lease is not None:
            self._handle(m.PhaseEnded(run.lease.phase, run.lease.attempt, "aborted"))
        self._close(run, outcome, None)

    def _finish(self, run: Run, outcome: str, exit_code: int | None) -> None:
        """The end of a lease that was claimed."""
        lease, state = run.lease, self._engine.state
        assert lease is not None
        if run.is_time_up and outcome != "lost":
            run.why, outcome = run.stop, "succeeded"
        self._handle(m.PhaseEnded(lease.phase, lease.attempt, "succeeded" if outcome == "succeeded" else "failed"))
        over = state.over_limit.get(run.task)
        if over is not None and outcome != "lost":
            run.why, outcome = over.text, "succeeded" if over.then == END else "failed"
        elif run.stop and not run.is_time_up and outcome != "lost":
            outcome = "aborted"
        assert state.status[state.cursor[run.task]] in ENDED
        self._close(run, outcome, exit_code)

    def _close(self, run: Run, outcome: str, exit_code: int | None) -> None:
        run.outcome, run.exit_code, run.ended_at = outcome, exit_code, self._now
        run.lease, run.named, run.is_lost, run.stop = None, (), False, ""
        if self.views.open.pop(run.id, None):
            self._open_of[run.user] -= 1
        self._heard.pop(run.id, None)
        self._gone.pop(run.id, None)
        self._boxed.pop(run.id, None)
        self.views.living.pop(run.id, None)
        self._touch(run)
        self._ended.append(run)
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
            self._admit_if_due(run)

    # --- what several need ---

    def _touch(self, run: Run) -> Run:
        """Its client is told, and it is written."""
        run.version += 1
        self._dirty[run.id] = run
        return run

    def _log(self, who: Principal, verb: str, run: Run, text: str = "") -> None:
        self._lines.append(LogLine(self._now, who, verb, run.id, run.team, text))

    def note_change(self, who: Principal, verb: str, driver: str, team: str, text: str = "") -> None:
        """For the log: a change to a framework's driver, which the logic does not know."""
        self._lines.append(LogLine(self._now, who, verb, driver, team, text))

    # --- whose a run is ---

    def _visible(self, who: Principal, run_id: str) -> Run:
        """Raises Refusal (404), the same for a run of another team and for none."""
        run = self.runs.get(run_id)
        if run is None or not who.sees(run):
            raise Refusal(404, f"there is no run {run_id!r}: `egs ps` lists those that are open")
        return run

    def _changeable(self, who: Principal, run_id: str) -> Run:
        run = self._visible(who, run_id)
        if not who.may_change(run):
            whose = f"run {run_id} is of {run.user}" + (f", team {run.team}" if run.team else "")
            raise Refusal(403, f"{whose}: only that user and operators may change it")
        return run

    def _held(self, who: Principal, run_id: str) -> Run:
        run = self._visible(who, run_id)
        if not who.may_hold(run):
            raise Refusal(403, f"run {run_id} is of {run.user}: only its own supervisor speaks for it")
        return run
