"""The first phase of every class, in order: what may be granted next, and what comes after what was granted.

Classes that need the same resources share a *resource key*: (shape, node they are bound to or ANY), and the memory of
the process that their tasks keep between phases, where they keep one. A key for which nothing fits is closed: its
classes are passed over together, without a look at each, until something is freed there. Gangs, tasks that need a
process and phases that may reserve can do more than take free resources, so each such class is its own key, which is
never closed.

    order        the key of every front, sorted            following(key): the next in order

Keys without a node have a bit each, so that what is open is found without asking them one by one:

    bits         (shape 0, ANY) 0b001    (shape 3, ANY) 0b010    (shape 3, ANY, 4 GiB) 0b100
    filed        0b011     those that have fronts
    known        0b110     those of which it is known where they fit (`free_index`)
    closed       0b110     those for which nothing fits    open: filed & ~closed = 0b001
    apart        keys with a node, and classes that are their own key: those that have fronts and are not closed
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import TypeGuard

from egs_core.engine.order.classes import ANY, PhaseClass, ResourceKey
from egs_core.engine.order.policy import FullKey

Key = ResourceKey | PhaseClass
SHAPE, NODE, MEMORY = range(3)  # places in a resource key
Front = tuple[FullKey, int, PhaseClass]


class ClassFronts:
    """See the module. resource_key_of: of a front; None: the class itself."""

    def __init__(self, resource_key_of: Callable[[FullKey, int, PhaseClass], ResourceKey | None]) -> None:
        self._resource_key_of = resource_key_of
        self.of: dict[PhaseClass, Front] = {}
        self.order: list[FullKey] = []
        self._by_key: dict[Key, list[Front]] = {}  # sorted
        self._key_of: dict[PhaseClass, Key] = {}  # under which the front of a class is now
        self.bits: dict[ResourceKey, int] = {}  # of keys that are filed or known
        self._spare: list[int] = []  # bits that were of others
        self._by_bit: dict[int, list[Front]] = {}  # the lists of `_by_key`
        self.filed = self.known = self.closed = 0
        self.apart: dict[Key, list[Front]] = {}  # the lists of `_by_key`
        self.closed_apart: set[ResourceKey] = set()

    def put(self, phase_class: PhaseClass, key: FullKey, phase: int) -> None:
        """This phase is now the first of its class."""
        old = self.of.get(phase_class)
        if old is not None and old[0] is key:
            return
        front = self.of[phase_class] = key, phase, phase_class
        resources = self._resource_key_of(key, phase, phase_class) or phase_class
        if old is None:
            insort(self.order, key)
            self._file(front, resources)
            return
        order, is_same = self.order, resources == self._key_of[phase_class]
        if len(order) == 1 and is_same:  # the only class
            order[0] = key
        else:
            del order[bisect_left(order, old[0])]
            insort(order, key)
        if not is_same:
            self._take_out(old)
            self._file(front, resources)
            return
        fronts = self._by_key[resources]
        if len(fronts) == 1:
            fronts[0] = front
        else:
            del fronts[bisect_left(fronts, old)]
            insort(fronts, front)

    def _file(self, front: Front, resources: Key) -> None:
        self._key_of[front[2]] = resources
        fronts = self._by_key.get(resources)
        if fronts is not None:
            insort(fronts, front)
            return
        fronts = self._by_key[resources] = [front]
        if is_of_all_nodes(resources):
            bit = self.bit_of(resources)
            self.filed |= bit
            self._by_bit[bit] = fronts
        elif resources not in self.closed_apart:
            self.apart[resources] = fronts

    def bit_of(self, resources: ResourceKey) -> int:
        """Of a key without a node."""
        bit = self.bits.get(resources)
        if bit is None:
            bit = self.bits[resources] = self._spare.pop() if self._spare else 1 << len(self.bits)
        return bit

    def refile(self, fronts: Iterable[Front]) -> None:
        """The resource keys of these may have changed, their places in the order have not."""
        for front in fronts:
            resources = self._resource_key_of(*front) or front[2]
            if resources != self._key_of[front[2]]:
                self._take_out(front)
                self._file(front, resources)

    def drop(self, phase_class: PhaseClass) -> None:
        """The class is empty."""
        old = self.of.pop(phase_class, None)
        if old is not None:
            del self.order[bisect_left(self.order, old[0])]
            self._take_out(old)

    def _take_out(self, front: Front) -> None:
        resources = self._key_of.pop(front[2])
        fronts = self._by_key[resources]
        if len(fronts) > 1:
            del fronts[bisect_left(fronts, front)]
            return
        del self._by_key[resources]
        if not is_of_all_nodes(resources):
            self.apart.pop(resources, None)
            return
        bit = self.bits[resources]
        self.filed ^= bit
        del self._by_bit[bit]
        if not bit & self.known:
            self._spare.append(self.bits.pop(resources))

    def clear(self) -> None:
        for container in (self.of, self.order, self._by_key, self._key_of, self._by_bit, self.apart):
            container.clear()
        self.filed = 0
        self._spare += [self.bits.pop(resources) for resources, bit in list(self.bits.items()) if not bit & self.known]

    def following(self, key: FullKey) -> FullKey | None:
        """The key of the next head after this key."""
        order = self.order
        at = bisect_right(order, key)
        return order[at] if at < len(order) else None

    # --- what is open ---

    @property
    def open(self) -> list[list[Front]]:
        """The fronts of each key that is open, in no order of the keys."""
        by_bit = self._by_bit
        return [*self.apart.values(), *[by_bit[bit] for bit in bits_in(self.filed & ~self.closed)]]

    def first(self, unplaceable: set[PhaseClass], passed: set[PhaseClass]) -> Front | None:
        """The first front of an open key whose class is in neither of these sets."""
        best: Front | None
        if not (self.filed & ~self.closed or self.apart):
            return None
        if len(self.of) == 1:
            (best,) = self.of.values()
            return None if best[2] in unplaceable or best[2] in passed else best
        if not (unplaceable or passed):
            return min([fronts[0] for fronts in self.open], default=None)
        best = None
        for fronts in self.open:
            for front in fronts:
                if best is not None and front > best:
                    break
                if front[2] not in unplaceable and front[2] not in passed:
                    best = front
                    break
        return best

    def in_open_keys(self) -> Iterator[Front]:
        """The fronts of all open keys, in no order."""
        for fronts in self.open:
            yield from fronts

    # --- what fits ---

    def close(self, resources: ResourceKey) -> None:
        """Nothing fits there."""
        if is_of_all_nodes(resources):
            self.known |= self.bit_of(resources)
            self.closed |= self.bit_of(resources)
        else:
            self.closed_apart.add(resources)
            self.apart.pop(resources, None)

    def reopen(self, resources: ResourceKey) -> None:
        """Something may fit there again."""
        if is_of_all_nodes(resources):
            self.closed &= ~self.bit_of(resources)
        elif resources in self.closed_apart:
            self.closed_apart.remove(resources)
            if resources in self._by_key:
                self.apart[resources] = self._by_key[resources]

    def reopen_all(self) -> None:
        """Anything may fit anywhere."""
        self.known = self.closed = 0
        for resources in self.bits.keys() - self._by_key.keys():
            self._spare.append(self.bits.pop(resources))
        for resources in self.closed_apart & self._by_key.keys():
            self.apart[resources] = self._by_key[resources]
        self.closed_apart.clear()

    def closed_keys(self) -> list[ResourceKey]:
        """Those for which nothing fits."""
        return [*self.closed_apart, *(key for key, bit in self.bits.items() if bit & self.closed)]


@lru_cache(maxsize=1 << 14)  # the same numbers come again and again
def bits_in(number: int) -> tuple[int, ...]:
    """The bits that are set, each as a number of its own, lowest first."""
    found = []
    while number:
        lowest = number & -number
        found.append(lowest)
        number ^= lowest
    return tuple(found)


def is_of_all_nodes(resources: Key) -> TypeGuard[ResourceKey]:
    """Whether the key is neither of one node nor a class of its own."""
    return type(resources) is tuple and resources[NODE] == ANY
