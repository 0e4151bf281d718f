"""What a keeper of processes that stand ready learns of its runs, and how long one may stand for a run that finds it.
Pure: no process, no clock.

    a run       its length + twice its loading ──► allowance ──► seconds that processes stand, or load ahead
    worth_s     a half of what is left

So all processes together, the runs' own included, take no more than twice the memory of an oracle that knows when runs
come: that has each begin to load so long before its run as loading takes. The longer runs are against their loading,
the longer one may stand for them.
"""

from __future__ import annotations

import msgspec

from egs_core.demand import MOST_TIMES

FIRST_WORTH_S, LEAST_WORTH_S, MOST_WORTH_S = 120.0, 20.0, 1800.0
"""So long a process stands ready, in the mean, for one run that finds it: before runs have told how long they take; at
the least, also where more has stood than should; at the most."""
SHARE = 0.5
"""Of the allowance that is left, for one run."""
TIMES = 2.0
"""So much memory as an oracle's may be used."""
SHORT = 1.5
"""Runs shorter than so many times their loading begin to load a round sooner: one alone is over too soon. Sooner than
that they would stand for long behind longer ones."""
SAME_S = 1.0
"""By so much the moments may differ at which one run is said to have come."""


class Allowance(msgspec.Struct):
    """left_s: seconds for which processes may still stand; less than nothing where more have."""

    left_s: float = FIRST_WORTH_S / SHARE

    @property
    def worth_s(self) -> float:
        return min(MOST_WORTH_S, max(LEAST_WORTH_S, SHARE * self.left_s))

    def add(self, seconds: float) -> None:
        """Neither what was saved nor what was overdrawn lasts for ever."""
        most_s = MOST_WORTH_S / SHARE
        self.left_s = min(most_s, max(-most_s, self.left_s + seconds))


class Learned:
    """Of the runs of one line. came_s: when they came, the newest last; needs: of each, whether it had less time to
    load in by itself than that takes, True where it has not begun; length_s: what they take in the mean, 0.0 where none
    has ended."""

    def __init__(self, load_s: float) -> None:
        self.load_s = load_s
        self.came_s: list[float] = []
        self.needs: list[bool] = []
        self.length_s = 0.0
        self._ended = 0

    @property
    def is_short(self) -> bool:
        """Whether its runs begin to load a round sooner than when they are among the next."""
        return self._ended > 0 and self.length_s < SHORT * self.load_s

    def came(self, at_s: float) -> None:
        self.came_s = [*self.came_s, at_s][-MOST_TIMES:]
        self.needs = [*self.needs, True][-MOST_TIMES:]

    def begins(self, came_s: float, waited_s: float, allowance: Allowance, *, is_cold: bool) -> None:
        """A run has its turn. waited_s: since it could have begun to load, is_cold: and has not; then it loads now."""
        numbers = [number for number, at in enumerate(self.came_s) if abs(at - came_s) <= SAME_S]
        if not numbers:
            self.came(came_s)
            numbers = [len(self.came_s) - 1]
        number = next((one for one in numbers if self.needs[one]), numbers[-1])
        self.needs[number] = waited_s < self.load_s
        own_s = waited_s + (max(0.0, self.load_s - waited_s) if is_cold else 0.0)
        allowance.add((TIMES - 1.0) * self.length_s + TIMES * self.load_s - own_s)

    def ended(self, length_s: float) -> None:
        """A run, so long after its turn."""
        self._ended = min(MOST_TIMES, self._ended + 1)
        self.length_s += (length_s - self.length_s) / self._ended
