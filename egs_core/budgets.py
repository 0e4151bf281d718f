"""GPU hours, or money, that a queue, or the queues of a team, may use in a month, week or day of the calendar. Pure.

2026-11, Europe/Berlin    |== 1 November 00:00 ………………………… 30 November 24:00 ==|      summer time or not
used                          GPUs held, times the time, parts of a GPU as parts, of what of it lies in there
cost                          the same, times what a GPU of its node cost then
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

import msgspec

from egs_core.units import two_places

Per = Literal["month", "week", "day"]
Then = Literal["stop", "warn"]
State = Literal["ok", "warned", "used up"]
HOUR_S = 3600.0
CostOf = Callable[[float, float], float]
"""What is held costs between two moments."""


def _free(_start: float, _end: float) -> float:
    return 0.0


class Budget(msgspec.Struct, frozen=True):
    """queue, team: whose it is: the one or the other. queues: what counts: that queue, or all of that team. warn_at:
    the part of it from which on who submits is told; then: what becomes of new work once it is used up. is_shared:
    several teams use it, so that none is told how much of it is used. cost: so much money instead of GPU hours; None
    where hours count."""

    gpu_hours: float
    queues: tuple[str, ...]
    queue: str = ""
    team: str = ""
    per: Per = "month"
    warn_at: float = 0.8
    then: Then = "stop"
    zone: str = "UTC"
    is_shared: bool = False
    cost: float | None = None
    currency: str = ""

    @property
    def key(self) -> str:
        """Tells it from others, also from those of an earlier file, and money from hours."""
        owner = f"queue:{self.queue}" if self.queue else f"team:{self.team}"
        return owner if self.cost is None else f"cost of {owner}"

    @property
    def words(self) -> str:
        """How much it is."""
        return f"{self.gpu_hours:g} GPU hours" if self.cost is None else money(self.cost, self.currency)

    @property
    def owner(self) -> str:
        return f"queue {self.queue!r}" if self.queue else f"team {self.team!r}"


class Period(msgspec.Struct, frozen=True):
    """label: as 2026-11, 2026-W48 or 2026-11-25; begin, end: seconds since 1970."""

    label: str
    begin: float
    end: float


class Spent(msgspec.Struct, frozen=True):
    """GPU seconds that were used in a period up to a moment, and of a budget of money what they cost."""

    period: str
    gpu_s: float
    at: float
    cost: float = 0.0


def period_of(at: float, per: Per, zone: str) -> Period:
    """The month, week (from Monday) or day of a place in which a moment is.

    >>> period_of(1_764_000_000, "month", "Europe/Berlin").label, period_of(1_764_000_000, "week", "UTC").label
    ('2025-11', '2025-W48')
    """
    day = datetime.fromtimestamp(at, ZoneInfo(zone)).date()
    if per == "month":
        first, label = day.replace(day=1), f"{day:%Y-%m}"
        last = (first + timedelta(days=31)).replace(day=1)
    elif per == "week":
        first, label = day - timedelta(days=day.weekday()), f"{day:%G-W%V}"
        last = first + timedelta(days=7)
    else:
        first, label, last = day, day.isoformat(), day + timedelta(days=1)
    return Period(label, _midnight(first, zone), _midnight(last, zone))


def spent_until(spent: Spent, budget: Budget, gpus: float, now: float, cost_of: CostOf = _free) -> Spent:
    """The same after so many GPUs were held until now; in a new period only what was used in that. cost_of: what they
    cost."""
    period = period_of(now, budget.per, budget.zone)
    is_same = period.label == spent.period
    since = spent.at if is_same else max(spent.at, period.begin)
    gpu_s, cost = (spent.gpu_s, spent.cost) if is_same else (0.0, 0.0)
    if now <= since:
        return Spent(period.label, gpu_s, now, cost)
    return Spent(period.label, gpu_s + gpus * (now - since), now, cost + cost_of(since, now))


def _used_and_most(budget: Budget, spent: Spent) -> tuple[float, float]:
    """In GPU seconds, or in money."""
    return (spent.gpu_s, budget.gpu_hours * HOUR_S) if budget.cost is None else (spent.cost, budget.cost)


def is_used_up(budget: Budget, spent: Spent) -> bool:
    used, most = _used_and_most(budget, spent)
    return used + 1e-6 >= most


def state_of(budget: Budget, spent: Spent) -> State:
    if is_used_up(budget, spent):
        return "used up"
    used, most = _used_and_most(budget, spent)
    return "warned" if used + 1e-6 >= budget.warn_at * most else "ok"


def used_up_at(budget: Budget, spent: Spent, rate: float) -> float | None:
    """When it is used up if what is held stays so; None where it is, or never will be. rate: GPUs that are held, or of
    a budget of money what they cost in a second."""
    if is_used_up(budget, spent) or rate <= 0:
        return None
    used, most = _used_and_most(budget, spent)
    return spent.at + (most - used) / rate


def why_words(budget: Budget, spent: Spent) -> str:
    """Why nothing new starts."""
    so_far = "" if budget.is_shared else f", {used_words(budget, spent)} so far"
    text = f"{budget.owner} has used up its {budget.words} of {spent.period}{so_far}"
    return f"{text}: nothing new of it gets a GPU before {_end_words(budget, spent)}"


def notice_words(budget: Budget, spent: Spent) -> str:
    """For who submits: how much of it is used; "" where that is not much yet, and where nothing new starts anyway."""
    state = state_of(budget, spent)
    if state == "ok" or (state == "used up" and budget.then == "stop"):
        return ""
    used = f"more than {budget.warn_at:.0%}" if budget.is_shared else used_words(budget, spent)
    text = f"{budget.owner} has used {used} of its {budget.words} of {spent.period}"
    if budget.then == "warn":
        return f"{text}; new work starts all the same"
    return f"{text}; when they are used up, nothing new of it gets a GPU before {_end_words(budget, spent)}"


def used_words(budget: Budget, spent: Spent) -> str:
    """GPU hours as a number, money with its currency."""
    return hours(spent) if budget.cost is None else money(spent.cost, budget.currency)


def money(amount: float, currency: str) -> str:
    """
    >>> money(1234.5, "EUR"), money(0.5, ""), money(0.001, "EUR")
    ('1,234.50 EUR', '0.50', '<0.01 EUR')
    """
    return f"{two_places(amount)} {currency}".rstrip()


def cost_words(cost: float | None, wasted: float | None, currency: str) -> str:
    """What follows GPU hours where there are prices; "" without."""
    return "" if cost is None else f"; cost: {money(cost, currency)}, {two_places(wasted or 0.0)} of it wasted"


def hours(spent: Spent) -> str:
    """GPU hours, as people write them.

    >>> hours(Spent("2026-11", 4500.0, 0.0))
    '1.25'
    """
    return hours_words(spent.gpu_s / HOUR_S)


def hours_words(amount: float) -> str:
    """Two places, and of less than one hour three digits that tell.

    >>> [hours_words(one) for one in (1234.5, 1.25, 12.0, 0.01715, 0.0, 0.00002)]
    ['1234.5', '1.25', '12', '0.0171', '0', '<0.0001']
    """
    if amount >= 1:
        return f"{amount:.2f}".rstrip("0").rstrip(".")
    return "<0.0001" if 0 < amount < 0.0001 else f"{amount:.3g}"


def queues_of(budgets: Iterable[Budget]) -> frozenset[str]:
    return frozenset(name for budget in budgets for name in budget.queues)


def _end_words(budget: Budget, spent: Spent) -> str:
    end = datetime.fromtimestamp(period_of(spent.at, budget.per, budget.zone).end, ZoneInfo(budget.zone))
    return f"{end:%Y-%m-%d %H:%M} ({budget.zone})"


def _midnight(day: date, zone: str) -> float:
    return datetime.combine(day, time(), ZoneInfo(zone)).timestamp()
