"""Whether a loss that runs tell of falls: means of two halves of a window, of all losses told in them. Pure.

    loss  ─╮              a window: the last 30 minutes, or the last 2,000 steps
           ╰──╮ ╭╮
       ░░░░░░░╰─╯╰──╭───  mean of the earlier half │ mean of the later half
           earlier │ later

It falls where the later mean is lower by more than twice the standard error of the difference: a loss that only jitters
does not. A run tells sums (see `egs_core.progressed`), so what was told between two looks counts as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from egs_core.client.messages import Progress
from egs_core.site.messages import Where

MOST_SAMPLES = 512
SURE = 2.0  # standard errors


class Sample(NamedTuple):
    """at: when, of the site's clock; step: None where it tells none. The rest: see `Progress`."""

    at: float
    step: float | None
    losses: int
    total: float
    squares: float


class Halves(NamedTuple):
    """The mean loss in the earlier and the later half of a window, and the standard error of their difference."""

    earlier: float
    later: float
    error: float

    @property
    def falls(self) -> bool:
        return self.earlier - self.later > SURE * self.error


class Trend:
    """One run's, or one task's. keep_s, keep_steps: the longest windows that are asked for."""

    def __init__(self, keep_s: float, keep_steps: float) -> None:
        self.is_nan = False
        self._keep_s, self._keep_steps = keep_s, keep_steps
        self._samples: list[Sample] = []

    def note(self, told: Progress | Where, at: float) -> None:
        """What was told now. A command that was started again, or a step that goes back, begins anew."""
        self.is_nan = told.is_nan
        new = Sample(at, told.step, told.losses, told.total, told.squares)
        if self._samples:
            last = self._samples[-1]
            is_back = new.step is not None and last.step is not None and new.step < last.step
            if new.losses < last.losses or is_back:
                self._samples = []
            elif new.losses == last.losses:
                return
        self._samples.append(new)
        self._prune(new)

    def _prune(self, last: Sample) -> None:
        """What is older than any window goes, but for one at its beginning; of what is too much, each second one."""
        samples = self._samples
        while len(samples) > 2 and self._is_old(samples[1], last):
            del samples[0]
        if len(samples) > MOST_SAMPLES:
            self._samples = samples[:-1:2] + samples[-1:]

    def _is_old(self, one: Sample, last: Sample) -> bool:
        is_far = one.step is None or last.step is None or last.step - one.step >= self._keep_steps
        return is_far and last.at - one.at >= self._keep_s

    def halves_s(self, window_s: float, now: float) -> Halves | None:
        """Of the last so many seconds; None where it has not told for so long, or told too seldom."""
        return _halves(self._samples, lambda one: one.at, now - window_s, now - window_s / 2)

    def halves_steps(self, steps: float) -> Halves | None:
        """The same of the last so many steps; None also where it tells no steps."""
        samples = [one for one in self._samples if one.step is not None]
        last = (samples[-1].step or 0.0) if samples else 0.0
        return _halves(samples, lambda one: one.step or 0.0, last - steps, last - steps / 2)


def _halves(samples: Sequence[Sample], place: Callable[[Sample], float], begin: float, middle: float) -> Halves | None:
    first = next((one for one in reversed(samples) if place(one) <= begin), None)
    mid = next((one for one in reversed(samples) if place(one) <= middle), None)
    if first is None or mid is None:
        return None
    last = samples[-1]
    if not first.losses < mid.losses < last.losses:
        return None
    earlier, its_error2 = _mean(first, mid)
    later, error2 = _mean(mid, last)
    return Halves(earlier, later, math.sqrt(its_error2 + error2))


def _mean(begin: Sample, end: Sample) -> tuple[float, float]:
    """The mean of the losses between two looks, and the square of its standard error, 0 of a single one."""
    count, total = end.losses - begin.losses, end.total - begin.total
    mean = total / count
    spread = max(0.0, (end.squares - begin.squares) / count - mean * mean)  # below 0 by rounding alone
    return mean, spread / (count - 1) if count > 1 else 0.0
