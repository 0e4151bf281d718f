"""What the parts of a simulated world may ask of it, so that none of them imports the world that is made of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from egs_core.engine import Engine
from egs_core.testing.fault_sim import wire as w
from egs_core.testing.fault_sim.ledger import Ledger
from egs_core.testing.fault_sim.plan import Plan
from egs_core.testing.fault_sim.store import SimulatedStore


class Driver(Protocol):
    """One life of the driver, as a worker knows it."""

    def hear_answer(self, name: str, boot: int, answer: w.Taken) -> object: ...

    def hear_news(self, name: str, boot: int, news: w.News) -> object: ...

    def hear_beat(self, name: str, boot: int, beat: w.Beat) -> object: ...


class Machine(Protocol):
    """A worker, as the driver and the claims know it. living: (task, attempt) of its processes."""

    name: str
    boot: int
    is_up: bool

    @property
    def standing(self) -> w.Standing: ...

    @property
    def living(self) -> list[tuple[int, int]]: ...

    def receive(self, boot: int, command: w.Command) -> None: ...

    def acknowledged(self, number: int) -> None: ...


class Surroundings(Protocol):
    """See `World`. shell: the present life of the driver; history: tasks that had ended in an earlier run."""

    plan: Plan
    now: float
    rng: random.Random
    counts: Counter[str]
    ledger: Ledger
    store: SimulatedStore
    network: w.Network
    history: set[str]

    @property
    def shell(self) -> Driver | None: ...

    @property
    def workers(self) -> Mapping[str, Machine]: ...

    def later(self, seconds: float, action: Callable[[], object]) -> None: ...

    def clock(self) -> float: ...

    def tell(self, who: str, what: object) -> None: ...

    def chance(self, name: str) -> bool: ...

    def draw_seconds(self) -> float: ...

    def to_driver(self, sender: str, deliver: Callable[[Driver], object], /) -> None: ...

    def check_event(self, engine: Engine) -> None: ...

    def crashes_now(self) -> bool: ...

    def standing_heard(self, standing: w.Standing) -> None: ...
