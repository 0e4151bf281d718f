"""How many tickets may be open: as many GPU tasks as GPUs, and more only where a GPU would idle otherwise.

    tickets on a node = its GPUs x (1 + ahead) + extra

ahead     of tasks so short that the way of a ticket (some milliseconds) counts, that many more wait in Ray's own queue.
          Of longer ones none does: what is in that queue keeps its place there.
extra     Ray's books show an idle GPU while tasks wait at the gate: those let through wait for something else (CPUs, a
          value, a foreign task), or Ray has placed them elsewhere than the gate believes, so the next may try, where
          that GPU is. This also ends any wait of one task for another that the gate knows nothing of. A group may try
          when its bundles could be placed at once, by its strategy, on the GPUs that are idle.
together  of such short tasks as many go with one ticket as the GPUs do in TOGETHER_S: a ticket costs more than they
          take. How long they take is measured with what the gate adds, so these are rather fewer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from egs_ray.submission import Needs

SHORT_S = 0.25  # a ticket's way is about a fiftieth of this
LEAD_S = 0.05  # work to have in Ray's queue
MOST_AHEAD = 16
TOGETHER_S = 0.25
MOST_TOGETHER = 32  # for each GPU
LEARNING = 0.2  # weight of the newest task in the mean
IDLE_REVIEWS = 2  # in a row, so that no change between two tasks counts
CALM_REVIEWS = 5
STRICT_PACK, STRICT_SPREAD = "STRICT_PACK", "STRICT_SPREAD"
"""Of Ray's strategies for groups those that are more than a wish."""


class _Node(msgspec.Struct):
    cpus: float
    gpus: int
    memory_bytes: int


SOMEWHERE = ""
"""Where GPUs are idle of which Ray does not tell where."""
NOWHERE: Mapping[str, float] = MappingProxyType({})


class Wanted(msgspec.Struct, frozen=True):
    """The GPUs that what waits needs to start: each of these on one node, and, if they are apart, on one of its own.
    is_group: it starts as a whole."""

    sizes: tuple[float, ...]
    is_apart: bool = False
    is_group: bool = False

    @property
    def gpus(self) -> float:
        """In all."""
        return sum(self.sizes)

    def fits(self, idle_at: Mapping[str, float]) -> bool:
        """Whether it could start with these. Of a task alone nobody asks: it may try, and Ray says why it waits."""
        if not self.is_group or SOMEWHERE in idle_at:
            return True
        left, sizes = sorted(idle_at.values(), reverse=True), sorted(self.sizes, reverse=True)
        if self.is_apart:
            return len(left) >= len(sizes) and all(one >= size for one, size in zip(left, sizes, strict=False))
        for size in sizes:
            at = next((number for number, one in enumerate(left) if one >= size), None)
            if at is None:
                return False
            left[at] -= size
        return True


class Place(msgspec.Struct, frozen=True):
    """Not on the nodes `unfit`; is_spread: on each of the others in turn."""

    unfit: tuple[str, ...]
    is_spread: bool


class Room:
    """See the module. `fits` may be asked from any thread. grows: an autoscaler may add what does not fit yet."""

    def __init__(
        self,
        rows: list[dict[str, Any]],
        *,
        grows: bool = False,
        is_exact: bool = False,
    ) -> None:
        """is_exact: as many as GPUs and no more, because others' tasks are ordered with these: nothing may be ahead of
        its turn."""
        self.grows, self.is_exact = grows, is_exact
        self.ahead = 0
        self._extra: list[str] = []  # a node for each, the latest last
        self._mean_s: float | None = None
        self._means_s: dict[Needs, float] = {}
        self._idle = 0
        self._calm = 0
        self._offered: dict[str, int] = {}
        self._nodes = _nodes(rows)

    @property
    def gpus(self) -> int:
        """Of all nodes."""
        return sum(node.gpus for node in self._nodes.values())

    @property
    def extra(self) -> int:
        """See the module; on all nodes."""
        return len(self._extra)

    @property
    def tickets(self) -> int:
        """How many may be open, on all nodes."""
        return self.gpus * (1 + self.ahead) + self.extra

    def fits(self, cpus: float, gpus: float, memory_bytes: int) -> bool:
        """Whether a node is there, or may come, that could run such a task if nothing else ran."""
        return self.grows or self.fits_now(cpus, gpus, memory_bytes)

    def place(self, needs: Needs) -> Place:
        """Where a process may run that takes this later, which Ray does not know of."""
        unfit = {name for name, node in self._nodes.items() if not _has(node, needs)}
        fit = len(self._nodes) - len(unfit)
        return Place(tuple(sorted(unfit)) if fit else (), is_spread=fit > 1)

    def fits_now(self, cpus: float, gpus: float, memory_bytes: int) -> bool:
        """Whether such a node is there."""
        return any(_has(node, Needs("", cpus, gpus, memory_bytes)) for node in self._nodes.values())

    def fits_group(self, needs: list[Needs], strategy: str) -> bool:
        """The same of several tasks at once, by a strategy of Ray's. Of the strict ones that spreads there must be for
        each task as many nodes for it as there are tasks that need at least as much."""
        if strategy == STRICT_PACK:
            return self.fits(*_sums(needs))
        if self.grows:
            return True
        if strategy == STRICT_SPREAD:
            nodes = self._nodes.values()
            return all(
                sum(_has(node, one) for node in nodes) >= sum(_covers(other, one) for other in needs) for one in needs
            )
        _, gpus, _ = _sums(needs)
        return gpus <= self.gpus and all(self.fits(one.cpus, one.gpus, one.memory_bytes) for one in needs)

    def devices(self, node: str, gpus: int) -> int:
        """How many a node is said to have that has so many."""
        return self._offered.get(node, gpus)

    def changes(self) -> Iterator[tuple[str, int]]:
        """Nodes with a new number of tickets."""
        for name in {**self._offered, **self._nodes}:
            gpus = self._nodes[name].gpus if name in self._nodes else 0
            devices = gpus * (1 + self.ahead) + self._extra.count(name)
            if self._offered.get(name) != devices:
                self._offered[name] = devices
                yield name, devices

    def learn(self, needs: Needs, seconds: float, line_gpus: float) -> bool:
        """A task took so long from its ticket on, with tickets open for so many GPUs by then, its own among them;
        whether `ahead` has changed."""
        own_s = seconds / max(1.0, line_gpus / max(1, self.gpus))
        self._mean_s = _mean(self._mean_s, own_s)
        self._means_s[needs] = _mean(self._means_s.get(needs), own_s)
        before = self.ahead
        short = self._mean_s < SHORT_S
        self.ahead = min(MOST_AHEAD, math.ceil(LEAD_S / max(self._mean_s, 1e-6))) if short and not self.is_exact else 0
        return self.ahead != before

    def ahead_s(self, line_gpus: float) -> float:
        """How long Ray has something to do when tickets are open for so many GPUs, beside what runs."""
        return (line_gpus / max(1, self.gpus) - 1.0) * (self._mean_s or 0.0)

    def together(self, needs: Needs, believed_s: float | None) -> int:
        """How many tasks like this may go with one ticket; one where nothing tells how long they take."""
        seconds = self._means_s.get(needs, believed_s)
        if seconds is None:
            return 1
        of_each_gpu = min(MOST_TOGETHER, TOGETHER_S / max(seconds, 1e-6))
        return max(1, int(of_each_gpu * self.gpus / needs.gpus)) if of_each_gpu > 1.0 else 1

    def review(
        self,
        rows: list[dict[str, Any]],
        waits: Iterable[Wanted] = (),
        idle_at: Mapping[str, float] = NOWHERE,
        starting_gpus: float = 0.0,
    ) -> None:
        """What Ray's books say. waits: what each that is ready at the gate wants; idle_at: GPUs that nobody holds, by
        node; starting_gpus: of these, for what was let go a moment ago."""
        self._nodes = _nodes(rows)
        self._extra = [name for name in self._extra if name in self._nodes]
        if self.is_exact:
            return
        wanted = min((one for one in waits if one.fits(idle_at)), key=lambda one: one.gpus, default=None)
        if wanted is not None and sum(idle_at.values()) - starting_gpus >= wanted.gpus:
            self._idle, self._calm = self._idle + 1, 0
        else:
            self._idle, self._calm = 0, self._calm + 1
        if wanted is not None and self._idle >= IDLE_REVIEWS:
            self._add(wanted, idle_at)
            self._idle = 0
        elif self._extra and self._calm >= CALM_REVIEWS:
            self._extra.pop()
            self._calm = 0

    def _add(self, wanted: Wanted, idle_at: Mapping[str, float]) -> None:
        """Each of its parts where so many GPUs are idle and the fewest were added, else on the largest node."""
        added: set[str] = set()
        for size in sorted(wanted.sizes, reverse=True):
            idle = [name for name, free in idle_at.items() if free >= size and name in self._nodes]
            largest = max(self._nodes, key=lambda name: self._nodes[name].gpus, default=SOMEWHERE)
            name = min(idle, key=lambda name: (name in added, self._extra.count(name), -idle_at[name]), default=largest)
            added.add(name)
            self._extra += [name] * math.ceil(size)


def _has(node: _Node, needs: Needs) -> bool:
    return node.cpus >= needs.cpus and node.gpus >= needs.gpus and node.memory_bytes >= needs.memory_bytes


def _covers(one: Needs, other: Needs) -> bool:
    return one.cpus >= other.cpus and one.gpus >= other.gpus and one.memory_bytes >= other.memory_bytes


def _sums(needs: list[Needs]) -> tuple[float, float, int]:
    return sum(one.cpus for one in needs), sum(one.gpus for one in needs), sum(one.memory_bytes for one in needs)


def _mean(before: float | None, seconds: float) -> float:
    return seconds if before is None else before + LEARNING * (seconds - before)


def _nodes(rows: list[dict[str, Any]]) -> dict[str, _Node]:
    return {
        row["NodeID"]: _Node(offer.get("CPU", 0.0), int(offer.get("GPU", 0)), int(offer.get("memory", 0)))
        for row in rows
        if row["Alive"] and (offer := row["Resources"])
    }
