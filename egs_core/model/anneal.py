"""Local search: moves, swaps and moves of connected blocks, at a temperature that falls (Kirkpatrick et al. 1983).

    pull   an operator follows a neighbour     a─b│c─d  ►  a│b─c─d
    block  with the operators beside it        a─b─c│d  ►  a│b─c─d
    swap   two change places, where memory is full
    trade  two devices change all that they have

What is accepted is drawn before the change is computed, so that computing it can end as soon as it is too bad.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import msgspec

from egs_core.model.levels import Level
from egs_core.model.states import Change, RequestState, State, StreamState

COLDEST = 2e-5
"""The temperature at the end, as a share of the loss."""
ATTEMPT = 4
"""What an attempt costs besides the operators that it visits, in the same unit."""


class Memory(msgspec.Struct):
    """What the devices have. idle_s: loss in seconds of a byte that a device in use has left."""

    sizes: list[int]
    idle_s: float


class Annealing:
    """One walk from an assignment; `best` is the best that it has come by."""

    def __init__(self, level: Level, state: State, memory: Memory, rng: random.Random) -> None:
        self._level, self._state, self._memory, self._rng = level, state, memory, rng
        self._left = list(memory.sizes)
        self._count = [0] * len(memory.sizes)
        for i, d in enumerate(state.assignment):
            self._left[d] -= level.sizes[i]
            self._count[d] += 1
        self._bytes = sum(level.sizes)
        self._held = sum(size for size, count in zip(memory.sizes, self._count, strict=True) if count)
        self._energy = self._idle_s() + (state.energy() if isinstance(state, StreamState) else state.seconds)
        self.best, self.best_loss = list(state.assignment), self._loss()
        self._focus: list[int] = []

    def run(self, effort: int, hottest: float) -> None:
        """Search until so many operators were visited. hottest: the temperature at the start, a share of the loss."""
        if len(self._left) < 2:
            return
        begun, attempts, fresh = self._state.spent, 0, 0
        while (share := (self._state.spent - begun + ATTEMPT * attempts) / effort) < 1.0:
            attempts += 1
            if attempts >= fresh:
                self._focus = self._where_it_matters()
                fresh = attempts + 10 + len(self._level) // 8
            heat = self.best_loss * hottest * (COLDEST / hottest) ** share
            limit = self._energy - heat * math.log(1.0 - self._rng.random())
            changes = self._propose()
            if changes and self._attempt(changes, limit) and self._loss() < self.best_loss:
                self.best, self.best_loss = list(self._state.assignment), self._loss()

    def _idle_s(self) -> float:
        return self._memory.idle_s * (self._held - self._bytes)

    def _loss(self) -> float:
        return self._state.seconds + self._idle_s()

    def _attempt(self, changes: Sequence[Change], limit: float) -> bool:
        """Make these changes if they fit and the loss stays below the limit."""
        moved = [(i, self._state.assignment[i], d) for i, d in changes]
        self._book(moved)
        if all(self._left[d] >= 0 for _, _, d in moved):
            idle_s = self._idle_s()
            found = self._state.attempt(changes, limit - idle_s)
            if found is not None:
                self._state.keep()
                self._energy = found + idle_s
                return True
        self._book([(i, d, before) for i, before, d in moved])
        return False

    def _book(self, moved: Sequence[tuple[int, int, int]]) -> None:
        """Memory and use of the devices, when these operators go from one to the other."""
        sizes, left, count, held = self._level.sizes, self._left, self._count, self._memory.sizes
        for i, before, d in moved:
            left[before] += sizes[i]
            left[d] -= sizes[i]
            count[before] -= 1
            if not count[before]:
                self._held -= held[before]
            if not count[d]:
                self._held += held[d]
            count[d] += 1

    def _where_it_matters(self) -> list[int]:
        """The operators that set T: a critical path, or what the busiest device or link carries."""
        state = self._state
        if isinstance(state, RequestState):
            return state.critical_path()
        busiest = state.busiest()
        return [i for i, d in enumerate(state.assignment) if d in busiest]

    def _propose(self) -> list[Change]:
        rng, assignment = self._rng, self._state.assignment
        is_focused = self._focus and rng.random() < 0.7  # nothing sets T where nothing takes time
        i = rng.choice(self._focus) if is_focused else rng.randrange(len(assignment))
        kind = rng.random()
        if kind < 0.02:
            return self._trade()
        if kind < 0.15:
            j = rng.randrange(len(assignment))
            return [] if assignment[i] == assignment[j] else [(i, assignment[j]), (j, assignment[i])]
        d = self._target(i)
        if d == assignment[i]:
            return []
        if kind < 0.55:
            return [(i, d)]
        changes = self._block(i, d)
        if kind > 0.9:  # in exchange for as much from there
            j = rng.choice([j for j, _ in (*self._level.inputs[i], *self._level.outputs[i])] or [i])
            if assignment[j] == d:
                changes += self._block(j, assignment[i])
        return changes

    def _target(self, i: int) -> int:
        """Where a neighbour is, or any device."""
        rng = self._rng
        if rng.random() < 0.75:
            near = self._level.inputs[i] if rng.random() < 0.5 else self._level.outputs[i]
            if near:
                return self._state.assignment[rng.choice(near)[0]]
        return rng.randrange(len(self._left))

    def _block(self, i: int, d: int) -> list[Change]:
        """The operator and some that are connected with it on its device."""
        rng, assignment, level = self._rng, self._state.assignment, self._level
        most = min(2 + int(rng.expovariate(1.0) * math.sqrt(len(level))), 400)
        forwards, backwards = ((True, True), (True, False), (False, True))[rng.randrange(3)]
        found, at = {i: None}, [i]
        for j in at:
            near = (*(level.outputs[j] if forwards else ()), *(level.inputs[j] if backwards else ()))
            for k, _ in near:
                if len(found) < most and k not in found and assignment[k] == assignment[i]:
                    found[k] = None
                    at.append(k)
        return [(j, d) for j in found]

    def _trade(self) -> list[Change]:
        a, b = self._rng.sample(range(len(self._left)), 2)
        other = {a: b, b: a}
        return [(i, other[d]) for i, d in enumerate(self._state.assignment) if d in other]
