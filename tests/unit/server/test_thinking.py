"""Questions that cost processor time: whose turn it is, and how long each is thought about."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from egs_core.server.principals import Principal
from egs_core.server.runs import Refusal
from egs_core.server.thinking import BUDGET_S, MOST, MOST_OF_TEAM, WAIT_S, Thinking


class Held:
    """Thinking that stands still at its first question until it may go on; each moves the clock on by its whole budget.
    budgets: those that were given, in turn."""

    def __init__(self) -> None:
        self.now = 0.0
        self.thinking, self.go = Thinking(lambda: self.now), threading.Event()
        self.budgets: list[float] = []

    def ask(self, name: str, team: str) -> Future[str]:
        def think(budget_s: float) -> str:
            assert self.go.wait(20)
            self.budgets.append(budget_s)
            self.now += budget_s
            return name

        return self.thinking.begin(Principal(name, teams=(team,)), think)


@pytest.fixture
def held() -> Iterator[Held]:
    found = Held()
    yield found
    found.go.set()


def test_one_account_takes_no_others_turn(held: Held) -> None:
    """Its second question is refused while the first is there; another's is taken, and is next. Answered, it may ask
    again."""
    first = held.ask("ann", "vision")
    with pytest.raises(Refusal, match="a question of ann is being thought about") as refused:
        held.ask("ann", "vision")
    assert (refused.value.status, refused.value.wait_s) == (429, BUDGET_S)
    second = held.ask("ben", "speech")
    held.go.set()
    assert (first.result(20), second.result(20)) == ("ann", "ben")
    assert held.ask("ann", "vision").result(20) == "ann"


def test_many_accounts_of_a_team_keep_no_other_team_out(held: Held) -> None:
    """Of one team there are three at once, however many tokens it has."""
    for number in range(MOST_OF_TEAM):
        held.ask(f"ann{number}", "vision")
    with pytest.raises(Refusal, match="other questions are being thought about"):
        held.ask("one-more", "vision")
    assert held.ask("ben", "speech") is not None


def test_many_that_ask_share_the_time(held: Held) -> None:
    """The last one's answer comes within what a controller waits for: each is thought about for its part of that, and
    more than so many are refused."""
    asked = [held.ask(f"one{number}", f"team{number}") for number in range(MOST)]
    with pytest.raises(Refusal, match="other questions are being thought about"):
        held.ask("ben", "speech")
    held.go.set()
    for one in asked:
        one.result(20)
    assert sum(held.budgets) == pytest.approx(WAIT_S)
    assert min(held.budgets) >= (WAIT_S - BUDGET_S) / MOST
