"""A simulated host for the server's own logic: store, clock, network, supervisors and processes, all of which may fail.

The logic, its turns and what a recovery folds are the shipped code. What is simulated says at every moment which
processes use which devices, and that is what the invariants are about.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from egs_core.budgets import Budget, period_of
from egs_core.calendar import Reservation
from egs_core.client import messages as c
from egs_core.client import requests as q
from egs_core.engine.specs import QueueSpec
from egs_core.server import requests
from egs_core.server.gangs import check_together
from egs_core.server.hosts import JoinedHost
from egs_core.server.logic import Batch, Seen, SiteLogic
from egs_core.server.principals import Principal
from egs_core.server.runs import Device, Offer, Refusal, Run, SiteFacts
from egs_core.server.spending import Saved, Spending
from egs_core.server.store import Kept, Store, StoreError
from egs_core.server.writer import Lead, Turns
from egs_core.site.spanning import Spanning

GIB = 1 << 30
OFFER = Offer("host", tuple([Device(str(n), memory_bytes=80 * GIB) for n in range(3)]), cpus=8.0, memory_bytes=1 << 40)
LESSON = Reservation("class", 2, 1, 2, "UTC", date="1970-01-01", lead_s=20.0)  # seconds 60 to 120 of the simulation
ASKED: tuple[tuple[float, int], ...] = (
    (0, 0),
    (0, 20 * GIB),
    (0, 60 * GIB),
    (0.5, 0),
    (1, 0),
    (1, 0),
    (1, 40 * GIB),
    (2, 0),
    (3, 0),
)
ANN, ROOT = Principal("ann"), Principal("root", "admin")
BUDGETS_S = (0.0, 0.0, 60.0, 200.0)  # GPU seconds of a day, by seed; 0: none


class MemoryStore:
    """A store that keeps bytes, as a database does. fails: "before" loses the next commit, "after" takes it and says
    that it did not, as when a server dies in between."""

    def __init__(self) -> None:
        self.facts = SiteFacts("site", 0.0)
        self.snapshot, self.entries, self.runs = b"", list[bytes](), dict[str, bytes]()
        self.hosts = list[JoinedHost]()
        self.spending = Saved()
        self.fails = ""
        self.most_entries = 25

    def load(self) -> Kept:
        runs = [msgspec.json.decode(run, type=Run) for run in self.runs.values()]
        return Kept(self.facts, self.snapshot, list(self.entries), runs, list(self.hosts), self.spending)

    def commit(self, batch: Batch) -> None:
        fails, self.fails = self.fails, ""
        if fails != "before":
            self.entries += batch.entries
            self.runs |= {run.id: msgspec.json.encode(run) for run in batch.runs}
            self.hosts = batch.hosts or self.hosts
            self.spending = batch.spending or self.spending
            for run in batch.forgotten:
                self.runs.pop(run, None)
        if fails:
            raise StoreError(f"the disk failed {fails} the commit")

    def compact(self, snapshot: bytes) -> None:
        self.snapshot, self.entries = snapshot, []

    @property
    def wants_snapshot(self) -> bool:
        return len(self.entries) > self.most_entries


class BudgetedStore(MemoryStore):
    """One that counts what runs hold from commit to commit, by its own means, and looks at each grant.

    counted: GPU seconds of the day that this began with; most: over that by so much, through what ran on when it was
    used up; grants: that were looked at."""

    def __init__(self, budget: Budget, clock: Callable[[], float]) -> None:
        super().__init__()
        self._budget, self._clock = budget, clock
        self._day, self._at, self._held = period_of(0.0, "day", "UTC"), 0.0, dict[int, float]()
        self.counted, self.most, self.grants = 0.0, 0.0, 0

    def commit(self, batch: Batch) -> None:
        is_taken = self.fails != "before"
        try:
            super().commit(batch)
        finally:
            if is_taken:
                self._count(batch.spending)

    def _count(self, saved: Saved | None) -> None:
        now = self._clock()
        self._day, before = period_of(now, "day", "UTC"), self._day
        if before != self._day:
            self.counted, self._at = 0.0, max(self._at, self._day.begin)
        self.counted += sum(self._held.values()) * max(0.0, now - self._at)
        self._at = now
        left = self._budget.gpu_hours * 3600.0 - self.counted
        self.most = max(self.most, -left)
        runs = [msgspec.json.decode(run, type=Run) for run in self.runs.values()]
        held = {run.lease.token: run.gpus for run in runs if run.lease is not None and not run.inside and run.gpus}
        new = held.keys() - self._held.keys()
        assert not new or left > 0, f"leases {new} were given when the budget was exceeded by {-left} GPU seconds"
        self.grants, self._held = self.grants + len(new), held
        if saved is not None:
            found = saved.spent[self._budget.key]
            assert (found.period, abs(found.gpu_s - self.counted) < 1e-3) == (self._day.label, True)


def _resume(run: str, logic: SiteLogic) -> c.RunView:
    return logic.control(ROOT, run, "resume", c.Control())


class Requester:
    """Somebody who wants GPUs for a while, and asks until it is told the number."""

    def __init__(self, key: str, gpus: float, for_s: float, idle_s: float | None) -> None:
        self.ask = q.GpuRequest(key=key, gpus=gpus, for_s=for_s, idle_timeout_s=idle_s)
        self.number = ""

    def next_ask(self) -> Callable[[SiteLogic], q.RequestView]:
        return lambda logic: requests.ask_for(logic.book, ANN, self.ask)


class Supervisor:
    """An `egs run`, as a state machine: it asks, claims, starts one process, and tells its end."""

    def __init__(self, pid: int, gpus: float, gpu_memory_bytes: int, length_s: float) -> None:
        self.process = c.Process(pid=pid, started=pid)
        self.request = c.RunRequest(key=f"key-{pid:05}", supervisor=self.process, name=f"job{pid}", gpus=gpus)
        self.request = self.request.model_copy(update={"gpu_memory_bytes": gpu_memory_bytes})
        self.waits_for: tuple[Supervisor, str] | None = None  # a run that has to end first, and how
        self.inside: Requester | None = None  # in whose GPUs it runs
        self.who = ANN
        self.length_s, self.part = length_s, 1.0
        self.slow_on: frozenset[str] = frozenset()  # devices on which it takes three times as long
        self.is_alive, self.is_suspended = True, False
        self.run_id = ""
        self.view: c.RunView | None = None
        self.started: list[int] = []  # tokens with which a process was started
        self.is_evicted = False  # its process was ended for another
        self.devices: tuple[str, ...] = ()  # that its process uses now; it may outlive the supervisor
        self.ends_at: float | None = None
        self.exit_code: int | None = None
        self.is_done = False

    def next_ask(self) -> Callable[[SiteLogic], c.RunView]:
        """What it would send now."""
        run_id, view = self.run_id, self.view
        if not run_id:
            if self.waits_for is not None and self.waits_for[0].run_id:
                after = c.After.model_validate({"run": self.waits_for[0].run_id, "when": self.waits_for[1]})
                self.request, self.waits_for = self.request.model_copy(update={"after": (after,)}), None
            if self.inside is not None:
                more: dict[str, object] = {"gpus": 0, "gpu_memory_bytes": 0, "inside": self.inside.number}
                more |= {"priority": 0, "requeue": self.request.requeue and self.inside.ask.requeue}
                self.request = self.request.model_copy(update=more)
            return lambda logic: logic.submit(self.who, self.request)
        lease = view.lease if view is not None else None
        if lease is not None and self.exit_code is not None:
            outcome: Any = "evicted" if self.is_evicted else "succeeded"
            aside = (self.process,) if self.is_evicted and self.process.pid % 2 else None
            end = c.End(token=self.started[-1], outcome=outcome, exit_code=self.exit_code, aside=aside)
            return lambda logic: logic.end(self.who, run_id, end)
        if lease is not None and lease.token not in self.started and not (view and view.stop):
            return lambda logic: logic.claim(self.who, run_id, c.Claim(token=lease.token))
        beat = c.Beat(token=lease.token if lease else 0)
        return lambda logic: logic.beat(self.who, run_id, beat)

    def hear(self, asked_for: c.Lease | None, answer: c.RunView, now: float) -> None:
        """asked_for: the lease that it had when it asked. A claimed lease is started with once."""
        if self.view is not None and answer.version < self.view.version:
            return  # late
        self.run_id, self.view = answer.id, answer
        if answer.state == "ended":
            self.is_done = True
        lease = answer.lease
        is_asked = lease is not None and asked_for is not None and lease.token == asked_for.token
        if self.is_evicted and self.exit_code is not None and (not lease or lease.token != self.started[-1]):
            self.is_evicted, self.exit_code = False, None  # it waits again
        if lease is not None and is_asked and lease.claimed and lease.token not in self.started:
            self.started.append(lease.token)
            length_s = self.length_s * (1.0 if self.slow_on.isdisjoint(lease.devices) else 3.0)
            self.devices, self.ends_at = lease.devices, now + length_s
            self.part = min(answer.gpus, 1.0)  # of each of them
        if answer.stop and self.ends_at is not None:
            self.is_evicted = answer.requeue
            self.ends_at = min(self.ends_at, now + 1.0)


Asked = tuple["Supervisor | Requester | None", c.Lease | None, Callable[[SiteLogic], Any]]
"""By whom, with which lease, and what."""


class World:
    """See the module. faults: how likely each kind is at a step, 0 to 1; 0 lets everything end."""

    offered = OFFER

    def __init__(self, seed: int, supervisors: int = 12) -> None:
        self.random = random.Random(seed)
        self.now, self.offset = 0.0, 0.0  # the host's clock is off by so much
        self.budget = Budget(BUDGETS_S[seed % len(BUDGETS_S)] / 3600.0, ("one",), queue="one", per="day")
        self.queues = (QueueSpec("one"),) if self.budget.gpu_hours else ()
        clock = self._clock
        self.store = BudgetedStore(self.budget, clock) if self.budget.gpu_hours else MemoryStore()
        kept = (LESSON,) if self.random.random() >= 0.5 else ()
        self.offer = msgspec.structs.replace(self.offered, reserved=kept)
        self.turns = self._server()
        self.all = [self._supervisor(pid) for pid in range(1, supervisors + 1)]
        for before, one in zip(self.all, self.all[1:], strict=False):
            if self.random.random() < 0.5:
                one.waits_for = before, self.random.choice(("ok", "any", "failed"))
        self.requesters = [self._requester(number) for number in range(2)]
        for one in self.all:
            if self.random.random() < 0.3:
                one.inside = self.random.choice(self.requesters)
        self._draw_gangs()
        self._by_pid = {one.process.pid: one for one in self.all}
        self.delayed: list[Callable[[SiteLogic], Any]] = []
        self.faults = 0.25
        self.crashes, self.kept = 0, 0

    def _supervisor(self, pid: int) -> Supervisor:
        gpus, memory = self.random.choice(ASKED)
        found = Supervisor(pid, gpus, memory, self.random.uniform(1, 40))
        more = {"priority": self.random.choice((0, 3, 5, 9)), "requeue": self.random.random() < 0.5}
        found.request = found.request.model_copy(update=more)
        return found

    def _draw_gangs(self) -> None:
        """Some of the supervisors are of gangs, of which not all will ever be whole, or fit."""
        left = [one for one in self.all if one.inside is None]
        while len(left) > 2 and self.random.random() < 0.7:
            size, wait_s = self.random.choice((2, 2, 3)), self.random.uniform(20, 80)
            wanted = size if self.random.random() < 0.9 else size + 1
            name, like = f"gang-{left[0].process.pid if self.random.random() < 0.9 else 0}", left[0].request
            for one in left[:size]:
                gang = c.Gang(name=name, size=wanted, wait_s=wait_s)
                more = {"gang": gang, "priority": like.priority, "requeue": like.requeue}
                one.request = one.request.model_copy(update=more)
            left = left[size:]

    def _requester(self, number: int) -> Requester:
        gpus, idle_s = self.random.choice((0.5, 1, 2)), self.random.choice((None, None, 20.0))
        return Requester(f"request-{number}", gpus, self.random.uniform(5, 60), idle_s)

    def _clock(self) -> float:
        return self.now + self.offset

    def _server(self) -> Turns:
        return self._turns(self.store)

    def _turns(self, store: Store, lead: Lead | None = None) -> Turns:
        """A server that begins: what it knows is in the store."""
        spending = Spending((self.budget,) if self.queues else (), self._clock)
        spanning = Spanning(spending)
        return Turns(store, self.offer, self.queues, self._clock, spanning=spanning, lead=lead, spending=spending)

    def maybe(self) -> bool:
        return self.random.random() < self.faults

    # --- one step ---

    def step(self) -> None:
        self.now += self.random.uniform(0.05, 2.0)
        for one in self.all:
            if one.ends_at is not None and one.ends_at <= self.now:
                one.devices, one.ends_at, one.exit_code = (), None, 0
        self._faults()
        asks: list[Asked] = []
        for one in self.random.sample(self.all, len(self.all)):
            is_early = one.inside is not None and not one.inside.number
            if one.is_alive and not one.is_suspended and not one.is_done and not is_early and not self.maybe():
                ask = one.next_ask()
                asks.append((one, one.view.lease if one.view else None, ask))
                if self.maybe():
                    self.delayed.append(ask)  # it arrives a second time, later
        unknown = [one for one in self.requesters if not one.number and not self.maybe()]
        asks += [(one, None, one.next_ask()) for one in unknown]
        if self.delayed and self.random.random() < 0.5:
            asks.append((None, None, self.delayed.pop(self.random.randrange(len(self.delayed)))))
        asks.append((None, None, lambda logic: logic.seen(self.look(logic))))
        self._serve(asks)
        self.check()

    def _serve(self, asks: list[Asked]) -> None:
        try:
            answers, _ = self.turns.take([ask for _, _, ask in asks])
        except StoreError:
            self._restart()
            return
        for (one, lease, _), answer in zip(asks, answers, strict=True):
            if one is None or self.maybe():
                continue  # the answer is lost
            if isinstance(one, Requester):
                one.number = answer.id
            elif isinstance(answer, Refusal):
                assert answer.status in (403, 404, 409, 422), answer
                has_ended = answer.status == 409 and not one.run_id  # the request in which it was to run
                one.is_done = one.is_done or answer.status == 422 or has_ended  # what it waits for has ended otherwise
                one.view = None if answer.status == 409 else one.view  # it asks again
            else:
                one.hear(lease, answer, self.now)
        self.turns.compact()

    def _restart(self) -> None:
        self.crashes += 1
        jump = self.random.uniform(-100, 100) if self.maybe() else 0.0
        self.offset += abs(jump) if self.queues else jump  # set back, a clock lets a budget count some time once only
        while True:
            try:
                self.turns = self._server()
                return
            except StoreError:
                self.crashes += 1

    def _faults(self) -> None:
        if self.maybe() and self.maybe():
            self.store.fails = self.random.choice(("before", "after"))
        if self.maybe() and self.maybe():
            self._restart()
        for one in self.all:
            if self.maybe() and self.random.random() < 0.03:
                one.is_alive = False  # killed; its process goes on
                if one.exit_code is not None and one.run_id:
                    self.delayed.append(one.next_ask())  # another process tells what it could not
            if self.random.random() < 0.05:
                one.is_suspended = self.maybe()
        if self.maybe() and self.maybe() and self.all:
            numbers = [one.run_id for one in self.all] + [one.number for one in self.requesters]
            if target := self.random.choice(numbers):
                self.delayed.append(self._meddling(target))

    def _meddling(self, run: str) -> Callable[[SiteLogic], Any]:
        """What an operator may do to a run at any moment."""
        verb = self.random.choice(("abort", "pause", "resume", "update", "drain", "release", "extend"))
        priority, gpus = self.random.choice((-1, 3)), self.random.choice((None, None, 1))
        if verb == "drain":
            ask = c.Drain(target=self.random.choice(("host", "0", "2")), drained=self.random.random() < 0.5)
            return lambda logic: logic.drain(ROOT, ask)
        if verb == "extend":
            return lambda logic: requests.extend(logic.book, ROOT, run, q.Extend(more_s=30.0))
        if verb == "update":
            return lambda logic: logic.update(ROOT, run, c.Change(priority=priority, gpus=gpus))
        return lambda logic: logic.control(ROOT, run, verb, c.Control())

    def look(self, logic: SiteLogic) -> list[Seen]:
        """What the kernel would say of the watched processes."""
        found = []
        for watch in logic.watched():
            one = self._by_pid[watch.supervisor.pid]
            living = (10_000 + one.process.pid,) if one.devices and one.started[-1] == watch.token else ()
            is_there = one.is_alive and not one.is_done  # one that is refused ends
            found.append(Seen(watch.run, watch.token, is_there, living))
        return found

    # --- invariants ---

    def check(self) -> None:
        """No device is used by two processes, but in parts, or in one request; none without a lease, of a request's not
        without that; of a gang all hold devices, or none; and nothing is started twice."""
        parts: dict[str, dict[object, float]] = {device.id: {} for device in OFFER.devices}
        for one in self.all:
            for device in one.devices:
                parts[device][one.inside or one] = one.part
        used = {device: sum(found.values()) for device, found in parts.items()}
        assert max(used.values()) <= 1.0, f"more of a device is used than there is: {used}"
        for one in self.all:
            if one.devices and one.inside is not None:
                held_for = self.turns.logic.runs[one.inside.number].lease
                assert held_for is not None, f"request {one.inside.number} has ended, and {one.run_id} computes"
                assert set(one.devices) == {OFFER.devices[number].id for number in held_for.devices}
        held = {device: [watch.run for watch in found] for device, found in self.turns.logic.holders().items()}
        logic = self.turns.logic
        self.kept = max(self.kept, len(logic.book.kept))
        for run in logic.open_runs():
            check_together(logic.book.gangs.members(run) if run.gang else ())
        for one in self.all:
            self.check_starts(one)
            assert all(one.run_id in held[device] for device in one.devices), (one.run_id, one.devices, held)

    def check_starts(self, one: Supervisor) -> None:
        """Once, and once more for each eviction."""
        run = self.turns.logic.runs.get(one.run_id)
        most = 1 + run.evictions if run is not None and run.requeue else 1
        assert len(one.started) <= most, f"started {len(one.started)} times, of {most}"

    def is_stopped(self) -> bool:
        """Whether only the budget keeps what waits, and nothing runs."""
        runs = self.turns.logic.open_runs()
        is_used_up = bool(self.turns.logic.views.spending.stopped)
        return bool(runs) and is_used_up and not any(run.lease for run in runs)

    def settle(self) -> None:
        """Without faults everything ends."""
        self.faults, self.store.fails = 0.0, ""
        for one in self.all:
            one.is_suspended = False
        for _ in range(600):
            paused = [run.id for run in self.turns.logic.open_runs() if run.is_paused]
            self.delayed += [partial(_resume, run) for run in paused]
            if any(device.drained for device in self.turns.logic.views.listed(ROOT.sees).devices):
                self.delayed.append(lambda logic: logic.drain(ROOT, c.Drain(target="host", drained=False)))
            if self.is_stopped():
                self.offset += period_of(self._clock(), "day", "UTC").end - self._clock()
            self.step()
            if not self.turns.logic.open_runs() and all(one.is_done or not one.is_alive for one in self.all):
                return
        raise AssertionError(f"open: {[run.id for run in self.turns.logic.open_runs()]}")
