"""Drivers of frameworks that share a pool: one engine a pool, and what each is told. Touches no clock or network.

    join ─► seat at the pool's engine ─► batch: events, blocks, questions ─► grants … ─► outbox ─► poll(ack)
                                          └ silent for TTL_S, or leave: its work is gone, what it held is free

The framework's own books say where a task runs; the engine says when it may. Nothing here outlives the server: drivers
go on without one. So nothing is committed, and a pool without drivers is forgotten, its decayed shares too.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from egs_core.client import messages as c
from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.specs import QueueSpec
from egs_core.runlog import records as r
from egs_core.server.principals import SUBMITTING, Principal, queue_for, queues_of
from egs_core.server.runs import Refusal
from egs_core.site import messages as s
from egs_core.site import wire
from egs_core.site.shared import SharedEngine

LOG = logging.getLogger("uvicorn.error")
TTL_S = 20.0  # after so long tickets in a framework open by themselves, too
STALL_S = 5.0
MOST_DRIVERS = 200
MOST_UNREAD = 500_000  # messages that a driver has not fetched
MOST_AT_ONCE = 2000
CONFIG = EngineConfig()
GONE = "the server does not know this driver (any more)"


class Driver:
    """One that has joined; a `Listener`. version: counts what it is told, so that a poll need not look."""

    def __init__(
        self, number: int, who: Principal, ask: c.DriverRequest, queue: str, team: str, pool: Pool, now: float
    ) -> None:
        self.id = f"r{number}"
        self.key, self.user, self.framework, self.name = ask.key, who.name, ask.framework, ask.name or "driver"
        self.queue, self.team, self.pool = queue, team, pool
        self.joined_at = self.heard_at = now
        self.seq, self.answered = 0, b""
        self.outbox: deque[wire.Message] = deque()
        self._decided: list[tuple[s.AnyTold, float]] = []
        self._ends: list[tuple[s.AnyTold, float]] = []
        self._number = 0
        self.is_news = False
        self.seat = pool.shared.seat(self, f"{self.id}.")

    def tell(self, told: s.AnyTold, now: float, *, is_end: bool) -> None:
        (self._ends if is_end else self._decided).append((told, now))

    def record(self, record: r.Record) -> None:
        self._post(record=record)

    def mark(self, number: int) -> None:
        self._post(mark=number)

    def ask(self, request: s.Asked) -> None:
        self._post(asked=request)

    def flush(self) -> None:
        """What was decided goes out, first what may start."""
        for told, now in (*self._decided, *self._ends):
            self._post(now=now, told=told)
        self._decided, self._ends = [], []

    def fetch(self, ack: int) -> tuple[wire.Message, ...]:
        """What has not arrived."""
        while self.outbox and self.outbox[0].number <= ack:
            self.outbox.popleft()
        return tuple([self.outbox[n] for n in range(min(len(self.outbox), MOST_AT_ONCE))])

    def _post(self, **what: Any) -> None:
        self._number += 1
        self.outbox.append(wire.Message(self._number, **what))
        self.is_news = True


class Pool:
    """One engine, for the drivers of one cluster."""

    def __init__(self, name: str, queues: tuple[QueueSpec, ...], now: float) -> None:
        self.name, self.now = name, now
        self.engine = Engine(CONFIG)
        self.shared = SharedEngine(self.engine, self.handle, lambda: self.now)
        self.drivers: dict[str, Driver] = {}
        if queues:
            self.handle(m.QueuesChanged(queues))

    def handle(self, event: m.Event) -> None:
        decisions = self.engine.handle(event, self.now)
        self.shared.after(event, self.now)
        for decision in decisions:
            self.shared.decided(decision, self.now)

    def at(self, now: float) -> None:
        self.now = max(self.now, now)
        due = self.engine.next_wakeup()
        if due is not None and due <= self.now:
            self.handle(m.Tick())


class Pools:
    """See the module. epoch: random, of this server's life; started_at: second since 1970 at which its clock is 0.
    team_of_queue: whose the queues are."""

    def __init__(
        self,
        queues: tuple[QueueSpec, ...],
        epoch: str,
        started_at: float,
        team_of_queue: Mapping[str, str] | None = None,
    ) -> None:
        self._team_of_queue = team_of_queue or {}
        self._queues, self._epoch, self._started_at = queues, epoch, started_at
        self._names = tuple([queue.name for queue in queues])
        self._pools: dict[str, Pool] = {}
        self._drivers: dict[str, Driver] = {}
        self._last = 0
        self._now = 0.0
        self._gone: set[str] = set()

    # --- time ---

    def at(self, now: float) -> None:
        """It is now so late: timers act, and who is silent for too long is taken for gone. To be called again and
        again: after a pause longer than STALL_S nobody could be heard, so each gets a full time to live."""
        if now - self._now > STALL_S:
            for driver in self._drivers.values():
                driver.heard_at = now
        self._now = max(self._now, now)
        for driver in [one for one in self._drivers.values() if self._now - one.heard_at > TTL_S]:
            self._drop(driver)
        for pool in list(self._pools.values()):
            self._guarded(pool, lambda pool=pool: pool.at(self._now))  # type: ignore[misc]  # one each

    def next_wakeup(self) -> float | None:
        """When `at` has to be called if nothing happens before."""
        dues = [due for pool in self._pools.values() if (due := pool.engine.next_wakeup()) is not None]
        return min([*dues, *[one.heard_at + TTL_S for one in self._drivers.values()]], default=None)

    def take_news(self) -> list[str]:
        """Drivers with something new to fetch, and those that are gone, since the last call."""
        found = [*self._gone, *[one.id for one in self._drivers.values() if one.is_news]]
        self._gone = set()
        for driver in self._drivers.values():
            driver.is_news = False
        return found

    def validate(self) -> None:
        """Raise AssertionError when an invariant of an engine's state does not hold."""
        for pool in self._pools.values():
            pool.engine.validate_state()
            state = pool.engine.state
            assert all(pool.shared.owner(state.task_of[phase]).is_open for phase in state.leases)

    # --- what drivers ask ---

    def join(self, who: Principal, ask: c.DriverRequest) -> c.Driver:
        """A seat in its pool. Raises Refusal for a queue that there is not, or not for this principal."""
        who.need(SUBMITTING, "to share a pool")
        driver = next((one for one in self._drivers.values() if (one.user, one.key) == (who.name, ask.key)), None)
        if driver is None:
            if len(self._drivers) >= MOST_DRIVERS:
                raise Refusal(429, f"{MOST_DRIVERS} drivers have joined: end some, or wait")
            queue = self._queue_for(who, ask.queue)
            team = self._team_of_queue.get(queue, "") or who.team
            name = f"{ask.framework}:{ask.pool}"
            if name not in self._pools:
                self._pools[name] = Pool(name, self._queues, self._now)
            self._last += 1
            driver = Driver(self._last, who, ask, queue, team, self._pools[name], self._now)
            self._drivers[driver.id] = driver.pool.drivers[driver.id] = driver
        return c.Driver(id=driver.id, epoch=self._epoch, ttl_s=TTL_S, now=self._now, queue=driver.queue)

    def _queue_for(self, who: Principal, asked: str) -> str:
        return queue_for(who, asked, self._names, self._team_of_queue, "EGS_QUEUE")

    def batch(self, who: Principal, driver_id: str, body: bytes) -> bytes:
        """What a driver tells and asks: encoded `Answers`. A repeated batch is answered as before. Raises Refusal."""
        try:
            batch = msgspec.json.decode(body, type=wire.Batch)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Refusal(422, f"no batch: {error}") from None
        driver = self._heard(who, driver_id, batch.epoch)
        if batch.seq == driver.seq:
            return driver.answered
        if batch.seq < driver.seq:
            raise Refusal(409, f"seq: batch {driver.seq} has been answered")
        answers: list[wire.Answer] = []
        self._guarded(driver.pool, lambda: answers.extend(self._take_all(who, driver, batch.items)))
        if driver.id not in self._drivers:
            raise Refusal(410, GONE)
        driver.seq, driver.answered = batch.seq, msgspec.json.encode(wire.Answers(tuple(answers)))
        return driver.answered

    def poll(self, who: Principal, driver_id: str, ask: c.Poll) -> tuple[wire.Message, ...]:
        """What the driver has not got yet; a sign of life. Raises Refusal."""
        return self._heard(who, driver_id, ask.epoch).fetch(ask.ack)

    def leave(self, who: Principal, driver_id: str, ask: c.Leave) -> c.Left:
        """The driver needs the site no more. Raises Refusal."""
        self._drop(self._heard(who, driver_id, ask.epoch))
        return c.Left(id=driver_id)

    def _heard(self, who: Principal, driver_id: str, epoch: str) -> Driver:
        driver = self._drivers.get(driver_id)
        if driver is None or epoch != self._epoch or not who.may_hold(driver):
            raise Refusal(410, GONE)
        driver.heard_at = self._now
        return driver

    def _take_all(self, who: Principal, driver: Driver, items: Iterable[wire.AnyItem]) -> list[wire.Answer]:
        answers = []
        for item in items:
            if isinstance(item, wire.Reported):
                try:
                    driver.seat.report(self._placed(who, driver, item.event))
                except ValueError as error:
                    raise Refusal(422, str(error)) from error  # nothing was changed by it
            elif isinstance(item, wire.Noted):
                driver.seat.note(item.note)
            elif isinstance(item, wire.Mark):
                driver.mark(item.number)
            else:
                answers.append(_answered(driver, item))
        return answers

    def _placed(self, who: Principal, driver: Driver, event: m.Event) -> m.Event:
        """A workload is its driver's user's: in the queue that it names if that may be used, else in the one that its
        driver has joined with."""
        if not isinstance(event, m.WorkloadSubmitted):
            return event
        usable = queues_of(who, self._names, self._team_of_queue)
        queue = event.queue if event.queue in usable else driver.queue
        return msgspec.structs.replace(event, tenant=driver.user, queue=queue)

    def _guarded(self, pool: Pool, action: Callable[[], None]) -> None:
        """Whatever fails in an engine ends its pool, not the server: its drivers go on without."""
        try:
            action()
        except Refusal:
            raise
        except Exception:
            LOG.exception("the engine of pool %s has failed: its drivers go on without it", pool.name)
            self._pools.pop(pool.name, None)
            for driver in pool.drivers.values():
                self._drivers.pop(driver.id, None)
                self._gone.add(driver.id)
            return
        for driver in pool.drivers.values():
            driver.flush()
        for driver in [one for one in pool.drivers.values() if len(one.outbox) > MOST_UNREAD]:
            self._drop(driver)

    def _drop(self, driver: Driver) -> None:
        pool = driver.pool
        self._drivers.pop(driver.id, None)
        pool.drivers.pop(driver.id, None)
        self._gone.add(driver.id)
        if pool.drivers:
            self._guarded(pool, lambda: pool.shared.leave(driver.seat))
        else:
            self._pools.pop(pool.name, None)

    # --- what people ask ---

    def listed(self, who: Principal) -> tuple[c.RunView, ...]:
        """All drivers that the asker sees, those that joined first first."""
        heads = self._heads()
        return tuple([self._view(who, one, heads) for one in self._drivers.values() if who.sees(one)])

    def queue(self, who: Principal) -> tuple[c.RunView, ...]:
        """Those with tasks that wait, in the order of their first ones; pools one after the other."""
        heads = self._heads()
        drivers = [self._drivers[driver] for driver in heads]
        return tuple([self._view(who, one, heads) for one in drivers if who.sees(one)])

    def view(self, who: Principal, driver_id: str) -> c.RunView:
        """One driver, and why its first task waits. Raises Refusal."""
        who.need_to_see()
        return self._view(who, self._visible(who, driver_id), self._heads())

    def control(self, who: Principal, driver_id: str, verb: str, ask: c.Control) -> c.RunView:
        """abort, pause or resume: the driver is asked to. Raises Refusal."""
        driver = self._visible(who, driver_id)
        if not who.may_change(driver):
            raise Refusal(403, f"driver {driver_id} is of {driver.user}: only that user and operators may change it")
        driver.ask(s.Asked(verb, who.name, ask.reason, ask.grace_s))
        view = self.view(who, driver_id)
        return view.model_copy(update={"state": "stopping"}) if verb == "abort" else view

    def _visible(self, who: Principal, driver_id: str) -> Driver:
        """Raises Refusal (404), the same for a driver of another team and for none."""
        driver = self._drivers.get(driver_id)
        if driver is None or not who.sees(driver):
            raise Refusal(404, f"there is no driver {driver_id!r}: `egs ps` lists those that are there")
        return driver

    def _heads(self) -> dict[str, list[int]]:
        """By driver, in the order of their first ones: its phases with GPUs that are ready and wait."""
        found: dict[str, list[int]] = {}
        by_seat = {id(one.seat): one.id for one in self._drivers.values()}
        for pool in self._pools.values():
            state = pool.engine.state
            for phase in pool.engine.ready_order():
                driver = by_seat.get(id(pool.shared.owner(state.task_of[phase])))
                if driver is not None and state.shape_of(phase).gpu_milli:
                    found.setdefault(driver, []).append(phase)
        return found

    def _view(self, who: Principal, driver: Driver, heads: dict[str, list[int]]) -> c.RunView:
        pool, waiting = driver.pool, heads.get(driver.id, [])
        state = pool.engine.state
        leases = [
            lease
            for phase, lease in state.leases.items()
            if lease.gpu_milli and pool.shared.owner(state.task_of[phase]) is driver.seat
        ]
        paused = any(f"workload:{workload}" in state.pauses for workload in driver.seat.workloads)
        reason = driver.seat.why(state.task_of[waiting[0]]) if waiting else None
        tell = _whole if all(who.sees(one) for one in pool.drivers.values()) else _without_names
        held = sum(lease.gpu_milli * len(lease.devices) for lease in leases) / 1000
        return c.RunView(
            id=driver.id,
            name=driver.name,
            user=driver.user,
            state="paused" if paused else "running" if leases else "waiting" if waiting else "idle",
            version=0,
            gpus=held,
            cpus=0.0,
            memory_bytes=0,
            queue=driver.queue,
            team=driver.team,
            priority=0,
            submitted_at=self._started_at + driver.joined_at,
            kind=reason.kind if reason is not None else "",
            reason=f"{reason.task}: {tell(reason)}" if reason is not None else "",
            beat_s=TTL_S,
            framework=driver.framework,
            tasks=c.DriverTasks(running=len(leases), waiting=len(waiting)),
        )


def is_driver(run: str) -> bool:
    """Whether this is an id of a driver, rather than of a run."""
    return run.startswith("r")


def _whole(reason: m.Reason) -> str:
    return reason.text


def _without_names(reason: m.Reason) -> str:
    """The same where tasks of another team may be ahead: of those not even a name is told."""
    if reason.kind == "reservation":
        return "room is there, but kept for others"
    return reason.text.removesuffix(reason.own) + "; others are ahead of it" if reason.waiting_for else reason.text


def _answered(driver: Driver, item: wire.Asking) -> wire.Answer:
    try:
        return wire.Answer(msgspec.Raw(msgspec.json.encode(_found(driver, item))))
    except KeyError as error:
        return wire.Answer(problem=str(error), is_unknown=True)
    except ValueError as error:
        return wire.Answer(problem=str(error))


def _found(driver: Driver, item: wire.Asking) -> Any:
    seat = driver.seat
    if isinstance(item, wire.Growing):
        return seat.grow(item.workload, item.at, item.graph)
    if isinstance(item, wire.Workload):
        return seat.workload(item.workload)
    if isinstance(item, wire.Order):
        return seat.order()
    asked: Sequence[int] = (item.task,) if isinstance(item, wire.Why) else item.numbers
    if not seat.owns(asked):
        raise ValueError("a task that is not the driver's")
    return seat.why(asked[0]) if isinstance(item, wire.Why) else [seat.status_of(task) for task in asked]
