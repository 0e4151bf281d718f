"""Submissions: what was started together, the work that it has left, and what its queue has seen so far.

A submission is a workload, or several that the adapter gives one id: the tasks of a driver's program, the parts of a
run. The order between workloads compares submissions, so that cutting one into parts changes nothing.

Work counts in thousandths of a device (or of a CPU) times milliseconds, as whole numbers: the same after any order of
events. What is left of a phase is its expected length until it has ended; one whose length nobody knows counts as the
median of those that have ended in the queue.
"""

from __future__ import annotations

from math import exp, isqrt, log

import msgspec

from egs_core.engine.specs import UNLIMITED

UNKNOWN, OVER = -1, -2  # of `left_ms`: its length is not known; it has ended
PRIOR_MS = 1000  # what a phase counts while none has ended
SLOT_MILLI = 1000  # what a phase counts that asks for no CPU
MOST_NAMES = 10_000  # of workloads that grow, whose last total is remembered
FEW = 20  # of which nobody can say what is much among them
Z95 = 1.6449  # the 95th percentile of the standard normal distribution


class Lengths(msgspec.Struct):
    """A histogram in half octaves: adding one costs little, and the median moves only when it is far off.

    middle: the step that the median is in; below: how many are in lower steps.
    """

    count: int = 0
    total: int = 0
    steps: dict[int, int] = {}
    middle: int = 0
    below: int = 0

    def add(self, amount: int) -> None:
        step, steps, count, below = (amount * amount).bit_length(), self.steps, self.count, self.below
        steps[step] = steps.get(step, 0) + 1
        self.count = count + 1
        self.total += amount
        if step < self.middle:
            below = self.below = below + 1
        middle = count // 2  # of so many and this one
        if middle < below or middle >= below + steps.get(self.middle, 0):
            self._find(middle)

    def remove(self, amount: int) -> None:
        """Take back what was added."""
        self.steps[(amount * amount).bit_length()] -= 1
        self.count -= 1
        self.total -= amount
        self.middle = self.below = 0
        if self.count:
            self._find((self.count - 1) // 2)

    def _find(self, middle: int) -> None:
        below = step = 0
        for step in sorted(self.steps):
            if middle < below + self.steps[step]:
                break
            below += self.steps[step]
        self.middle, self.below = step, below

    @property
    def median(self) -> int:
        """Within a fifth; 0 while there is none."""
        return amount_of(self.middle) if self.count else 0

    def most_of(self, share: float) -> int:
        """An amount that so many of them do not exceed, or a little more; UNLIMITED where too few are known."""
        if self.count < FEW:
            return UNLIMITED
        below = 0
        for step in sorted(self.steps):
            below += self.steps[step]
            if below >= share * self.count:
                return isqrt(1 << step)
        return UNLIMITED

    def mean_step(self) -> int:
        """The step of the mean, 0 for none: it changes seldom."""
        mean = self.total // self.count if self.count else 0
        return (mean * mean).bit_length()


def amount_of(step: int) -> int:
    """The middle of a step."""
    return isqrt((1 << step) - (1 << step >> 2))


class QueueHistory(msgspec.Struct):
    """Of one queue, "" for work without one: lengths of phases with and without devices in milliseconds, the work of
    whole submissions, and the work that is left of those that are open: as `Submission`. guesses: whether
    there was ever a phase of unknown length, or a submission that grew, so that the rest is asked at all."""

    phases: Lengths = msgspec.field(default_factory=Lengths)
    gpu_phases: Lengths = msgspec.field(default_factory=Lengths)
    totals: Lengths = msgspec.field(default_factory=Lengths)
    gpu_totals: Lengths = msgspec.field(default_factory=Lengths)
    left_slot: int = 0
    left_device: int = 0
    unknown_slot: int = 0
    unknown_device: int = 0
    guesses: bool = False


class Submission(msgspec.Struct):
    """queue: as its first workload said; history: the key of what counts its work, for good. name: under which its
    total is remembered. left_…: known work, in thousandths times milliseconds; unknown_…: thousandths of phases of
    unknown length; used_…: work done. has_grown: tasks came after it had begun. total: what its queue's history has of
    it, once it was over.

    wait_s and wait_lengths: how long a phase of it waits at most for other submissions: seconds, and times the mean
    length of the queue's phases.
    """

    id: str = ""
    name: str = ""
    queue: str = ""
    history: str = ""
    open_tasks: int = 0
    needs_devices: bool = False
    has_begun: bool = False
    has_grown: bool = False
    left_slot: int = 0
    left_device: int = 0
    unknown_slot: int = 0
    unknown_device: int = 0
    used_slot: int = 0
    used_device: int = 0
    total: int = 0
    wait_s: float = 0.0
    wait_lengths: float = 0.0


def mean_s(p50: float, p95: float) -> float:
    """Expected seconds of what is log-normal with this median and 95th percentile."""
    return p50 * exp(0.5 * (log(p95 / p50) / Z95) ** 2) if p95 > p50 > 0 else p50
