"""The first phase of every class, in order: what may be granted next, and what comes after what was granted.

Classes that need the same resources share a *resource key*: (shape, node they are bound to or ANY). A key for which
nothing fits is closed: its classes are passed over together, without a look at each, until something is freed there.
Those whose tasks keep a process between phases have its memory as a third part: such a key is closed too while no node
with room has a process slot for so much memory.
Gangs, tasks that need a process and phases that may reserve can do more than take free resources, so each such class
is its own key, which is never closed.

    order        the key of every front, sorted          following(key): the next in order
    open         (shape, node) -> those of its keys      that have fronts and are not closed, with these fronts, sorted
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator

from egs_core.engine.order.classes import ClassId
from egs_core.engine.order.policy import FullKey

ResourceKey = tuple[int, int]
SlotKey = tuple[int, int, int]
Key = ResourceKey | SlotKey | ClassId
MEMORY = 2  # place in a slot key
Front = tuple[FullKey, int, ClassId]
Group = dict[Key, list[Front]]
"""Of one shape and node: its keys that have fronts and slots, with these."""


class ClassFronts:
    """See the module. resource_key_of: of a front; None: the class itself."""

    def __init__(self, resource_key_of: Callable[[FullKey, int, ClassId], ResourceKey | SlotKey | None]) -> None:
        self._resource_key_of = resource_key_of
        self.of: dict[ClassId, Front] = {}
        self.order: list[FullKey] = []
        self._by_resources: Group = {}
        self._groups: dict[Key, Group] = {}  # by shape and node; a class that is its own key is its own group
        self.open: dict[Key, Group] = {}
        self.closed: set[ResourceKey] = set()
        self.closed_slots: dict[int, dict[SlotKey, None]] = {}  # memory of processes -> keys without a place
        self._key_of: dict[ClassId, Key] = {}  # under which the front of a class is now

    def put(self, class_id: ClassId, key: FullKey, phase: int) -> None:
        """This phase is now the first of its class."""
        old = self.of.get(class_id)
        if old is not None and old[0] is key:
            return
        front = self.of[class_id] = key, phase, class_id
        resources = self._resource_key_of(key, phase, class_id) or class_id
        if old is not None:
            if len(self.order) == 1 and resources == self._key_of[class_id]:  # the only class, as before
                self.order[0], self._by_resources[resources][0] = key, front
                return
            self._leave(old)
        insort(self.order, key)
        self._file(front, resources)

    def _file(self, front: Front, resources: Key) -> None:
        self._key_of[front[2]] = resources
        fronts = self._by_resources.get(resources)
        if fronts is not None:
            insort(fronts, front)
            return
        self._by_resources[resources] = [front]
        if not (len(resources) == 3 and resources in self.closed_slots.get(resources[MEMORY], ())):
            self._show(resources)

    def _show(self, resources: Key) -> None:
        """A key that has fronts, and for its processes a slot."""
        place = (resources[0], resources[1]) if len(resources) == 3 else resources
        group = self._groups.setdefault(place, {})
        group[resources] = self._by_resources[resources]
        if place not in self.closed:
            self.open[place] = group

    def _hide(self, resources: Key) -> None:
        """It has no fronts any more, or no slot."""
        place = (resources[0], resources[1]) if len(resources) == 3 else resources
        group = self._groups.get(place)
        if group is not None and group.pop(resources, None) is not None and not group:
            del self._groups[place]
            self.open.pop(place, None)

    def refile(self, fronts: Iterable[Front]) -> None:
        """The resource keys of these may have changed, their places in the order have not."""
        for front in fronts:
            resources = self._resource_key_of(*front) or front[2]
            if resources != self._key_of[front[2]]:
                self._take_out(front)
                self._file(front, resources)

    def drop(self, class_id: ClassId) -> None:
        """The class is empty."""
        old = self.of.pop(class_id, None)
        if old is not None:
            self._leave(old)

    def _leave(self, front: Front) -> None:
        del self.order[bisect_left(self.order, front[0])]
        self._take_out(front)

    def _take_out(self, front: Front) -> None:
        resources = self._key_of.pop(front[2])
        fronts = self._by_resources[resources]
        if len(fronts) > 1:
            del fronts[bisect_left(fronts, front)]
        else:
            del self._by_resources[resources]
            self._hide(resources)

    def clear(self) -> None:
        for container in (self.of, self.order, self._by_resources, self._groups, self.open, self._key_of):
            container.clear()

    def following(self, key: FullKey) -> FullKey | None:
        """The key of the next head after this key."""
        order = self.order
        at = bisect_right(order, key)
        return order[at] if at < len(order) else None

    def first(self, unplaceable: set[ClassId], passed: set[ClassId]) -> Front | None:
        """The first front of an open key whose class is in neither of these sets."""
        best: Front | None = None
        for group in self.open.values():
            for fronts in group.values():
                for front in fronts:
                    if best is not None and front > best:
                        break
                    if front[2] not in unplaceable and front[2] not in passed:
                        best = front
                        break
        return best

    def in_open_keys(self) -> Iterator[Front]:
        """The fronts of all open keys, in no order."""
        for group in self.open.values():
            for fronts in group.values():
                yield from fronts

    # --- what fits ---

    def close(self, resources: ResourceKey) -> None:
        """Nothing fits there."""
        self.closed.add(resources)
        self.open.pop(resources, None)

    def reopen(self, resources: ResourceKey) -> None:
        """Something may fit there again."""
        if resources in self.closed:
            self.closed.remove(resources)
            if resources in self._groups:
                self.open[resources] = self._groups[resources]

    def close_slots(self, key: SlotKey) -> None:
        """Where there is room no process with so much memory has a slot."""
        self.closed_slots.setdefault(key[MEMORY], {})[key] = None
        self._hide(key)

    def reopen_slots(self, key: SlotKey) -> None:
        """One may have a slot again."""
        keys = self.closed_slots[key[MEMORY]]
        del keys[key]
        if not keys:
            del self.closed_slots[key[MEMORY]]
        if key in self._by_resources:
            self._show(key)

    def reopen_all(self) -> None:
        closed_slots = [key for keys in self.closed_slots.values() for key in keys]
        self.closed_slots.clear()
        if self.closed:
            self.closed.clear()
            self.open.update(self._groups)
        for key in closed_slots:
            if key in self._by_resources:
                self._show(key)
