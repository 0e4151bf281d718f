"""What queues have used of their budgets, counted over all pools of a server, and whose are used up.

    pools ── what they hold now ─► Spending ── which queues get nothing new ─► pools
                                      └── with a batch's commit ─► the store ─► the next server

A budget is settled when what is held of it changes, so between two moments nothing changes and the count is exact.
What runs hold is in the store with it: the next server counts the time in which there was none. What drivers of
frameworks have used since it was written last is lost with the server. It touches no clock but the one that it is
given; one thread at a time calls it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

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

SAVE_S = 10.0  # so much of what drivers use a crash may lose


class Saved(msgspec.Struct, frozen=True):
    """What the store has: of each budget, also of those that the file has no longer, what was used. at: when it was
    written; what is older was not counted then."""

    at: float = 0.0
    spent: dict[str, Spent] = {}


class Count(msgspec.Struct):
    """Of one budget what was used up to a moment, the GPUs held since then, and when something changes by itself."""

    budget: Budget
    spent: Spent
    gpus: float = 0.0
    changes_at: float = math.inf

    def settle(self, now: float) -> None:
        self.spent = spent_until(self.spent, self.budget, self.gpus, now)
        due = used_up_at(self.budget, self.spent, self.gpus)
        end = period_of(now, self.budget.per, self.budget.zone).end
        self.changes_at = end if due is None else min(end, due)

    @property
    def is_used_up(self) -> bool:
        return is_used_up(self.budget, self.spent)


class Spending:
    """See the module. clock: seconds since 1970, which do not go back. queues: that are counted; stopped: those that
    get nothing new."""

    def __init__(self, budgets: Iterable[Budget] = (), clock: Callable[[], float] = lambda: 0.0) -> None:
        self._budgets = {budget.key: budget for budget in budgets}
        self._clock = clock
        self.queues = queues_of(self._budgets.values())
        self.stopped: frozenset[str] = frozenset()
        self._counts: dict[str, Count] = {}  # none before it has begun
        self._changes_at = math.inf  # when one of them does
        self._saved = Saved()
        self._saved_gpus: dict[str, float] = {}
        self._gpus_to_save: dict[str, float] = {}
        self._has_begun = False

    # --- the server's side ---

    def begin(self, saved: Saved, milli: Mapping[str, int]) -> None:
        """Go on from what is durable, where runs hold these thousandths of GPUs and have since it was written. Once in
        the life of a process: later it has counted more than is durable."""
        if self._has_begun:
            return
        now = self._clock()
        self._has_begun, self._saved = True, saved
        for key, budget in self._budgets.items():
            before = saved.spent.get(key)
            if before is None or before.at < saved.at:  # it was not counted until then
                before = Spent(*((before.period, before.gpu_s) if before else ("", 0.0)), now)
            at = min(before.at, now)  # a clock may have been set back
            self._counts[key] = Count(budget, msgspec.structs.replace(before, at=at), _held(budget, milli))
        self._settle(now)

    def to_save(self, *, is_changing: bool) -> Saved | None:
        """What the next commit has to write; None where that is not due. is_changing: what runs hold may have changed
        since the last one, so that both have to be of one moment."""
        now = self._clock()
        is_due = is_changing and self._gpus != self._saved_gpus
        is_due = is_due or (self._has_news and now - self._saved.at >= SAVE_S)
        kept = {key: spent for key, spent in self._saved.spent.items() if key not in self._budgets}
        is_left = not self._budgets and any(spent.at == self._saved.at for spent in kept.values())
        if not (is_due or is_left):
            return None
        for count in self._counts.values():
            count.settle(now)
        self._gpus_to_save = self._gpus
        return Saved(now, {**kept, **{key: count.spent for key, count in self._counts.items()}})

    def saved(self, what: Saved | None) -> None:
        """It is durable."""
        if what is not None:
            self._saved, self._saved_gpus = what, self._gpus_to_save

    def next_due(self) -> float | None:
        """When `advance` or `to_save` has something to do if nothing happens before, in seconds since 1970."""
        due = min(self._changes_at, self._saved.at + SAVE_S if self._has_news else math.inf)
        return None if due == math.inf else due

    @property
    def _gpus(self) -> dict[str, float]:
        return {key: count.gpus for key, count in self._counts.items() if count.gpus}

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

    def holding(self, milli: Mapping[str, int]) -> None:
        """What is held of each queue in all pools now, in thousandths of GPUs."""
        for count in self._counts.values():
            gpus = _held(count.budget, milli)
            if gpus != count.gpus:
                now = self._clock()
                count.settle(now)
                count.gpus = gpus
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


def _held(budget: Budget, milli: Mapping[str, int]) -> float:
    """GPUs, of all its queues."""
    return sum(milli.get(name, 0) for name in budget.queues) / WHOLE_DEVICE


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
    )
