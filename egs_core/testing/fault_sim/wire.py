"""What driver and workers say to each other, and the network that carries it badly: lost, doubled, late, reordered."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import msgspec

from egs_core.engine import messages as m
from egs_core.testing.fault_sim.ledger import Job
from egs_core.testing.fault_sim.plan import Rates

QUICK_S, LATE_S = (0.001, 0.1), (0.2, 6.0)


class Start(msgspec.Struct, frozen=True):
    """Driver to worker: run this phase. The decision's number makes a repeated one recognisable."""

    decision: int
    job: Job


class Stop(msgspec.Struct, frozen=True):
    """Driver to worker: end this attempt; phase: the one that the engine believes it is in."""

    task: int
    attempt: int
    phase: int


class Fence(msgspec.Struct, frozen=True):
    """Driver to worker: do not start this any more, unless you have."""

    decision: int
    task: int
    attempt: int


class Warm(msgspec.Struct, frozen=True):
    """Driver to worker: make a process warm."""

    decision: int
    task: int
    seconds: float


Command = Start | Stop | Fence | Warm


class Taken(msgspec.Struct, frozen=True):
    """Worker to driver: the command is known, you need not repeat it. has_started: for a Start or a Fence; without, it
    never will."""

    command: Command
    has_started: bool = False


class News(msgspec.Struct, frozen=True):
    """Worker to driver, repeated until acknowledged: this has happened."""

    number: int
    event: m.Event


class Beat(msgspec.Struct, frozen=True):
    """Worker to driver, now and then: this attempt's process waits, and has had the phases up to this one."""

    task: int
    attempt: int
    phase: int


class Standing(msgspec.Struct, frozen=True):
    """The cluster to the driver, repeated until acknowledged: a node's capacity, None when it is down. boot: how often
    it has started; version: how often anything about it changed."""

    node: str
    boot: int
    version: int
    capacity: m.NodeAdded | None


class Network:
    """Carries a delivery, which may then happen once, twice, late or never; calm: only once and soon."""

    def __init__(
        self,
        rates: Rates,
        rng: random.Random,
        counts: Counter[str],
        later: Callable[[float, Callable[[], object]], None],
    ) -> None:
        self.calm = False
        self._rates, self._rng, self._counts, self._later = rates, rng, counts, later

    def carry(self, deliver: Callable[[], object]) -> None:
        rng, rates = self._rng, self._rates
        if not self.calm and rng.random() < rates.drop:
            self._counts["message dropped"] += 1
            return
        self._later(self._delay(), deliver)
        if not self.calm and rng.random() < rates.double:
            self._counts["message doubled"] += 1
            self._later(self._delay(), deliver)

    def _delay(self) -> float:
        late = not self.calm and self._rng.random() < self._rates.late
        self._counts["message late"] += late
        return self._rng.uniform(*(LATE_S if late else QUICK_S))
