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

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from egs_core.client import hosts as h
from egs_core.client import messages as c
from egs_core.client.processes import lease_mark
from egs_core.engine import Engine
from egs_core.engine import messages as m
from egs_core.engine.specs import QueueSpec
from egs_core.engine.state.lifecycle import ENDED
from egs_core.server import admission, controls, joining, requests, reserved
from egs_core.server.book import CONFIG, Book, LogLine
from egs_core.server.gangs import AGAIN_S, check_together
from egs_core.server.hosts import OWN, JoinedHost
from egs_core.server.hosts import SILENT_S as HOST_SILENT_S
from egs_core.server.outlines import Changes
from egs_core.server.principals import Principal
from egs_core.server.rights import Seat
from egs_core.server.runs import NOT_ADMITTED, Known, Offer, Refusal, Run, SiteFacts
from egs_core.server.spending import Saved
from egs_core.server.trial import copy_of
from egs_core.site.spanning import Spanning

SILENT_S = 15.0  # after so long it counts as silent
CLAIM_S = 15.0  # in so long a grant has to be claimed
RETURN_S = 10.0  # so long after an absence of the server's, or of an agent's, what ended meanwhile may be told
MOST_ENDED, KEEP_S = 10_000, 30 * 86400.0  # what is kept of runs that have ended


class Batch(msgspec.Struct):
    """What one commit makes durable. entries: of the engine's journal; runs: as they are now; forgotten: ids of those
    that are kept no longer; log: who changed what; hosts: all that have ever joined,
    none where these are as they were; spending: what was used of budgets, None where that was written lately."""

    entries: list[bytes]
    runs: list[Run]
    forgotten: list[str] = []
    log: list[LogLine] = []
    hosts: list[JoinedHost] = []
    spending: Saved | None = None


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

    def __init__(
        self, facts: SiteFacts, engine: Engine, runs: Iterable[Run] = (), hosts: Iterable[JoinedHost] = ()
    ) -> None:
        self.facts = facts
        self.book = book = Book(facts, engine, runs, hosts)
        self.runs, self.views = book.runs, book.views
        self.changes = Changes(book.runs)

    # --- the writer's side ---

    def join(self, spanning: Spanning, woken: Callable[[], None]) -> None:
        """See `Book.join`."""
        self.book.join(spanning, woken)

    def leave(self) -> None:
        """See `Book.leave`."""
        self.book.leave()

    def fails(self) -> None:
        """See `Book.fails`."""
        self.book.fails()

    @property
    def has_news(self) -> bool:
        """Whether `take` has something of the engine to make durable."""
        return self.book.barrier.has_entries

    @property
    def now(self) -> float:
        return self.book.now

    def open_runs(self) -> list[Run]:
        return self.views.open_runs()

    def at(self, now: float) -> None:
        """It is now so late; what is due is done. Time never goes back."""
        self.book.now = max(self.book.now, now)
        due = self.book.engine.next_wakeup()
        if due is not None and due <= self.book.now:
            self.book.handle(m.Tick())
        for run in list(self.book.boxed.values()):
            if (run.time_is_up_at or 0.0) <= self.book.now:
                del self.book.boxed[run.id]
                self.book.touch(run).is_time_up = True
                run.stop = f"over its limit of {run.for_s:g} s"
                run.grace_s = run.grace_s or CONFIG.grace_s
        self.book.look_around()
        joining.note_silent(self.book)
        self.book.asides.tell(self.book.asides.due(self.book.now), self.book.now, self.book.handle)
        for members in self.book.gangs.overdue(self.book.now):
            controls.give_up_gang(self.book, members)
        reserved.advance(self.book)
        requests.advance(self.book)
        self._forget()

    def _forget(self) -> None:
        """The runs that ended first, beyond what is kept. The latest number stays, so that none is given again."""
        oldest = self.book.now - KEEP_S
        while self.book.ended and (len(self.book.ended) > MOST_ENDED or (self.book.ended[0].ended_at or 0.0) < oldest):
            if self.book.ended[0].id == str(self.book.last):
                return
            run = self.book.ended.popleft()
            del self.runs[run.id], self.book.by_key[run.user, run.key]
            self.book.by_task.pop(run.task, None)
            self.book.dirty.pop(run.id, None)
            self.book.forgotten.append(run.id)

    def next_wakeup(self) -> float | None:
        """When `at` has to be called if nothing happens before; None: never."""
        due = [self.book.engine.next_wakeup(), self.book.hosts.next_silence(), requests.next_due(self.book)]
        due += [self.book.gangs.next_due(), self.book.asides.next_due(), reserved.next_due(self.book)]
        due += [run.time_is_up_at for run in self.book.boxed.values()]
        return min((at for at in due if at is not None), default=None)

    def take(self) -> Batch:
        """What has changed since the last call."""
        requests.advance(self.book)
        book = self.book
        hosts = list(book.hosts.all.values()) if book.hosts.is_dirty else []
        book.hosts.is_dirty = False
        for run in book.dirty.values():
            run.stop_at = (book.now if run.stop_at is None else run.stop_at) if run.stop else None
        self.changes.note(book.dirty)
        self.changes.forget(book.forgotten)
        batch = Batch(book.barrier.take(), list(book.dirty.values()), book.forgotten, book.lines, hosts)
        self.book.dirty, self.book.forgotten, self.book.lines = {}, [], []
        return batch

    def snapshot(self) -> bytes:
        """The engine's state: with the runs, all that is to be kept."""
        return self.book.engine.snapshot()

    def validate(self) -> None:
        """Raise AssertionError when runs and engine do not agree, or an invariant of the engine does not hold."""
        self.book.engine.validate_state()
        state = self.book.engine.state
        assert list(self.views.open) == [run.id for run in self.runs.values() if run.is_open]
        leases = {lease.decision: phase for phase, lease in state.leases.items()}
        held = {run.lease.token: run.lease.phase for run in self.open_runs() if run.lease and not run.inside}
        assert leases == held, f"the engine's leases {leases}, those of runs {held}"
        for run in self.open_runs():
            check_together(self.book.gangs.members(run) if run.gang else ())
        for run in self.book.asides.waiting():
            is_told = not run.is_open or run.task == NOT_ADMITTED or self.book.asides.changed(run, self.now) is None
            assert is_told, f"run {run.id} was put aside: {run.aside}"
        for run in self.book.by_task.values():
            assert run.is_open != (state.status[state.cursor[run.task]] in ENDED), f"run {run.id} is {run.state}"

    def know(self, offer: Offer) -> None:
        """What the host's devices are, before anything happens: what is admitted is told where it may start."""
        self.views.devices = offer.devices
        self.book.flavors.take(offer.flavors, self.book.ended)

    def offer(
        self, offer: Offer, queues: tuple[QueueSpec, ...] = (), team_of_queue: Mapping[str, str] | None = None
    ) -> None:
        """What the host has, the queues and whose they are, at the start of a server: before anything else is asked."""
        self.know(offer)
        self.book.team_of_queue = team_of_queue or {}
        self.book.queues = tuple([queue.name for queue in queues])
        self.book.offer = offer
        self.book.gangs.not_before = self.book.now + AGAIN_S
        self.book.reserve.set(offer.reserved)
        self.book.heard = dict.fromkeys(
            self.book.heard, self.book.now
        )  # nobody could be heard while no server was there
        self.views.occupied = dict.fromkeys(range(len(offer.devices)), ()) if offer.is_watched else {}
        self.book.hosts.back = {OWN: self.book.now}
        for host in self.book.hosts.joined():  # silent until they report
            self.book.add_host(host, self.book.drained_of(host.name))
        self.book.add_node(() if offer.is_new else self.book.drained)
        if queues or self.book.engine.state.queues:
            self.book.handle(m.QueuesChanged(queues))
        for run in self.open_runs():  # those that a server before has kept out
            self.book.admit_if_due(run)

    def occupied(self, found: Mapping[int, tuple[int, ...]]) -> None:
        """Which devices are used by processes that hold no lease of theirs, and by which: they are given to nobody."""
        before, self.views.occupied = self.views.occupied, dict(found)
        if before.keys() != found.keys():
            self.book.add_node(self.book.drained)

    def holders(self) -> dict[str, list[Watch]]:
        """Of each device, by its id, the leases that it is held by, but for requests: those of the commands in them."""
        found: dict[str, list[Watch]] = {device.id: [] for device in self.views.devices}
        for run in self._with_processes(OWN):
            for number in run.lease.devices if run.lease else ():
                found[self.views.devices[number].id].append(self._watch(run))
        return found

    # --- what clients ask ---

    def submit(self, who: Principal, ask: c.RunRequest) -> c.RunView:
        """A new run; a known key is answered with its run. Raises Refusal for what can never start here."""
        return admission.submit(self.book, who, ask)

    def beat(self, who: Principal, run_id: str, ask: c.Beat) -> c.RunView:
        """A sign of life of a run's supervisor."""
        run = self.book.rights.held(who, run_id)
        if run.is_open:
            self.book.heard[run.id] = self.book.now
            self.book.gone.pop(run.id, None)
            if run.is_lost:
                self.book.touch(run).is_lost = False
            named = tuple([Known(one.pid, one.started) for one in ask.processes])
            if run.uses(ask.token) and named != run.named:
                run.named = named
                self.book.dirty[run.id] = run  # its client knows: no new version
            if run.uses(ask.token) and ask.progress is not None:
                self.book.views.note_progress(run, ask.progress)
        return self.book.view(who, run, with_reason=ask.seen < 0)

    def claim(self, who: Principal, run_id: str, ask: c.Claim) -> c.RunView:
        """The command is about to start with this lease. Raises Refusal (409) where it holds it no longer: then nothing
        may be started."""
        run = self.book.rights.held(who, run_id)
        lease = run.lease
        if not run.is_open or lease is None or lease.token != ask.token or (run.stop and lease.claimed_at is None):
            raise Refusal(409, f"run {run.id} does not hold lease {ask.token} any more")
        self.book.heard[run.id] = self.book.now
        if lease.claimed_at is None:
            self.book.log(who, "start", run)
            self.book.begin(run, lease)
        return self.book.view(who, run, with_reason=False)

    def end(self, who: Principal, run_id: str, ask: c.End) -> c.RunView:
        """No process of the lease is left: the caller has made sure. Raises Refusal (409) for another lease."""
        run = self.book.rights.held(who, run_id)
        if not run.is_open:
            if run.outcome == "lost" and run.lost_token == ask.token:
                self.book.log(who, "end", run, f"{ask.outcome}, exit code {ask.exit_code}, after it was lost")
                run.work = ask.work
                self.book.found_out(run, "failed" if ask.outcome == "evicted" else ask.outcome, ask.exit_code)
            return self.book.view(who, run, with_reason=False)
        lease = run.lease
        if lease is None or lease.token != ask.token or lease.claimed_at is None:
            raise Refusal(409, f"run {run.id} does not run with lease {ask.token}")
        self.book.log(who, "end", run, f"{ask.outcome}, exit code {ask.exit_code}")
        run.work = ask.work
        if ask.outcome == "evicted" and run.is_evicted:
            self.book.requeue(run, is_aside=bool(ask.aside))
        else:
            self.book.finish(run, "failed" if ask.outcome == "evicted" else ask.outcome, ask.exit_code)
        return self.book.view(who, run, with_reason=run.is_open)

    def control(self, who: Principal, run_id: str, verb: str, ask: c.Control) -> c.RunView:
        """abort, release, pause or resume. Raises Refusal (409) for a run that has ended."""
        return controls.control(self.book, who, run_id, verb, ask)

    def update(self, who: Principal, run_id: str, ask: c.Change) -> c.RunView:
        """Other wishes of a run. Raises Refusal for what it is too late for, and for what can never start."""
        return controls.update(self.book, who, run_id, ask)

    def drain(self, who: Principal, ask: c.Drain) -> c.Runs:
        """Nothing new gets the device, or any of the host's; what runs goes on. Or no longer so. Raises Refusal."""
        return controls.drain(self.book, who, ask)

    # --- questions ---

    def listed(self, who: Principal, *, with_ended: bool = False, last: int = 0) -> c.Runs:
        """The runs that it sees, and the devices of the site. last: so many at most of those that have ended, the ones
        that did so last; 0: all. With ten thousand of them all take the better part of a second."""
        who.need_to_see()
        if not (with_ended and last):
            return self.views.listed(who.sees, with_ended=with_ended)
        ended = [run for run in self.book.ended if who.sees(run)]
        return self.views.listed(who.sees, ended=ended[-last:], more_ended=max(0, len(ended) - last))

    def queue(self, who: Principal) -> c.Runs:
        """Those that wait, first first."""
        who.need_to_see()
        budgets = self.views.spending.views(who, self.book.team_of_queue)
        return self.views.queue(who.sees).model_copy(update={"budgets": budgets})

    def view(self, who: Principal, run_id: str) -> c.RunView:
        who.need_to_see()
        return self.book.view(who, self.book.rights.visible(who, run_id))

    def called(self, who: Principal, word: str, drivers: Sequence[Seat] = ()) -> str:
        """As `Rights.called`."""
        who.need_to_see()
        return self.book.rights.called(who, word, drivers)

    def check(self, who: Principal, ask: c.RunRequest) -> c.RunView:
        """What `submit` would answer now. Nothing is asked for: the request meets a copy of the site."""
        return admission.check(copy_of(self.book), who, ask)

    # --- processes ---

    def watched(self) -> list[Watch]:
        """Whose processes to look for now, on the server's own host."""
        return [self._watch(run) for run in self._with_processes(OWN)]

    def _with_processes(self, host: str) -> list[Run]:
        return [run for run in self.open_runs() if run.host == host and not run.is_request]

    def _watch(self, run: Run) -> Watch:
        token = run.lease.token if run.lease else 0
        mark = lease_mark(run.id, token, self.facts.id)
        return Watch(run.id, token, run.supervisor, run.is_claimed, run.named, mark)

    def watch(self, who: Principal, run_id: str) -> Watch | None:
        """The same for one run of one's own; None where it holds no lease."""
        run = self.book.rights.held(who, run_id)
        return None if not run.is_open or run.lease is None else self._watch(run)

    def seen(self, found: Sequence[Seen]) -> None:
        """What was found; outdated answers, for another lease, change nothing."""
        for one in found:
            run = self.runs.get(one.run)
            if run is not None and run.is_open and one.token == (run.lease.token if run.lease else 0):
                self._look(run, one)

    def _look(self, run: Run, one: Seen) -> None:
        is_silent = self.book.now - self.book.heard[run.id] > SILENT_S
        if one.has_supervisor:
            self.book.gone.pop(run.id, None)
            if run.is_claimed or not self.book.may_take_back(run):
                self._mark_lost(run, is_silent, one.living)
            elif run.lease is not None and is_silent and self.book.now - run.lease.granted_at > CLAIM_S:
                self.book.take_back(run, run.lease)
            return
        if run.is_claimed and (one.living or self._may_tell_yet(run)):
            self._mark_lost(run, True, one.living)
        elif self.book.gone.get(run.id) != one.token:
            self.book.gone[run.id] = one.token  # a process that was just being started would be there the next time
        elif run.is_claimed:
            run.why = "its supervisor and all its processes are gone, and nobody told how it ended"
            self.book.finish(run, "lost", None)
        else:
            self.book.abort(run, "its supervisor is gone", "lost")

    def _may_tell_yet(self, run: Run) -> bool:
        """Whether it may have ended while nobody could be told: then its end is waited for."""
        back = self.book.hosts.back.get(run.host)
        return back is not None and run.began_before(back) and self.book.now - back < RETURN_S

    def _mark_lost(self, run: Run, is_lost: bool, living: tuple[int, ...]) -> None:
        self.views.living[run.id] = living
        if run.is_lost != is_lost:
            self.book.touch(run).is_lost = is_lost

    def note_change(self, who: Principal, verb: str, driver: str, team: str, text: str = "") -> None:
        """For the log: a change to a framework's driver, which the logic does not know."""
        self.book.lines.append(LogLine(self.book.now, who, verb, driver, team, text))

    # --- hosts that join ---

    def join_host(self, who: Principal, ask: h.HostOffer) -> h.Joined:
        """Raises Refusal; so do the next."""
        host = joining.join(self.book, who, ask)
        return h.Joined(session=host.session, ttl_s=HOST_SILENT_S, watches=self._watches(host.name))

    def report(self, who: Principal, ask: h.Report) -> h.Watches:
        """What an agent has found; what it says of runs of other hosts changes nothing."""
        if joining.heard(self.book, who, ask):
            own = [one for one in ask.found if (run := self.runs.get(one.run)) and run.host == who.host]
            self.seen([Seen(one.run, one.token, one.supervisor, one.living) for one in own])
        return h.Watches(watches=self._watches(who.host))

    def forget_host(self, who: Principal, name: str) -> h.Hosts:
        joining.forget(self.book, who, name)
        return joining.views(self.views.listed_hosts(who.sees))

    def listed_hosts(self, who: Principal) -> h.Hosts:
        who.need_to_see()
        return joining.views(self.views.listed_hosts(who.sees))

    def _watches(self, host: str) -> tuple[h.WatchView, ...]:
        return tuple([self._watch_view(run) for run in self._with_processes(host)])

    def _watch_view(self, run: Run) -> h.WatchView:
        one, devices = self._watch(run), self.views.devices_of(run.host)
        return h.WatchView(
            run=one.run,
            token=one.token,
            supervisor=one.supervisor.asked(),
            claimed=one.is_claimed,
            named=tuple([known.asked() for known in one.named]),
            mark=one.mark,
            devices=tuple([devices[number].id for number in run.lease.devices]) if run.lease else (),
        )
