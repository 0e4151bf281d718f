"""The first phase of every class, in order: what may be granted next, and what comes after what was granted.

Classes that need the same resources share a *resource key*: (shape, node they are bound to or ANY). A key for which
nothing fits is closed: its classes are passed over together, without a look at each, until something is freed there.
Those whose tasks keep a process between phases have its memory as a third part: such a key is closed too while no node
with room has a process slot for so much memory.
Gangs, tasks that need a process and phases that may reserve can do more than take free resources, so each such class
is its own key, which is never closed.

    order        every front of a class, sorted          following(key): the next in order
    open         resource key -> its fronts, sorted      keys that are not closed and have fronts
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable

from egs_core.engine.order.classes import ClassId
from egs_core.engine.order.policy import FullKey

ResourceKey = tuple[int, int]
SlotKey = tuple[int, int, int]
Key = ResourceKey | SlotKey | ClassId
MEMORY = 2  # place in a slot key
Front = tuple[FullKey, int, ClassId]
AFTER_ALL = 1 << 62  # a phase number behind all others


class ClassFronts:
    """See the module. resource_key_of: of a front; None: the class itself."""

    def __init__(self, resource_key_of: Callable[[FullKey, int, ClassId], ResourceKey | SlotKey | None]) -> None:
        self._resource_key_of = resource_key_of
        self.of: dict[ClassId, Front] = {}
        self.order: list[Front] = []
        self._by_resources: dict[Key, list[Front]] = {}
        self.open: dict[Key, list[Front]] = {}
        self.closed: set[ResourceKey] = set()
        self.closed_slots: dict[int, dict[SlotKey, None]] = {}  # memory of processes -> keys without a place
        self._slot_keys: dict[ResourceKey, dict[SlotKey, None]] = {}  # those with fronts
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
                self.order[0] = self._by_resources[resources][0] = front
                return
            self._leave(old)
        insort(self.order, front)
        self._file(front, resources)

    def _file(self, front: Front, resources: Key) -> None:
        self._key_of[front[2]] = resources
        fronts = self._by_resources.get(resources)
        if fronts is not None:
            insort(fronts, front)
            return
        self._by_resources[resources] = [front]
        if len(resources) == 3:
            self._slot_keys.setdefault((resources[0], resources[1]), {})[resources] = None
        if self._is_open(resources):
            self.open[resources] = self._by_resources[resources]

    def _is_open(self, resources: Key) -> bool:
        if len(resources) == 2:
            return resources not in self.closed
        if len(resources) == 3:
            is_out = resources in self.closed_slots.get(resources[MEMORY], ())
            return not is_out and (resources[0], resources[1]) not in self.closed
        return True

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
        del self.order[bisect_left(self.order, front)]
        self._take_out(front)

    def _take_out(self, front: Front) -> None:
        resources = self._key_of.pop(front[2])
        fronts = self._by_resources[resources]
        if len(fronts) > 1:
            del fronts[bisect_left(fronts, front)]
        else:
            del self._by_resources[resources]
            self.open.pop(resources, None)
            if len(resources) == 3:
                del self._slot_keys[resources[0], resources[1]][resources]

    def clear(self) -> None:
        for container in (self.of, self.order, self._by_resources, self._slot_keys, self.open, self._key_of):
            container.clear()

    def following(self, key: FullKey) -> FullKey | None:
        """The key of the next head after this key."""
        order = self.order
        if len(order) == 1:
            return order[0][0] if order[0][0] > key else None
        at = bisect_left(order, (key, AFTER_ALL))
        return order[at][0] if at < len(order) else None

    def first(self, unplaceable: set[ClassId], passed: set[ClassId]) -> Front | None:
        """The first front of an open key whose class is in neither of these sets."""
        best: Front | None = None
        for fronts in self.open.values():
            for front in fronts:
                if best is not None and front > best:
                    break
                if front[2] not in unplaceable and front[2] not in passed:
                    best = front
                    break
        return best

    # --- what fits ---

    def close(self, resources: ResourceKey) -> None:
        """Nothing fits there."""
        self.closed.add(resources)
        self.open.pop(resources, None)
        for key in self._slot_keys.get(resources, ()):
            self.open.pop(key, None)

    def reopen(self, resources: ResourceKey) -> None:
        """Something may fit there again."""
        if resources in self.closed:
            self.closed.remove(resources)
            if resources in self._by_resources:
                self.open[resources] = self._by_resources[resources]
            for key in self._slot_keys.get(resources, ()):
                if key not in self.closed_slots.get(key[MEMORY], ()):
                    self.open[key] = self._by_resources[key]

    def close_slots(self, key: SlotKey) -> None:
        """Where there is room no process with so much memory has a slot."""
        self.closed_slots.setdefault(key[MEMORY], {})[key] = None
        self.open.pop(key, None)

    def reopen_slots(self, key: SlotKey) -> None:
        """One may have a slot again."""
        keys = self.closed_slots[key[MEMORY]]
        del keys[key]
        if not keys:
            del self.closed_slots[key[MEMORY]]
        if key in self._by_resources and self._is_open(key):
            self.open[key] = self._by_resources[key]

    def reopen_all(self) -> None:
        if self.closed or self.closed_slots:
            self.closed.clear()
            self.closed_slots.clear()
            self.open.update(self._by_resources)
