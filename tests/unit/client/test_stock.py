"""How long a process may stand ready for a run of `egs run --keep-ready`, by what runs take. No process, no clock."""

from __future__ import annotations

import pytest

from egs_core.client.stock import FIRST_WORTH_S, LEAST_WORTH_S, MOST_WORTH_S, Allowance, Learned

LOAD_S = 5.0


def runs(length_s: float, number: int, allowance: Allowance, *, stood_s: float = 0.0) -> Learned:
    """So many, one a minute, for each of which processes have stood for so long."""
    learned = Learned(LOAD_S)
    for at in range(number):
        learned.came(60.0 * at)
        allowance.add(-stood_s)
        learned.begins(60.0 * at, 0.0, allowance, is_cold=False)
        learned.ended(length_s)
    return learned


def test_the_longer_runs_are_the_longer_one_may_stand_for_them() -> None:
    """Before anything is known two minutes; never longer than half an hour, however much was saved."""
    assert Allowance().worth_s == FIRST_WORTH_S
    short, longer, longest = Allowance(), Allowance(), Allowance()
    runs(1.0, 20, short), runs(40.0, 20, longer), runs(3600.0, 20, longest)
    assert FIRST_WORTH_S < short.worth_s < 0.5 * longer.worth_s
    assert longest.worth_s == MOST_WORTH_S
    longest.add(-MOST_WORTH_S)
    assert longest.worth_s < MOST_WORTH_S


@pytest.mark.parametrize("length_s", [0.5, 10.0, 45.0])
def test_what_stands_is_paid_by_runs_as_long_as_memory_is_less_than_twice(length_s: float) -> None:
    """An oracle has loading and run, so as much again may stand, with loading. What stands for longer is overdrawn,
    which is over some time after it has ended."""
    oracle_s = length_s + LOAD_S
    just, more = Allowance(), Allowance()
    runs(length_s, 200, just, stood_s=2 * oracle_s - length_s)
    runs(length_s, 200, more, stood_s=3 * oracle_s - length_s)
    assert just.left_s == pytest.approx(Allowance().left_s, abs=2 * oracle_s)
    assert more.worth_s == LEAST_WORTH_S
    runs(length_s, 3000, more)
    assert more.worth_s > FIRST_WORTH_S


def test_runs_pay_for_what_they_load_themselves() -> None:
    """While they wait, or, where none stood ready, in their turn."""
    found = []
    for waited_s, is_cold in ((0.0, False), (0.0, True), (2.0, True), (30.0, True), (30.0, False)):
        allowance = Allowance()
        learned = Learned(LOAD_S)
        learned.begins(0.0, waited_s, allowance, is_cold=is_cold)
        found.append(allowance.left_s - Allowance().left_s)
    assert found == [10.0, 5.0, 5.0, -20.0, -20.0]


def test_of_runs_that_come_together_as_many_need_one_as_had_no_time_to_load() -> None:
    """Whichever of them is told of first; and one of which nobody has heard before has come, too."""
    learned, allowance = Learned(LOAD_S), Allowance()
    for at in (0.0, 0.1, 0.2):
        learned.came(at)
    assert learned.needs == [True, True, True]
    for waited_s in (12.0, 0.0, 6.0):
        learned.begins(0.2, waited_s, allowance, is_cold=False)
    assert sum(learned.needs) == 1
    learned.begins(100.0, 9.0, allowance, is_cold=False)
    assert (learned.came_s, learned.needs[-1]) == ([0.0, 0.1, 0.2, 100.0], False)


def test_runs_that_are_over_sooner_than_loading_load_a_round_sooner() -> None:
    assert not Learned(LOAD_S).is_short
    assert runs(4.0, 3, Allowance()).is_short
    assert not runs(20.0, 3, Allowance()).is_short
