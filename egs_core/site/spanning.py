"""Quotas and shares over several engines: what the work of one pool holds of a queue's quota the others count too.

    an event of pool A ─► A is told what the others hold ─► A decides ─► quota came free, or somebody new waits for it:
                                                                           turns, until nobody can take any more

    turns     the first in order that waits for quota, whichever its pool, may take what it needs, and nobody else;
              in the order of: would not borrow, least share of its queue, waits longest; at last whoever can

So no two pools grant at the same moment by the same numbers, no pool keeps what comes free from one that waited before
it, and no quota is kept for somebody who cannot use it. A queue for whose quota no two pools wait is decided by its
pool's engine alone. It touches no clock, thread or network: one thread at a time calls it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol

from egs_core.engine import Engine
from egs_core.engine import messages as m
from egs_core.engine.rules import quota
from egs_core.engine.specs import NO_LIMIT, NO_QUEUE, NOTHING, Amounts
from egs_core.engine.state.nodes import Node
from egs_core.engine.state.records import QueueState, amounts_of
from egs_core.errors import listed

LOG = logging.getLogger("uvicorn.error")
IDLE_S = 10.0  # how often one with no work is told what others use, for its decayed shares
FREES_NOTHING = frozenset({m.PhaseStarted, m.DecisionApplied, m.Checkpointed, m.Activity})
SHOWN = 4
GPU = 1  # in `Amounts`
Owner = Any  # a run, or a driver: what a principal sees or does not
Holders = Callable[[str], Iterable[tuple[Owner, str]]]


class Meter(Protocol):
    """Who counts what queues use over time. queues: which; stopped: those that have used all that they may, and get no
    more GPUs; has_prices: on which nodes they hold GPUs counts, too."""

    @property
    def queues(self) -> Collection[str]: ...

    @property
    def stopped(self) -> Collection[str]: ...

    @property
    def has_prices(self) -> bool: ...

    def advance(self) -> bool:
        """It is later; whether a queue may go on that was stopped."""

    def holding(self, milli: Mapping[str, int], on_nodes: Mapping[str, Mapping[str, int]]) -> None:
        """What each queue holds from now on in all pools, in thousandths of GPUs; on_nodes: the same by node, where
        prices count."""


class Unmetered:
    """Nothing is counted."""

    queues: Collection[str] = ()
    stopped: Collection[str] = ()
    has_prices = False

    def advance(self) -> bool:
        return False

    def holding(self, milli: Mapping[str, int], on_nodes: Mapping[str, Mapping[str, int]]) -> None:
        pass


class Member:
    """A pool. take: hands an event to its engine, with all that follows; holders: who holds something in a queue;
    woken: it was given something, and not because of an event of its own.

    waits: by queue, what it could start at once if there were quota, and since which turn. is_closed: it is counted and
    gets no turns; error: why, where its engine has failed in one."""

    def __init__(
        self, engine: Engine, take: Callable[[m.Event], None], holders: Holders, woken: Callable[[], None]
    ) -> None:
        self.engine, self.take, self.holders, self.woken = engine, take, holders, woken
        self.waits: dict[str, tuple[Amounts, int]] = {}
        self._on_nodes: tuple[Any, dict[str, dict[str, int]]] = (None, {})
        self.is_closed = False
        self.is_stale = True  # its waits have not been looked at since it decided last
        self.error: Exception | None = None

    @property
    def queues(self) -> list[QueueState]:
        return self.engine.state.queues

    def on_nodes(self) -> dict[str, dict[str, int]]:
        """Thousandths of GPUs that it holds, by queue and node, or NODE/FLAVOR where the flavor has a name of its own:
        by that prices are found where a framework gives nodes names that nobody knows before."""
        state = self.engine.state
        used = [(queue.spec.name, queue.used[GPU]) for queue in self.queues]
        mark = state.next_decision, len(state.leases), used  # each lease is of a new decision
        if self._on_nodes[0] != mark:
            found: dict[str, dict[str, int]] = {}
            for phase, lease in state.leases.items():
                number, milli = state.queue_of(state.task_of[phase]), amounts_of(state.shape_of(phase))[GPU]
                if milli and number != NO_QUEUE:
                    of_queue = found.setdefault(self.queues[number].spec.name, {})
                    for called, part in on_node(state.nodes[lease.node], lease.devices, milli):
                        of_queue[called] = of_queue.get(called, 0) + part
            self._on_nodes = mark, found
        return self._on_nodes[1]

    def used(self, name: str) -> Amounts:
        """What it holds in this queue."""
        number = self.engine.state.queue_numbers.get(name)
        return NOTHING if number is None else _amounts(self.queues[number].used)

    def check(self) -> None:
        """Raise what has failed in a turn."""
        if self.error is not None:
            raise self.error


class Spanning:
    """See the module. All its members have the same queues. meter: whose word it is that a queue gets no more GPUs."""

    def __init__(self, meter: Meter | None = None) -> None:
        self._meter = meter or Unmetered()
        self._members: list[Member] = []
        self._turn = 0

    def join(
        self,
        engine: Engine,
        take: Callable[[m.Event], None],
        holders: Holders,
        woken: Callable[[], None] = lambda: None,
    ) -> Member:
        """One more pool; what it holds already counts from now on."""
        self._members.append(Member(engine, take, holders, woken))
        return self._members[-1]

    def leave(self, member: Member) -> None:
        """The pool is gone: what it held is there for the others."""
        if member in self._members:
            self._members.remove(member)
            self._give(None)
            self._count()

    def handle(self, member: Member, event: m.Event) -> None:
        """An event for this pool."""
        self._advance()
        self._handle(member, event)
        self._count()

    def _handle(self, member: Member, event: m.Event) -> None:
        if not self._concerns(member):
            member.is_stale = True
            member.take(event)
            return
        self._look_at_stale()
        held, waits = self._held(member), self._wanted(member)
        self._tell(member, is_open=type(event) in FREES_NOTHING)
        member.take(event)
        self._look(member)
        now = self._held(member)
        frees = any(a < b for name in held for a, b in zip(now.get(name, NOTHING), held[name], strict=True))
        if frees or waits != self._wanted(member):
            self._give(member)

    def refresh(self, member: Member, now: float) -> None:
        """Time has passed: what others use counts in its decayed shares; in those of one without work not at once."""
        self._advance()
        settled = [queue.smoothed_at for queue in member.queues]
        is_due = not member.engine.is_idle or now - max(settled, default=0.0) >= IDLE_S
        if is_due and not member.is_closed and self._concerns(member):
            self._tell(member, is_open=True)
            self._look(member)
            self._count()

    def gpus_held(self) -> dict[str, int]:
        """Of each queue that is counted, in all pools: thousandths."""
        return {name: sum(one.used(name)[GPU] for one in self._members) for name in self._meter.queues}

    def gpus_on_nodes(self) -> dict[str, dict[str, int]]:
        """The same by node; nothing where nobody wants to know."""
        found: dict[str, dict[str, int]] = {}
        for one in self._members if self._meter.has_prices else ():
            for name, by_node in one.on_nodes().items():
                of_queue = found.setdefault(name, {})
                for node, milli in by_node.items():
                    of_queue[node] = of_queue.get(node, 0) + milli
        return found

    def holders(self, member: Member, name: str, sees: Callable[[Any], bool]) -> str:
        """Who holds something in this queue in other pools, for whoever sees some of them; "" for nobody."""
        found = [one for other in self._members if other is not member for one in other.holders(name)]
        seen = [label for owner, label in found if sees(owner)]
        seen += [f"{others} of other teams"] if (others := len(found) - len(seen)) else []
        return f"; in other pools it is used by {listed(seen, SHOWN)}" if seen else ""

    # --- what is used over time ---

    def _advance(self) -> None:
        """Who may go on gets turns at once, in order."""
        if self._meter.advance():
            for one in self._members:
                one.is_stale = True
            self._give(None)
            self._count()

    def _count(self) -> None:
        if self._meter.queues:
            self._meter.holding(self.gpus_held(), self.gpus_on_nodes())

    # --- what each is told ---

    def _concerns(self, member: Member) -> bool:
        """Whether others have work, or it still believes so."""
        if not member.queues:
            return False
        if self._meter.stopped or any(one.elsewhere != NOTHING or one.most != NO_LIMIT for one in member.queues):
            return True
        return any(one is not member and not one.engine.is_idle for one in self._members)

    def _tell(self, member: Member, turn: str = "", wanted: Amounts = NOTHING, *, is_open: bool = False) -> None:
        """What others hold, if that is news. turn: the one queue of contended ones that may take now, so much."""
        told, is_news = [], False
        for queue in member.queues:
            name, most = queue.spec.name, NO_LIMIT
            used = self._elsewhere(member, name)
            if not is_open and self._is_contended(member, queue):
                most = _sum(_amounts(queue.used), wanted) if name == turn else NOTHING
            if name in self._meter.stopped:
                most = most[0], 0, most[2]
            if used != NOTHING or most != NO_LIMIT:
                told.append(m.Elsewhere(name, used, most))
            is_news = is_news or (used, most) != (queue.elsewhere, queue.most)
        if is_news:
            member.take(m.UsedElsewhere(tuple(told)))

    def _elsewhere(self, member: Member, name: str) -> Amounts:
        used = NOTHING
        for one in self._members:
            if one is not member:
                used = _sum(used, one.used(name))
        return used

    def _is_contended(self, member: Member, queue: QueueState) -> bool:
        """Whether another pool waits for quota of its cohort."""
        names = {member.queues[number].spec.name for number in queue.cohort}
        others = [one for one in self._members if one is not member and not one.is_closed]
        return any(name in names for one in others for name in one.waits)

    # --- turns ---

    def _give(self, current: Member | None) -> None:
        """Turns until nobody can take any more."""
        self._look_at_stale()
        for is_open in (False, True):
            tried: set[tuple[int, str]] = set()
            while (found := self._first(tried)) is not None:
                member, name = found
                if self._takes(member, name, current, is_open=is_open):
                    tried.clear()
                else:
                    tried.add((id(member), name))

    def _takes(self, member: Member, name: str, current: Member | None, *, is_open: bool) -> bool:
        """A turn; whether it has taken something."""
        held = self._held(member)
        try:
            self._tell(member, name, member.waits[name][0], is_open=is_open)
            taken = [one for one, used in self._held(member).items() if used != held[one]]
            for one in taken:
                member.waits.pop(one, None)  # what it waits for next waits since now
            self._look(member)
        except Exception as error:
            if member is current:
                raise
            LOG.exception("a pool has failed in its turn: it gets no more")
            member.error, member.is_closed, member.waits = error, True, {}
            return False
        if taken and member is not current:
            member.woken()
        return bool(taken)

    def _first(self, tried: set[tuple[int, str]]) -> tuple[Member, str] | None:
        """The first in order that waits and has not had its turn."""
        waiting = [
            (one, name)
            for one in self._members
            for name in one.waits
            if not one.is_closed and (id(one), name) not in tried
        ]
        return min(waiting, key=lambda found: self._place(*found), default=None)

    def _place(self, member: Member, name: str) -> tuple[bool, float, int]:
        wanted, since = member.waits[name]
        first = next(one for one in self._members if name in one.engine.state.queue_numbers)  # one share a queue
        capacity = NOTHING
        for one in self._members:
            capacity = _sum(capacity, one.engine.state.capacity())
        share = quota.fair_share(self._fresh(first, name), NOTHING, capacity, first.engine.state.now)
        return quota.borrows(self._fresh(member, name), wanted), share, since

    def _fresh(self, member: Member, name: str) -> QueueState:
        queue = member.queues[member.engine.state.queue_numbers[name]]
        elsewhere = self._elsewhere(member, name)
        return QueueState(queue.spec, queue.cohort, queue.used, queue.smoothed, queue.smoothed_at, elsewhere)

    def _look(self, member: Member) -> None:
        """What it waits for now; what waited before does so since then."""
        member.is_stale, before, found = False, member.waits, {}
        for name, wanted in member.engine.waiting_for_quota().items():
            if name in self._meter.stopped and wanted[GPU]:
                continue  # it waits for the time, and keeps nothing from others
            if name in before:
                found[name] = wanted, before[name][1]
            else:
                self._turn += 1
                found[name] = wanted, self._turn
        member.waits = found

    def _look_at_stale(self) -> None:
        for one in self._members:
            if one.is_stale and not one.is_closed:
                self._look(one)

    def _wanted(self, member: Member) -> dict[str, Amounts]:
        return {name: wanted for name, (wanted, _) in member.waits.items()}

    def _held(self, member: Member) -> dict[str, Amounts]:
        return {queue.spec.name: _amounts(queue.used) for queue in member.queues}


def on_node(node: Node, devices: tuple[int, ...], milli: int) -> Iterator[tuple[str, int]]:
    """What is held there, by what it is called."""
    flavors = [node.device_flavors[one] for one in devices if one < len(node.device_flavors)]
    if not flavors:
        flavors = [node.flavor]
    for number, flavor in enumerate(flavors):
        own = flavor.removeprefix(f"{node.name}/")
        part = milli // len(flavors) + (number < milli % len(flavors))
        yield node.name if own in ("", node.name) else f"{node.name}/{own}", part


def _amounts(used: list[int]) -> Amounts:
    return used[0], used[1], used[2]


def _sum(first: Amounts, second: Amounts) -> Amounts:
    return first[0] + second[0], first[1] + second[1], first[2] + second[2]
