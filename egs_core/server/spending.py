"""What queues have used of their budgets, of GPU hours or money, counted over all pools of a server, and whose are used
up.

    pools ── what they hold now ─► Spending ── which queues get nothing new ─► pools
                                      └── with a batch's commit ─► the store ─► the next server

A budget is settled when what is held of it changes, so between two moments nothing changes and the count is exact.
What runs hold is in the store with it: the next server counts the time in which there was none. What drivers of
frameworks have used since it was written last is lost with the server. It touches no clock but the one that it is
given; one thread at a time calls it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import msgspec

from egs_core.budgets import (
    HOUR_S,
    Budget,
    Spent,
    is_used_up,
    notice_words,
    period_of,
    queues_of,
    spent_until,
    state_of,
    used_up_at,
    why_words,
)
from egs_core.client.messages import BudgetView
from egs_core.server import principals
from egs_core.server.principals import Principal
from egs_core.server.runs import WHOLE_DEVICE

OnNodes = Mapping[str, Mapping[str, int]]
"""Of each queue the thousandths of GPUs that it holds, by node."""
SAVE_S = 10.0  # so much of what drivers use a crash may lose


class Saved(msgspec.Struct, frozen=True):
    """What the store has: of each budget, also of those that the file has no longer, what was used. at: when it was
    written; what is older was not counted then."""

    at: float = 0.0
    spent: dict[str, Spent] = {}


class Rates(Protocol):
    """What GPUs cost. Moments are seconds since 1970; each node has a price at each of them."""

    def of(self, node: str, times: Iterable[tuple[float, float]]) -> float:
        """What one GPU of the node costs in these stretches."""

    def changes_after(self, node: str, at: float) -> float:
        """When its price is another one next; infinity for never."""


class Count(msgspec.Struct):
    """Of one budget what was used up to a moment, the GPUs held since then, and when something changes by itself.
    rates, on_nodes: of a budget of money: prices, and the GPUs by node."""

    budget: Budget
    spent: Spent
    gpus: float = 0.0
    changes_at: float = math.inf
    rates: Rates | None = None
    on_nodes: dict[str, float] = {}

    def settle(self, now: float) -> None:
        self.spent = spent_until(self.spent, self.budget, self.gpus, now, self._cost)
        if self.rates is None:
            rate, another_price_at = self.gpus, math.inf
        else:
            rate = self._cost(now, now + 1.0)
            another_price_at = min((self.rates.changes_after(node, now) for node in self.on_nodes), default=math.inf)
        due = used_up_at(self.budget, self.spent, rate)
        end = period_of(now, self.budget.per, self.budget.zone).end
        self.changes_at = min(end, another_price_at, math.inf if due is None else due)

    def _cost(self, start: float, end: float) -> float:
        """Of what is held, between two moments."""
        if self.rates is None:
            return 0.0
        return sum(gpus * self.rates.of(node, [(start, end)]) for node, gpus in self.on_nodes.items())

    @property
    def held(self) -> tuple[float, dict[str, float]]:
        """So that it can be seen whether it is another."""
        return self.gpus, self.on_nodes

    def hold(self, gpus: float, on_nodes: dict[str, float]) -> None:
        self.gpus, self.on_nodes = gpus, on_nodes

    @property
    def is_used_up(self) -> bool:
        return is_used_up(self.budget, self.spent)


class Spending:
    """See the module. clock: seconds since 1970, which do not go back; rates: needed where a budget is of money.
    queues: that are counted; has_prices: where they hold GPUs counts, too; stopped: those that get nothing new."""

    def __init__(
        self,
        budgets: Iterable[Budget] = (),
        clock: Callable[[], float] = lambda: 0.0,
        rates: Rates | None = None,
    ) -> None:
        self._budgets = {budget.key: budget for budget in budgets}
        self._clock, self._rates = clock, rates
        self.has_prices = any(budget.cost is not None for budget in self._budgets.values())
        assert rates is not None or not self.has_prices, "a budget of money needs prices"
        self.queues = queues_of(self._budgets.values())
        self.stopped: frozenset[str] = frozenset()
        self._counts: dict[str, Count] = {}  # none before it has begun
        self._changes_at = math.inf  # when one of them does
        self._saved = Saved()
        self._saved_held: dict[str, tuple[float, dict[str, float]]] = {}
        self._held_to_save: dict[str, tuple[float, dict[str, float]]] = {}
        self._has_begun = False

    # --- the server's side ---

    def begin(self, saved: Saved, milli: Mapping[str, int], on_nodes: OnNodes | None = None) -> None:
        """Go on from what is durable, where runs hold these thousandths of GPUs and have since it was written. Once in
        the life of a process: later it has counted more than is durable."""
        if self._has_begun:
            return
        now = self._clock()
        self._has_begun, self._saved = True, saved
        for key, budget in self._budgets.items():
            before = saved.spent.get(key)
            if before is None or before.at < saved.at:  # it was not counted until then
                before = msgspec.structs.replace(before, at=now) if before else Spent("", 0.0, now)
            at = min(before.at, now)  # a clock may have been set back
            count = self._counts[key] = Count(budget, msgspec.structs.replace(before, at=at))
            count.rates = self._rates if budget.cost is not None else None
            count.hold(*_held(budget, milli, on_nodes or {}))
        self._settle(now)

    def to_save(self, *, is_changing: bool) -> Saved | None:
        """What the next commit has to write; None where that is not due. is_changing: what runs hold may have changed
        since the last one, so that both have to be of one moment."""
        now = self._clock()
        is_due = is_changing and self._held != self._saved_held
        is_due = is_due or (self._has_news and now - self._saved.at >= SAVE_S)
        kept = {key: spent for key, spent in self._saved.spent.items() if key not in self._budgets}
        is_left = not self._budgets and any(spent.at == self._saved.at for spent in kept.values())
        if not (is_due or is_left):
            return None
        for count in self._counts.values():
            count.settle(now)
        self._held_to_save = self._held
        return Saved(now, {**kept, **{key: count.spent for key, count in self._counts.items()}})

    def saved(self, what: Saved | None) -> None:
        """It is durable."""
        if what is not None:
            self._saved, self._saved_held = what, self._held_to_save

    def next_due(self) -> float | None:
        """When `advance` or `to_save` has something to do if nothing happens before, in seconds since 1970."""
        due = min(self._changes_at, self._saved.at + SAVE_S if self._has_news else math.inf)
        return None if due == math.inf else due

    @property
    def _held(self) -> dict[str, tuple[float, dict[str, float]]]:
        return {key: count.held for key, count in self._counts.items() if count.gpus}

    @property
    def _has_news(self) -> bool:
        """Whether more is used by now than was written."""
        for key, count in self._counts.items():
            saved = self._saved.spent.get(key)
            if count.gpus or saved is None or (saved.period, saved.gpu_s) != (count.spent.period, count.spent.gpu_s):
                return True
        return False

    # --- the pools' side ---

    def advance(self) -> bool:
        """It is later; whether a queue may go on that got nothing before."""
        if not self._counts or (now := self._clock()) < self._changes_at:
            return False
        before = self.stopped
        self._settle(now)
        return bool(before - self.stopped)

    def holding(self, milli: Mapping[str, int], on_nodes: OnNodes | None = None) -> None:
        """What is held of each queue in all pools now, in thousandths of GPUs; on_nodes: where, if prices count."""
        for count in self._counts.values():
            held = _held(count.budget, milli, on_nodes or {})
            if held != count.held:
                now = self._clock()
                count.settle(now)
                count.hold(*held)
                count.settle(now)
                is_due = (
                    self._changes_at <= now or self._used_up() != self.stopped
                )  # `advance` says so, and nobody else
                self._changes_at = now if is_due else self._next_change()

    def _settle(self, now: float) -> None:
        for count in self._counts.values():
            count.settle(now)
        self._changes_at, self.stopped = self._next_change(), self._used_up()

    def _next_change(self) -> float:
        return min((one.changes_at for one in self._counts.values()), default=math.inf)

    def _used_up(self) -> frozenset[str]:
        counts = self._counts.values()
        return queues_of(one.budget for one in counts if one.is_used_up and one.budget.then == "stop")

    # --- what is told ---

    def why(self, queue: str) -> str:
        """Why nothing new of the queue starts; "" where it may."""
        if queue not in self.stopped:
            return ""
        found = [one for one in self._of(queue) if one.budget.then == "stop" and one.is_used_up]
        return why_words(found[0].budget, found[0].spent) if found else ""

    def notice(self, queue: str) -> str:
        """What who submits to the queue is to be told, beside `why`; "" for nothing."""
        if queue not in self.queues:
            return ""
        found = [notice_words(one.budget, one.spent) for one in self._of(queue)]
        return "; ".join(text for text in found if text)

    def _of(self, queue: str) -> list[Count]:
        """The counts of its budgets, as they are now."""
        found = [one for one in self._counts.values() if queue in one.budget.queues]
        for one in found:
            one.settle(self._clock())
        return found

    def views(self, who: Principal, team_of_queue: Mapping[str, str]) -> tuple[BudgetView, ...]:
        """Those of the queues that it may use. What is used of a queue of no team is not one team's to see."""
        seen = [one for one in self._counts.values() if principals.queues_of(who, one.budget.queues, team_of_queue)]
        for one in seen:
            one.settle(self._clock())
        return tuple([_view(who, one.budget, one.spent) for one in seen])


def _held(budget: Budget, milli: Mapping[str, int], on_nodes: OnNodes) -> tuple[float, dict[str, float]]:
    """GPUs, of all its queues; of a budget of money also by node."""
    gpus, found = sum(milli.get(name, 0) for name in budget.queues) / WHOLE_DEVICE, Counter[str]()
    if budget.cost is not None:
        for name in budget.queues:
            found.update(on_nodes.get(name, {}))
    return gpus, {node: one / WHOLE_DEVICE for node, one in found.items() if one}


def _view(who: Principal, budget: Budget, spent: Spent) -> BudgetView:
    is_told = who.teams is None or not budget.is_shared
    period = period_of(spent.at, budget.per, budget.zone)
    return BudgetView(
        queue=budget.queue,
        team=budget.team,
        gpu_hours=budget.gpu_hours,
        used=spent.gpu_s / HOUR_S if is_told else None,
        period=period.label,
        begins_at=period.begin,
        ends_at=period.end,
        zone=budget.zone,
        warn_at=budget.warn_at,
        then=budget.then,
        state=state_of(budget, spent),
        cost=budget.cost,
        cost_used=spent.cost if is_told and budget.cost is not None else None,
        currency=budget.currency,
    )
