"""Whether a loss falls: by sums of what was told, over a time or a number of steps."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from egs_core.client.messages import Progress
from egs_core.server.watching.trends import MOST_SAMPLES, Trend


class Training:
    """Ten steps a second, looked at every two; loss: of a step."""

    def __init__(self, loss: Callable[[int], float], keep_s: float = 600.0, keep_steps: float = 0.0) -> None:
        self.trend, self.loss = Trend(keep_s, keep_steps), loss
        self.step, self.count, self.total, self.squares = 0, 0, 0.0, 0.0
        self.now = 0.0

    def go(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            for _ in range(20):
                self.step += 1
                loss = self.loss(self.step)
                self.count, self.total, self.squares = self.count + 1, self.total + loss, self.squares + loss * loss
            self.now += 2.0
            told = {"losses": self.count, "total": self.total, "squares": self.squares}
            self.trend.note(Progress.model_validate({"step": self.step, **told}), self.now)

    @property
    def falls(self) -> bool | None:
        found = self.trend.halves_s(600.0, self.now)
        return None if found is None else found.falls


def noisy(loss: Callable[[int], float], spread: float) -> Callable[[int], float]:
    chance = random.Random(3)
    return lambda step: loss(step) + chance.gauss(0, spread)


@pytest.mark.parametrize(
    ("loss", "falls"),
    [
        (lambda step: 3 - step / 10_000, True),
        (noisy(lambda step: 3 - step / 10_000, 0.5), True),  # less in ten minutes than it jitters in a step
        (lambda _: 2.0, False),
        (noisy(lambda _: 2.0, 0.5), False),
        (lambda step: 2 + step / 10_000, False),
        (noisy(lambda step: 2 + step / 10_000, 0.5), False),
    ],
)
def test_a_loss_falls_where_it_is_more_than_its_spread(loss: Callable[[int], float], falls: bool) -> None:
    """Before a whole window has been told nothing is known."""
    training = Training(loss)
    training.go(598)
    assert training.falls is None
    training.go(10)
    assert training.falls is falls


def test_what_fell_and_then_stays_is_found_after_the_window() -> None:
    """Until the whole window is flat it has fallen in it."""
    training = Training(lambda step: max(1.0, 5 - step / 2000))
    training.go(1000)  # flat from second 800 on
    assert training.falls is True
    training.go(500)
    assert training.falls is False


def test_a_few_losses_are_enough() -> None:
    """Of a validation each two minutes: three in each half. Told less often than twice a window nothing is known."""
    for every_s, losses, falls in ((120, "987654321", True), (120, "555555555", False), (600, "987654321", None)):
        trend, now, total, squares = Trend(600.0, 0.0), 0.0, 0.0, 0.0
        for count, loss in enumerate(map(float, losses), 1):
            now, total, squares = now + every_s, total + loss, squares + loss * loss
            trend.note(Progress(losses=count, total=total, squares=squares), now)
        found = trend.halves_s(600.0, now)
        assert (None if found is None else found.falls) is falls


def test_steps_are_a_window_as_well() -> None:
    """However long they take; one that tells none has none."""
    training = Training(lambda step: max(1.0, 5 - step / 2000), keep_s=0.0, keep_steps=4000)
    training.go(900)
    found = training.trend.halves_steps(4000)
    assert found is not None
    assert found.falls
    training.go(300)
    found = training.trend.halves_steps(4000)
    assert found is not None
    assert not found.falls
    assert found.earlier == pytest.approx(1.0)
    mute = Trend(600.0, 4000)
    mute.note(Progress(losses=5, total=5.0, squares=5.0), 1.0)
    assert mute.halves_steps(2) is None


def test_a_new_start_begins_anew() -> None:
    """Its loss is high again: that is no rise. Nor is what was told before a step that goes back."""
    training = Training(lambda step: 3 - step / 10_000)
    training.go(700)
    assert training.falls is True
    training.count, training.total, training.squares = 0, 0.0, 0.0
    training.go(100)
    assert training.falls is None
    training.go(600)
    assert training.falls is True
    training.step = 0
    training.go(100)
    assert training.falls is None


def test_what_is_kept_is_bounded() -> None:
    """For a window of a month as for one of ten minutes; what is known is nearly the same."""
    for keep_s in (600.0, 30 * 86400.0):
        training = Training(lambda step: 1 / math.sqrt(step), keep_s)
        training.go(5000)
        assert len(training.trend._samples) <= MOST_SAMPLES
        assert training.falls is True
