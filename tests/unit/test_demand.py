"""How many processes should stand ready, by when work came: the part of the rule that `egs run --keep-ready` has beside
Airflow (whose tests are in `airflow/test_ready_demand.py`). No process, no clock."""

from __future__ import annotations

from typing import NamedTuple

from egs_core.demand import LEAD_S, how_many, last_s


class Line(NamedTuple):
    came_s: list[float]
    load_s: float = 5.0
    standing: int = 0


CHAINS = [600.0 * chain + 4.0 * step for chain in range(10) for step in range(3)]
"""Three one after the other, every ten minutes, each sooner than one more could load."""


def test_a_chain_that_is_quicker_than_loading_has_processes_for_all_of_it_and_none_after() -> None:
    last = CHAINS[-1]
    assert [how_many(Line(CHAINS), last + after_s, 6) for after_s in (580.0, 586.0, 588.0, 592.0, 600.0)] == [
        0,
        3,
        3,
        3,
        0,
    ]
    assert how_many(Line(CHAINS), last + 586.0, 2) == 2
    begun = [6000.0 + 4.0 * step for step in range(3)]
    left = [how_many(Line(CHAINS + begun[: came + 1]), begun[came] + 1.0, 6) for came in range(3)]
    assert left == [2, 1, 0]


def test_in_the_first_burst_what_stands_stays_and_nothing_stands_for_what_never_came() -> None:
    assert how_many(Line([]), 0.0, 6) == 0
    assert how_many(Line([0.0], standing=1), LEAD_S, 6, worth_s=60.0) == 6
    assert how_many(Line([0.0], standing=2), 600.0, 6) == 0


def test_after_the_last_window_there_is_nothing_to_wait_for() -> None:
    """A keeper then may end."""
    assert last_s(Line([])) == 0.0
    assert last_s(Line([7.0])) == 7.0
    assert 600.0 < last_s(Line([0.0, 600.0])) - 600.0 < 660.0
