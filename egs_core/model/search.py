"""The search for an assignment with a small loss.

    the graph ─► coarser ─► … ─► coarsest: several starts, annealed from the best of them
                                    │
    finest ◄─ … ◄─ a finer one: the same assignment, annealed at a low temperature

Small graphs are then searched exactly (`exact.py`), if that ends within its bound. All bounds are counted in operators
visited, never in time, and all randomness is of one seed: the same instance and seed give the same assignment.
"""

from __future__ import annotations

import random

import msgspec

from egs_core.model.anneal import Annealing, Memory
from egs_core.model.exact import MOST_OPERATORS, improved
from egs_core.model.instance import Instance
from egs_core.model.levels import Level, levels_of
from egs_core.model.loss import Loss, Objective, evaluate
from egs_core.model.packing import pack
from egs_core.model.starts import starts
from egs_core.model.states import state_of

EFFORT = 5_000_000
"""Operators visited at most."""
EFFORT_EACH = 50_000
"""And for each operator that there is."""
WALKS = 2
"""From so many starts."""
HOT, WARM = 0.05, 0.003
"""Temperatures at the beginning, as a share of the loss: on the coarsest graph, and on finer ones."""


class Split(msgspec.Struct, frozen=True):
    """assignment: a device for each operator, as the file orders them; None where none was found, then `reason` says
    why. is_best: nothing better exists."""

    assignment: list[int] | None
    loss: Loss | None
    is_best: bool = False
    reason: str = ""


def split(instance: Instance, objective: Objective = "request", seed: int = 0, effort: int = EFFORT) -> Split:
    """An assignment that fits, with a loss as small as the search finds."""
    packed = pack(instance.operators.sizes, [device.memory for device in instance.devices.devices])
    if packed.assignment is None:
        return Split(None, None, reason=packed.reason)
    search = _Search(instance, objective, random.Random(seed))
    levels = levels_of(instance, objective)
    effort = min(effort, EFFORT_EACH * len(levels[0]))
    found: list[int] | None = None
    for number in range(len(levels) - 1, -1, -1):
        share = 1.0 if len(levels) == 1 else 0.5 if number == len(levels) - 1 else 0.5 / (len(levels) - 1)
        found = search.on(levels[number], found, int(share * effort), with_starts=number in (0, len(levels) - 1))
        if found is not None and number:
            found = levels[number].finer(found)
    assert found is not None  # the finest level has `packed` among its starts
    is_best = False
    if len(levels[0]) <= MOST_OPERATORS:
        found, is_best = improved(levels[0], instance, objective, found)
    assignment = levels[0].finer(found)
    return Split(assignment, evaluate(instance, assignment, objective), is_best)


class _Search:
    def __init__(self, instance: Instance, objective: Objective, rng: random.Random) -> None:
        self._devices = instance.devices.devices
        self._speeds = [device.speed for device in self._devices]
        idle_s = instance.lambda_s / instance.devices.total_memory
        self._memory = Memory([device.memory for device in self._devices], idle_s)
        self._objective: Objective = objective
        self._rng = rng

    def on(self, level: Level, found: list[int] | None, effort: int, with_starts: bool) -> list[int] | None:
        """The best assignment on one level: from the one found on the coarser one, and from starts."""
        begun = [] if found is None else [self._walk(level, found)]
        if with_starts or not begun:
            more = starts(level, self._devices, self._objective, self._memory.idle_s)
            begun += [self._walk(level, start) for start in {tuple(start): None for start in more}]
        if not begun:
            return None
        begun.sort(key=lambda walk: walk.best_loss)
        chosen = begun[: WALKS if found is None else 1]
        for walk in chosen:
            walk.run(max(1, effort // len(chosen)), HOT if found is None else WARM)
        return min(chosen, key=lambda walk: walk.best_loss).best

    def _walk(self, level: Level, start: list[int] | tuple[int, ...]) -> Annealing:
        state = state_of(self._objective, level, self._speeds, start)
        return Annealing(level, state, self._memory, self._rng)
