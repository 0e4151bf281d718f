"""Which order a queue should have: chosen by roll-outs, trusted as far as they have come true, and bounded.

    20 workloads of the queue have ended ─► roll-outs of each order (`rollout`) ─► gain of each over the default
      ▲                                                                                        │ times trust, drawn
      └── has more ended than the default was expected to bring? ────── ◄── the best, where it gains enough

The roll-outs are the model. What they cannot know (lengths that are believed wrongly, work of another kind that comes)
shows in how many workloads have ended by the next review, on average over that time; what has come meanwhile is no
order's merit. For each order a linear bandit learns what share of a promised gain has come true: Thompson sampling over
a Bayesian regression through the origin, with the promised gain as context (Agrawal and Goyal, ICML 2013). Where less
has ended than the default was expected to bring to an end, the order is the default's again at once, and the one that
failed is left out for a while, longer each time. Pure: time is an argument, draws are seeded.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev

import msgspec

from egs_core.engine import messages as m
from egs_core.engine.specs import LEARNED, ORDERS
from egs_core.engine.state.state import State
from egs_core.sim.rollout import Future, Question

DEFAULT = ORDERS[0]
LUCK = 0.1  # of what is open: how far what has ended is off by chance, beyond what roll-outs differ by
TOLERANCE = 0.02  # of what is open: less than that is no failure


class Bounds(msgspec.Struct, frozen=True):
    """ended, least_s: so many workloads have to end (a quarter of those that are open, if that is more), and so long it
    takes at least, from one review to the next, each of which changes the order once at most. least_open: with fewer
    there is nothing to order. gain: the least that is worth a change. rounds: roll-outs of each order. left_out:
    reviews for which an order that failed is not tried, twice as many each time; trust_spread: how unsure it is at
    first that a promised gain comes true."""

    ended: int = 20
    least_s: float = 60.0
    least_open: int = 4
    gain: float = 0.02
    rounds: int = 3
    left_out: int = 4
    trust_spread: float = 0.3


class _Trust(msgspec.Struct):
    """What share of a promised gain comes true: mean and precision; failures, and reviews that it is left out for."""

    mean: float
    precision: float
    failures: int = 0
    left_out: int = 0

    def learn(self, promised: float, found: float, spread: float) -> None:
        """A gain of `found` came where so much was promised, give or take `spread`."""
        weight = (promised / max(spread, LUCK)) ** 2
        if weight > 0:
            self.mean = (self.mean * self.precision + weight * found / promised) / (self.precision + weight)
            self.precision += weight


class _Promise(msgspec.Struct):
    """What the last review expected: futures of the order that was chosen then, and of the default."""

    at: float
    order: str
    chosen: tuple[Future, ...]
    default: tuple[Future, ...]


class QueueAdvisor:
    """See the module; of one queue. It is told how many workloads are open whenever that changes (`seen`), asked
    whether a review is due (`is_due`), and given the roll-outs of its `question` then."""

    def __init__(self, queue: str, seed: int = 0, bounds: Bounds | None = None) -> None:
        self.queue, self.bounds = queue, bounds or Bounds()
        self.order = DEFAULT
        self.changes = 0
        self._has_said = False  # why the order is what it is
        self._seed, self._draw = seed, random.Random(f"{seed} {queue}")
        self._trust = {o: _Trust(1.0, self.bounds.trust_spread**-2) for o in ORDERS[1:]}
        self._promise: _Promise | None = None
        self._open, self._ended, self._reviews = 0, 0, 0
        self._since = self._at = 0.0
        self._ended_s = 0.0  # workloads that had ended, times seconds, since the last review

    # --- between reviews ---

    def seen(self, now: float, is_open: int, ended: int = 0) -> None:
        """From now on so many workloads are open; so many have ended since this was called last."""
        self._ended_s += self._ended * max(0.0, now - self._at)
        self._at, self._open = max(now, self._at), is_open
        self._ended += ended

    def is_due(self, now: float) -> bool:
        """Whether a review is worth its time now."""
        is_time = self._ended >= max(self.bounds.ended, self._open // 4) and now - self._since >= self.bounds.least_s
        return is_time and (self._open >= self.bounds.least_open or self.order != DEFAULT)

    def question(self) -> Question:
        """What the roll-outs are to answer: the default, and the orders that may be tried."""
        tried = [o for o in ORDERS[1:] if not self._trust[o].left_out or o == self.order]
        return Question(self.queue, (DEFAULT, *tried), self.bounds.rounds, 1000 * self._reviews + self._seed)

    # --- a review ---

    def review(self, futures: Mapping[str, Sequence[Future]], now: float) -> m.OrderChosen | None:
        """What the engine is to be told; None where it stays as it is, and has been told why before. futures: what the
        question was answered with."""
        self.seen(now, self._open)
        failed = self._judge(now)
        for trust in self._trust.values():
            trust.left_out = max(0, trust.left_out - 1)
        if failed:
            trust = self._trust[self.order]
            trust.left_out = self.bounds.left_out * 2**trust.failures
            trust.failures += 1
            chosen, why = DEFAULT, failed
        else:
            chosen, why = self._choose(futures)
        default = tuple(futures[DEFAULT])
        self._promise = _Promise(now, chosen, tuple(futures.get(chosen, default)), default)
        self._reviews += 1
        self._since, self._ended, self._ended_s = now, 0, 0.0
        if chosen == self.order and self._has_said:
            return None
        self.changes += chosen != self.order
        self.order, self._has_said = chosen, True
        return m.OrderChosen(self.queue, chosen, why)

    def _judge(self, now: float) -> str:
        """What has come of the last choice; why it failed, "" where it did not."""
        promise = self._promise
        if promise is None or promise.order == DEFAULT or now <= promise.at:
            return ""
        for_s = now - promise.at
        if for_s > max(future.horizon_s for future in promise.default):
            return ""  # more has come than was foreseen
        found, expected = self._ended_s / for_s, [future.mean_ended(for_s) for future in promise.default]
        mean, spread = fmean(expected), stdev(expected) if len(expected) > 1 else 0.0
        is_open = fmean([future.mean_open(for_s) for future in promise.default])
        if is_open <= 0:
            return ""
        promised = fmean([future.mean_ended(for_s) for future in promise.chosen]) - mean
        self._trust[promise.order].learn(promised / is_open, (found - mean) / is_open, spread / is_open)
        if found >= mean - max(spread, TOLERANCE * is_open):
            return ""
        return (
            f"{promise.order} did worse than {DEFAULT} was expected to: {found:.1f} workloads had ended on average, "
            f"not {mean:.1f}"
        )

    def _choose(self, futures: Mapping[str, Sequence[Future]]) -> tuple[str, str]:
        """The order whose gain, as far as it is trusted, is the largest, and why."""
        default = [future.mean_s for future in futures[DEFAULT]]
        best, best_gain, why = DEFAULT, self.bounds.gain, f"no other order is expected to gain {self.bounds.gain:.0%}"
        for order in ORDERS[1:]:
            if order not in futures or self._trust[order].left_out:
                continue
            gains = [1 - future.mean_s / d if d else 0.0 for future, d in zip(futures[order], default, strict=True)]
            error = stdev(gains) / sqrt(len(gains)) if len(gains) > 1 else 0.0
            trust = self._trust[order]
            share = self._draw.gauss(trust.mean, trust.precision**-0.5)
            gain = min(share, 1.0) * fmean(gains) - error
            if order == self.order:  # it stays until it is expected to lose: where little waits there is little to gain
                gain = min(share, 1.0) * fmean(gains) + self.bounds.gain
            if gain > best_gain:
                best, best_gain = order, gain
                least, most = min(gains), max(gains)
                spread = f"{fmean(gains):.0%} less time than by {DEFAULT} ({least:.0%} to {most:.0%})"
                why = f"in {len(gains)} roll-outs of what waits and comes, workloads took {spread}"
        return best, why


class Advisors:
    """Those of all queues of one engine that have their order learned. seed: of their draws and roll-outs."""

    def __init__(self, queues: Sequence[str], seed: int = 0, bounds: Bounds | None = None) -> None:
        self.by_queue = {name: QueueAdvisor(name, seed, bounds) for name in queues}
        self._known: dict[str, set[int]] = {name: set() for name in queues}  # open workloads
        self._read = 0

    def look(self, state: State) -> list[QueueAdvisor]:
        """Count what is open by now; whose review is due."""
        for number in range(self._read, len(state.workloads)):
            if state.workloads[number].queue in self._known:
                self._known[state.workloads[number].queue].add(number)
        self._read = len(state.workloads)
        due = []
        for name, advisor in self.by_queue.items():
            known = self._known[name]
            ended = {number for number in known if not state.workloads[number].open_tasks}
            known -= ended
            if name in state.queue_numbers:
                advisor.order = state.queues[state.queue_numbers[name]].order  # as it is durable
            advisor.seen(state.now, len(known), len(ended))
            if advisor.is_due(state.now):
                due.append(advisor)
        return due


def learned_queues(state: State) -> list[str]:
    """Those that have their order learned."""
    return [queue.spec.name for queue in state.queues if queue.spec.order == LEARNED]
