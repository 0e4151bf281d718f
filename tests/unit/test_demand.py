"""How many processes should stand ready, by when work came: the part of the rule that `egs run --keep-ready` has beside
Airflow (whose tests are in `airflow/test_ready_demand.py`). No process, no clock."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from egs_core.demand import LEAD_S, how_many, last_s


class Line(NamedTuple):
    came_s: list[float]
    load_s: float = 5.0
    standing: int = 0
    needs: Sequence[bool] = ()


CHAINS = [600.0 * chain + 4.0 * step for chain in range(10) for step in range(3)]
"""Three one after the other, every ten minutes, each sooner than one more could load."""


def test_a_chain_has_processes_for_those_that_come_sooner_than_one_could_load_and_none_after() -> None:
    """Two of the three: for the last one the first one's coming is soon enough, and one begins to load then."""
    last = CHAINS[-1]
    found = [how_many(Line(CHAINS), last + after_s, 6) for after_s in (580.0, 586.0, 588.0, 592.0, 600.0)]
    assert found == [0, 2, 2, 2, 0]
    assert how_many(Line(CHAINS), last + 586.0, 1) == 1
    begun = [6000.0 + 4.0 * step for step in range(3)]
    left = [how_many(Line(CHAINS + begun[: came + 1]), begun[came] + 1.0, 6) for came in range(3)]
    assert left == [2, 1, 0]


def test_what_waits_for_longer_than_loading_needs_none_but_tells_when_the_next_comes() -> None:
    """Of each chain the second and third wait for the first one's GPU, and load meanwhile."""
    last, needs = CHAINS[-1], [True, False, False] * 10
    assert [how_many(Line(CHAINS, needs=needs), last + after_s, 6) for after_s in (580.0, 588.0, 600.0)] == [0, 1, 0]
    assert how_many(Line(CHAINS, needs=[False] * 30), last + 588.0, 6) == 0
    assert how_many(Line([*CHAINS, 6000.0], needs=[*needs, True]), 6001.0, 6) == 1


def test_gaps_that_vary_at_random_are_waited_for_by_who_may_let_one_stand_for_long() -> None:
    draw, came = random.Random(3), [0.0]
    for _ in range(40):
        came.append(came[-1] + 60.0 + draw.expovariate(1 / 300.0))
    at = [came[-1] + 30.0 * look for look in range(2, 20)]
    stands = [sum(how_many(Line(came), now_s, 1, worth_s) for now_s in at) for worth_s in (60.0, 1200.0)]
    assert stands[0] < 4
    assert stands[1] == len(at)


def test_in_the_first_burst_what_stands_stays_and_nothing_stands_for_what_never_came() -> None:
    assert how_many(Line([]), 0.0, 6) == 0
    assert how_many(Line([0.0], standing=1), LEAD_S, 6, worth_s=60.0) == 6
    assert how_many(Line([0.0], standing=2), 600.0, 6) == 0


def test_after_the_last_window_there_is_nothing_to_wait_for() -> None:
    """A keeper then may end."""
    assert last_s(Line([])) == 0.0
    assert last_s(Line([7.0])) == 7.0
    assert 600.0 < last_s(Line([0.0, 600.0])) - 600.0 < 660.0
