"""Drivers of frameworks that share a pool: one engine a pool, and what each is told. Touches no clock or network.

    join ─► seat at the pool's engine ─► batch: events, blocks, questions ─► grants … ─► outbox ─► poll(ack)
                                          └ silent for TTL_S, or leave: its work is gone, what it held is free

The framework's own books say where a task runs; the engine says when it may. Nothing here outlives the process: drivers
go on without it. So nothing is committed, and a pool without drivers is forgotten, its decayed shares too. Who may join
and in which queue is for a subclass to say, as the server's.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import msgspec

from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.specs import QueueSpec
from egs_core.runlog import records as r
from egs_core.site import messages as s
from egs_core.site import wire
from egs_core.site.held import Counter, Held, Holdings
from egs_core.site.refusal import Refusal
from egs_core.site.shared import SharedEngine
from egs_core.site.spanning import Spanning
from egs_core.site.whereabouts import Whereabouts

LOG = logging.getLogger("uvicorn.error")
TTL_S = 20.0  # after so long tickets in a framework open by themselves, too
STALL_S = 5.0
GATHER_S = 5.0  # that a pool into which a driver comes back waits for the others
MOST_DRIVERS = 200
MOST_UNREAD = 500_000  # messages that a driver has not fetched
MOST_AT_ONCE = 2000
CONFIG = EngineConfig()
GONE = "the site does not know this driver (any more)"


class About(msgspec.Struct, frozen=True):
    """A driver that joins. key: its own, so that a repeated request is known; pool: whose devices; name: what others
    see; queue: in which its work is."""

    key: str
    framework: str
    pool: str
    name: str
    queue: str = ""
    user: str = ""
    team: str = ""
    back: bool = False  # it has been in the pool before, and is about to tell what it has


class Driver:
    """One that has joined; a `Listener`. version: counts what it is told, so that a poll need not look."""

    def __init__(self, number: int, about: About, pool: Pool, now: float) -> None:
        self.id, self.pool = f"r{number}", pool
        self.key, self.user, self.framework, self.name = about.key, about.user, about.framework, about.name or "driver"
        self.queue, self.team = about.queue, about.team
        self.joined_at = self.heard_at = now
        self.seq = 0
        self.answered: tuple[wire.Answer, ...] = ()  # to the batch of that number
        self.outbox: deque[wire.Message] = deque()
        self._decided: list[tuple[s.AnyTold, float]] = []
        self._ends: list[tuple[s.AnyTold, float]] = []
        self._number = 0
        self.is_news = False
        self.seat = pool.shared.seat(self, f"{self.id}.")
        self.whereabouts = Whereabouts(pool.engine.state)

    def tell(self, told: s.AnyTold, now: float, *, is_end: bool) -> None:
        (self._ends if is_end else self._decided).append((told, now))

    def record(self, record: r.Record) -> None:
        self._post(wire.Message(self._next(), record=record))  # type: ignore[arg-type]  # every record is one of them

    def mark(self, number: int) -> None:
        self._post(wire.Message(self._next(), mark=number))

    def ask(self, request: s.Asked) -> None:
        self._post(wire.Message(self._next(), asked=request))

    def flush(self) -> None:
        """What was decided goes out, first what may start."""
        if self._decided or self._ends:
            for told, now in (*self._decided, *self._ends):
                self._post(wire.Message(self._next(), now, told))
            self._decided, self._ends = [], []

    def fetch(self, ack: int) -> tuple[wire.Message, ...]:
        """What has not arrived."""
        while self.outbox and self.outbox[0].number <= ack:
            self.outbox.popleft()
        return tuple(islice(self.outbox, MOST_AT_ONCE))

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _post(self, message: wire.Message) -> None:
        self.outbox.append(message)
        self.is_news = True


class Pool:
    """One engine, for the drivers of one cluster. spanning: over which its queues' quotas hold; gather_s: see
    `SharedPools`; counter: of what its tasks hold."""

    def __init__(
        self,
        name: str,
        queues: tuple[QueueSpec, ...],
        now: float,
        spanning: Spanning,
        gather_s: float,
        counter: Counter,
    ) -> None:
        self.name, self.now, self._gather_s = name, now, gather_s
        self.engine = Engine(CONFIG)
        self.shared = SharedEngine(self.engine, self.handle, lambda: self.now)
        self.drivers: dict[str, Driver] = {}
        self.held: Holdings | None = Holdings(self.engine.state, self._driver_of, counter)
        self._telling: set[str] = set()  # drivers that have come back and have not told all that they have
        self._gathers_until = now  # others may come back, too
        self.spanning = spanning
        self.member = spanning.join(self.engine, self._take, self._holders)
        if queues:
            self.handle(m.QueuesChanged(queues))

    def comes_back(self, driver: str, *, is_first: bool) -> None:
        """A driver is about to tell what it runs: nothing is granted before it has, or gather_s have passed. is_first:
        the pool is new to this process, so that others are to be expected."""
        self._telling.add(driver)
        if is_first:
            self._gathers_until = self.now + self._gather_s
        self.handle(m.GrantsHeld(self._gather_s))

    def has_told(self, driver: str) -> None:
        """A driver that has come back has told all, or is gone."""
        if driver in self._telling:
            self._telling.discard(driver)
            if not self._telling:
                self.handle(m.GrantsHeld(max(0.0, self._gathers_until - self.now)))

    def handle(self, event: m.Event) -> None:
        self.spanning.handle(self.member, event)

    def _take(self, event: m.Event) -> None:
        decisions = self.engine.handle(event, self.now)
        self._note_held(lambda held: held.after(event, decisions, self.now))
        self.shared.after(event, self.now)
        for decision in decisions:
            self.shared.decided(decision, self.now)

    def _note_held(self, note: Callable[[Holdings], None]) -> None:
        """Wrong figures are no reason to order nothing."""
        try:
            if self.held is not None:
                note(self.held)
        except Exception:
            LOG.exception("what tasks of pool %s hold is not counted from now on: this is a bug", self.name)
            self.held = None

    def _driver_of(self, task: int) -> Driver | None:
        return self.drivers.get(self.shared.owner(task).prefix.removesuffix("."))

    def closes(self) -> None:
        """It has no drivers any more."""
        self._note_held(lambda held: held.close(self.now))

    def _holders(self, queue: str) -> list[tuple[Driver, str]]:
        """The drivers that hold something in this queue."""
        state = self.engine.state
        tasks = [state.task_of[phase] for phase in state.leases]
        seats = {
            id(self.shared.owner(task)) for task in tasks if state.workloads[state.task_workload[task]].queue == queue
        }
        holding = [one for one in self.drivers.values() if id(one.seat) in seats]
        return [(one, f"{one.id} ({one.name}, {one.user})") for one in holding]

    def at(self, now: float) -> None:
        self.member.check()
        self.now = max(self.now, now)
        due = self.engine.next_wakeup()
        if due is not None and due <= self.now:
            self.handle(m.Tick())
        self.spanning.refresh(self.member, self.now)


class SharedPools:
    """See the module. epoch: random, of this process's life. spanning: what else its queues' quotas hold over.
    gather_s: that a pool into which a driver comes back waits for the others; None: GATHER_S."""

    def __init__(
        self, queues: tuple[QueueSpec, ...], epoch: str, spanning: Spanning | None = None, gather_s: float | None = None
    ) -> None:
        self._queues, self._epoch = queues, epoch
        self._gather_s = GATHER_S if gather_s is None else gather_s
        self._spanning = spanning or Spanning()
        self._names = tuple([queue.name for queue in queues])
        self._pools: dict[str, Pool] = {}
        self._drivers: dict[str, Driver] = {}
        self._last = 0
        self._now = 0.0
        self._gone: set[str] = set()

    # --- what tasks hold: for whoever adds it up ---

    def has_held(self, _part: Held) -> None:
        """See `held.Counter`."""

    def counted_until(self, _part: Held) -> float:
        return -math.inf

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
        for driver in self._drivers.values():
            driver.flush()  # another pool's end may have let it start something
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

    def _known(self, key: str, user: str) -> Driver | None:
        """The driver that has joined with this key."""
        return next((one for one in self._drivers.values() if (one.user, one.key) == (user, key)), None)

    def _joined(self, about: About) -> Driver:
        """A seat in its pool. Raises Refusal where there are too many."""
        if len(self._drivers) >= MOST_DRIVERS:
            raise Refusal(429, f"{MOST_DRIVERS} drivers have joined: end some, or wait")
        name = f"{about.framework}:{about.pool}"
        is_first = name not in self._pools
        if is_first:
            self._pools[name] = Pool(name, self._queues, self._now, self._spanning, self._gather_s, self)
        self._last += 1
        driver = Driver(self._last, about, self._pools[name], self._now)
        self._drivers[driver.id] = driver.pool.drivers[driver.id] = driver
        if about.back:
            self._guarded(driver.pool, lambda: driver.pool.comes_back(driver.id, is_first=is_first))
        return driver

    def _heard(self, driver_id: str, epoch: str) -> Driver:
        """The driver, of which this is a sign of life. Raises Refusal."""
        driver = self._drivers.get(driver_id)
        if driver is None or epoch != self._epoch:
            raise Refusal(410, GONE)
        driver.heard_at = self._now
        return driver

    def _answers(self, driver: Driver, batch: wire.Batch, usable: Sequence[str]) -> bytes:
        """What a driver tells and asks: encoded `Answers`. A repeated batch is answered as before. usable: queues that
        its workloads may name. Raises Refusal."""
        if batch.seq == driver.seq:
            return self._with_messages(driver, driver.answered, batch.ack)
        if batch.seq < driver.seq:
            raise Refusal(409, f"seq: batch {driver.seq} has been answered")
        answers: list[wire.Answer] = []
        self._guarded(driver.pool, lambda: answers.extend(_take_all(driver, batch.items, usable)))
        if driver.id not in self._drivers:
            raise Refusal(410, GONE)
        driver.seq, driver.answered = batch.seq, tuple(answers)
        return self._with_messages(driver, driver.answered, batch.ack)

    def _with_messages(self, driver: Driver, answers: tuple[wire.Answer, ...], ack: int | None) -> bytes:
        """Encoded `Answers`. A poll that waits need not wake for what is told here."""
        messages = driver.fetch(ack) if ack is not None else ()
        driver.is_news = driver.is_news and len(messages) < len(driver.outbox)
        return msgspec.json.encode(wire.Answers(answers, messages))

    def _guarded(self, pool: Pool, action: Callable[[], None]) -> None:
        """Whatever fails in an engine ends its pool, not the server: its drivers go on without."""
        try:
            action()
        except Refusal:
            raise
        except Exception:
            LOG.exception("the engine of pool %s has failed: its drivers go on without it", pool.name)
            self._forget(pool)
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
        pool.now = max(pool.now, self._now)
        self._drivers.pop(driver.id, None)
        pool.drivers.pop(driver.id, None)
        self._gone.add(driver.id)
        if pool.drivers:
            self._guarded(pool, lambda: pool.shared.leave(driver.seat))
            self._guarded(pool, lambda: pool.has_told(driver.id))
        else:
            self._forget(pool)

    def _forget(self, pool: Pool) -> None:
        pool.closes()
        self._pools.pop(pool.name, None)
        self._spanning.leave(pool.member)


def batch_of(body: bytes) -> wire.Batch:
    """What a driver has sent. Raises Refusal."""
    try:
        return msgspec.json.decode(body, type=wire.Batch)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(422, f"no batch: {error}") from None


def _take_all(driver: Driver, items: Iterable[wire.AnyItem], usable: Sequence[str]) -> list[wire.Answer]:
    answers = []
    for item in items:
        if isinstance(item, wire.Reported):
            try:
                driver.seat.report(_placed(driver, item.event, usable))
            except ValueError as error:
                raise Refusal(422, str(error)) from error  # nothing was changed by it
        elif isinstance(item, wire.Noted):
            driver.seat.note(item.note)
        elif isinstance(item, wire.Mark):
            driver.mark(item.number)
        elif isinstance(item, wire.Here):
            driver.pool.has_told(driver.id)
        elif isinstance(item, wire.Told):
            for one in item.tasks:
                if driver.seat.owns((one.task,)):
                    driver.whereabouts.note(one, driver.pool.now)
            for placed in item.placed:
                if driver.seat.owns((placed.task,)):
                    driver.whereabouts.place(placed)
        else:
            answers.append(_answered(driver, item))
    return answers


def _placed(driver: Driver, event: m.Event, usable: Sequence[str]) -> m.Event:
    """A workload is its driver's user's: in the queue that it names if that may be used, else in the one that its
    driver has joined with."""
    if not isinstance(event, m.WorkloadSubmitted):
        return event
    queue = event.queue if event.queue in usable else driver.queue
    return msgspec.structs.replace(event, tenant=driver.user, queue=queue)


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
        return seat.grow(item.workload, item.at, item.graph, item.begun)
    if isinstance(item, wire.Workload):
        return seat.workload(item.workload)
    if isinstance(item, wire.Order):
        return seat.order()
    asked: Sequence[int] = (item.task,) if isinstance(item, wire.Why) else item.numbers
    if not seat.owns(asked):
        raise ValueError("a task that is not the driver's")
    return seat.why(asked[0]) if isinstance(item, wire.Why) else [seat.status_of(task) for task in asked]
