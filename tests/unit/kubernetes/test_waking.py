"""The controller's loop on a busy cluster: looks with rests between them, and none for an event by itself."""

from __future__ import annotations

import threading

import pytest

from egs_core.kubernetes.waking import LEAST_S, MOST_S, REST, Waking


class Played:
    """A clock that a look and a rest move on."""

    def __init__(self) -> None:
        self.now, self.rests = 0.0, list[float]()
        self.waking = Waking(lambda: self.now, self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.now += seconds
        self.waking.set()  # more comes meanwhile: one look is for all of it

    def look(self, takes_s: float, *, is_busy: bool) -> None:
        if is_busy:
            self.waking.set()
        self.now += takes_s
        self.waking.wait(0.0)


@pytest.mark.parametrize(("takes_s", "rest_s"), [(0.001, LEAST_S), (0.4, REST * 0.4), (10.0, MOST_S)])
def test_what_came_in_a_look_waits_for_a_rest(takes_s: float, rest_s: float) -> None:
    """By how long the look took, within bounds."""
    played = Played()
    played.look(takes_s, is_busy=True)
    assert played.rests == [pytest.approx(rest_s)]


def test_a_busy_cluster_is_looked_at_for_a_part_of_the_time() -> None:
    """Events without end: 50 looks of 0.1 s have 50 rests of a quarter of that between them."""
    played = Played()
    for _ in range(50):
        played.look(0.1, is_busy=True)
    assert played.now == pytest.approx(50 * 0.125)


def test_what_comes_while_it_waits_is_looked_at_at_once() -> None:
    """No rest for an event by itself, from another thread; nor where nothing comes."""
    played = Played()
    played.look(0.1, is_busy=False)
    setter = threading.Timer(0.01, played.waking.set)
    setter.start()
    played.waking.wait(60.0)
    setter.join()
    assert played.rests == []
