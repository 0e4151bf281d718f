"""How often a run is asked to save its work."""

from __future__ import annotations

import random

import pytest

from egs_core.server.runs import NOBODY, Run
from egs_core.server.watching.saving import ASSUMED_S, LEAST_S, between_s, interval_s

HOUR_S = 3600.0


def ended(took_s: float, outcome: str) -> Run:
    return Run("1", "key", "ann", "fit", NOBODY, 0.0, started_at=10.0, ended_at=10.0 + took_s, outcome=outcome)


def test_failures_are_counted_where_there_is_something_to_lose() -> None:
    """Runs that fail at once, and time that nobody loses, do not count; nor is anything said of few failures."""
    typos = [ended(3, "failed")] * 500
    good = [ended(10 * HOUR_S + 600, "succeeded")] * 20 + [ended(HOUR_S + 600, "aborted")] * 10
    bad = [ended(2 * HOUR_S + 600, "failed")] * 3 + [ended(2 * HOUR_S + 600, "lost")] * 2
    assert between_s([*typos, *good, *bad]) == pytest.approx((200 + 10 + 10) * HOUR_S / 5)
    assert between_s([*typos, *good, *bad[:4]]) == between_s([]) == ASSUMED_S


def took_s(work_s: float, every_s: float, takes_s: float, fails_s: float, chance: random.Random) -> float:
    """How long a run takes that saves its work each `every_s`, and goes on from there after each failure."""
    now = done = 0.0
    fails_at = chance.expovariate(1 / fails_s)
    while done < work_s:
        step = min(every_s, work_s - done)
        now += step + takes_s
        if now > fails_at:
            now = max(fails_at, now - step - takes_s)
            fails_at = now + chance.expovariate(1 / fails_s)
            continue
        done += step
    return now


@pytest.mark.parametrize(("takes_s", "fails_s"), [(30.0, 6 * HOUR_S), (120.0, 24 * HOUR_S), (5.0, HOUR_S)])
def test_the_interval_costs_least(takes_s: float, fails_s: float) -> None:
    """Of runs that are played with failures at random, those that save at this interval end first: against a quarter
    of it and four times as much. A gang of four fails four times as often, and saves twice as often."""
    best = interval_s(takes_s, fails_s)
    mean = {}
    for factor in (0.25, 1.0, 4.0):
        chance = random.Random(5)
        mean[factor] = sum(took_s(50 * HOUR_S, best * factor, takes_s, fails_s, chance) for _ in range(150)) / 150
    assert min(mean, key=mean.__getitem__) == 1.0
    assert interval_s(takes_s, fails_s, 4) == max(LEAST_S, best / 2)


def test_an_interval_has_a_bound() -> None:
    """What takes no time is not asked for again and again, and what takes long is done before it is asked for anew."""
    assert (interval_s(0.001, 60), interval_s(3600, 600)) == (LEAST_S, 3600)
